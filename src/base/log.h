// Logging: spdlog's default logger. VAYU_LOG-style macros are not needed; include this and call spdlog::info(...).
#pragma once

#include <spdlog/spdlog.h>

namespace vayu {

// Sends log lines to stderr. level: trace, debug, info, warn, error, off. Returns false if the level is unknown.
bool init_logging(const std::string& level, bool json);

}  // namespace vayu
