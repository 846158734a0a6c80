// Subcommands of `vayu`. Each adds itself to the root; its callback runs it and stores the process exit code.
#pragma once

#include <CLI/CLI.hpp>

namespace vayu {

void add_serve_command(CLI::App& root, int& exit_code);
void add_chat_command(CLI::App& root, int& exit_code);
void add_convert_command(CLI::App& root, int& exit_code);
void add_bench_command(CLI::App& root, int& exit_code);  // bench serve
void add_eval_command(CLI::App& root, int& exit_code);

}  // namespace vayu
