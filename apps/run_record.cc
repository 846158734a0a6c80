#include "apps/run_record.h"

#include <fmt/format.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <string_view>
#include <thread>

namespace vayu {

// The command as it was typed (Linux keeps it), so that a result file says how to repeat itself; keys are blanked.
std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string raw((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::string out;
  bool secret = false;
  for (size_t at = 0; at < raw.size(); at += std::string_view(raw.c_str() + at).size() + 1) {
    std::string word = raw.c_str() + at;
    if (secret) word = "***";
    secret = word == "--api-key";
    if (word.starts_with("--api-key=")) word = "--api-key=***";
    if (word.empty() || word.find_first_of(" '\"\\$") != std::string::npos) word = "'" + word + "'";
    out += (out.empty() ? "" : " ") + word;
  }
  return out;
}

std::string hardware() {
  std::ifstream file("/proc/cpuinfo");
  std::string line, name = "unknown CPU";
  while (std::getline(file, line)) {
    if (line.starts_with("model name")) {
      name = line.substr(line.find(':') + 2);
      break;
    }
  }
  return fmt::format("{} ({} threads)", name, std::thread::hardware_concurrency());
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace vayu
