#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace vayu {

bool init_logging(const std::string& level, bool json) {
  const auto parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off") return false;
  static auto logger = spdlog::stderr_color_mt("vayu");
  spdlog::set_default_logger(logger);
  logger->set_level(parsed);
  if (json) {
    logger->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%v"})");
  } else {
    logger->set_pattern("%H:%M:%S.%e %^%l%$ %v");
  }
  return true;
}

}  // namespace vayu
