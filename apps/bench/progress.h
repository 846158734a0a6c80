// The progress line on a terminal; it wipes itself away at the end.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "base/check.h"

namespace vayu::bench {

class Progress {
 public:
  explicit Progress(int64_t total) : total_(total) {}
  ~Progress() { write_line(""); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(int64_t finished, int64_t in_flight, int64_t failed, int64_t tokens, double elapsed_s) {
    constexpr int kWidth = 24;
    const int filled = total_ > 0 ? static_cast<int>(finished * kWidth / total_) : kWidth;
    write_line(fmt::format("[{}{}] {}/{}  {} in flight  {:.0f} tokens/s  {} failed  {:.0f} s", std::string(filled, '#'),
                           std::string(kWidth - filled, '.'), finished, total_, in_flight,
                           elapsed_s > 0 ? static_cast<double>(tokens) / elapsed_s : 0.0, failed, elapsed_s));
  }

 private:
  static void write_line(const std::string& line) {
    std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
    std::fflush(stderr);
  }
  const int64_t total_;
};

}  // namespace vayu::bench
