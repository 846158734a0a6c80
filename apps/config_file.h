// --config FILE: every flag of a subcommand may stand in a YAML file; flags on the command line win.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace vayu {

// Returns `args` (without the program's name) with the settings of a `--config FILE` or `--config=FILE` spliced in as
// flags. Keys may be written with '-' or '_'; true becomes a bare flag, false leaves it out, a list repeats the flag.
// Keys that the command line sets itself are skipped. Errors name the file and the key.
Result<std::vector<std::string>> expand_config_file(std::vector<std::string> args);

}  // namespace vayu
