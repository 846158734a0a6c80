#include "apps/chat/terminal.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>

namespace vayu::chat {

namespace {

std::atomic<int> interrupt_count{0};
static_assert(std::atomic<int>::is_always_lock_free, "set in a signal handler");

void on_interrupt(int) {
  if (interrupt_count.fetch_add(1) >= 2) _exit(130);
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;  // nobody reads us any more
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
}

// Reads lines with read(2): iostreams and stdio hide that a signal came.
class LineReader {
 public:
  ReadResult read_line(std::string_view prompt) {
    write_all(STDOUT_FILENO, prompt);
    for (;;) {
      if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
        ReadResult result{ReadResult::kLine, buffer_.substr(0, end)};
        buffer_.erase(0, end + 1);
        return result;
      }
      char piece[4096];
      const ssize_t got = ::read(STDIN_FILENO, piece, sizeof piece);
      if (got < 0 && errno == EINTR && interrupt_count > 0) {
        buffer_.clear();
        return {ReadResult::kInterrupted, {}};
      }
      if (got < 0 && errno == EINTR) continue;
      if (got > 0) {
        buffer_.append(piece, static_cast<size_t>(got));
        continue;
      }
      if (buffer_.empty()) return {ReadResult::kEnd, {}};
      ReadResult last{ReadResult::kLine, std::move(buffer_)};  // a last line without line feed
      buffer_.clear();
      return last;
    }
  }

 private:
  std::string buffer_;
};

}  // namespace

Console open_console() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // no SA_RESTART: a read must come back
  sigaction(SIGINT, &action, nullptr);
  Console console;
  console.interactive = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  auto reader = std::make_shared<LineReader>();
  console.read_line = [reader](std::string_view prompt) { return reader->read_line(prompt); };
  console.write = [](std::string_view text) { write_all(STDOUT_FILENO, text); };
  console.write_error = [](std::string_view text) { write_all(STDERR_FILENO, text); };
  console.interrupts = [] { return interrupt_count.load(); };
  console.reset_interrupts = [] { interrupt_count = 0; };
  return console;
}

}  // namespace vayu::chat
