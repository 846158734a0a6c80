// Subcommands of `vayu`. Each adds itself to the root; its callback runs it and stores the process exit code.
#pragma once

#include <CLI/CLI.hpp>

namespace vayu {

void add_serve_command(CLI::App& root, int& exit_code);
void add_chat_command(CLI::App& root, int& exit_code);
void add_convert_command(CLI::App& root, int& exit_code);
void add_bench_command(CLI::App& root, int& exit_code);  // bench serve, kernels, steps
void add_bench_kernels_command(CLI::App& bench, int& exit_code);
void add_bench_steps_command(CLI::App& bench, int& exit_code);
void add_profile_command(CLI::App& root, int& exit_code);
void add_eval_command(CLI::App& root, int& exit_code);

}  // namespace vayu
