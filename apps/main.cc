// vayu: one binary, a thin file a subcommand.
#include <csignal>
#include <cstdio>

#include "apps/commands.h"
#include "apps/config_file.h"
#include "base/log.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app{"Vayu: serve your own language models"};
  app.set_version_flag("--version", "vayu " VAYU_VERSION);
  app.require_subcommand(1);
  app.fallthrough(false);
  int exit_code = 0;
  vayu::add_serve_command(app, exit_code);
  vayu::add_chat_command(app, exit_code);
  vayu::add_convert_command(app, exit_code);
  vayu::add_bench_command(app, exit_code);
  vayu::add_eval_command(app, exit_code);
  vayu::add_profile_command(app, exit_code);

  auto args = vayu::expand_config_file({argv + 1, argv + argc});
  if (!args.ok()) {
    std::fprintf(stderr, "vayu: %s\n", args.error().message.c_str());
    return 2;
  }
  std::vector<std::string> reversed(args->rbegin(), args->rend());  // CLI11 takes a vector back to front
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  return exit_code;
}
