// The subcommands of the one binary. Each adds itself to `app` and, when chosen, sets `exit_code`.
#pragma once

#include <CLI/CLI.hpp>

namespace vayu {

void add_serve_command(CLI::App& app, int& exit_code);
void add_chat_command(CLI::App& app, int& exit_code);
void add_bench_command(CLI::App& app, int& exit_code);

}  // namespace vayu
