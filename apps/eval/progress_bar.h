// A bar on standard error, when that is a terminal; it wipes itself away at the end.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace vayu::eval {

class ProgressBar {
 public:
  ProgressBar(std::string label, std::string unit)
      : label_(std::move(label)), unit_(std::move(unit)), visible_(isatty(STDERR_FILENO) != 0) {}
  ~ProgressBar() {
    if (visible_) write_line("");
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // done and total in `scale` units each.
  void show(int64_t done, int64_t total, double scale = 1) {
    const auto now = std::chrono::steady_clock::now();
    if (!visible_ || total <= 0 || (done < total && now - shown_ < std::chrono::milliseconds(100))) return;
    shown_ = now;
    constexpr int kWidth = 30;
    const double elapsed_s = std::chrono::duration<double>(now - start_).count();
    const double rate = elapsed_s > 0 ? static_cast<double>(done) / elapsed_s : 0;
    const auto filled = static_cast<size_t>(std::clamp<int64_t>(done * kWidth / total, 0, kWidth));
    write_line(fmt::format("{} [{}{}] {:.0f}/{:.0f} {}  {:.0f} {}/s  {:.0f} s left", label_, std::string(filled, '#'),
                           std::string(kWidth - filled, '.'), static_cast<double>(done) / scale,
                           static_cast<double>(total) / scale, unit_, rate / scale, unit_,
                           rate > 0 ? static_cast<double>(total - done) / rate : 0));
  }

 private:
  using Time = std::chrono::steady_clock::time_point;
  static void write_line(const std::string& line) {
    std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
    std::fflush(stderr);
  }
  const std::string label_, unit_;
  const bool visible_;
  const Time start_ = std::chrono::steady_clock::now();
  Time shown_ = {};
};

}  // namespace vayu::eval
