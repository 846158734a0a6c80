// The conversation: lines in, answers out. Knows neither sockets nor engines nor signals.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/chat/chat_backend.h"

namespace vayu::chat {

struct ReadResult {
  enum Kind { kLine, kEnd, kInterrupted } kind = kEnd;
  std::string line;
};

struct Console {
  std::function<ReadResult(std::string_view prompt)> read_line;  // prompt: empty when not interactive
  std::function<void(std::string_view)> write;
  std::function<void(std::string_view)> write_error;
  // Times Ctrl-C was pressed since reset_interrupts().
  std::function<int()> interrupts;
  std::function<void()> reset_interrupts;
  bool interactive = false;  // prompts, greetings and figures; colours; control characters of answers are masked
};

class ChatLoop {
 public:
  ChatLoop(ChatBackend& backend, ChatSettings settings, std::string system_prompt, Console console);
  // Until the input ends, /exit, or Ctrl-C twice. Returns the exit code: 1 when not interactive and an answer failed.
  int run();

 private:
  bool handle_command(const std::string& line);  // false: leave
  void ask(const std::string& question);
  void show(TextKind kind, std::string_view piece);
  void note(std::string_view text);  // dim line
  void show_stats();

  ChatBackend& backend_;
  const ChatSettings settings_;
  std::string system_prompt_;
  const Console console_;
  std::vector<ChatMessage> turns_;
  TextKind shown_ = TextKind::kAnswer;  // kind of the last piece
  bool failed_ = false;
  bool quit_ = false;
};

// Replaces control characters (all but line feed and tab) by '?': an answer must not steer the terminal. text: UTF-8.
std::string mask_control_characters(std::string_view text);

}  // namespace vayu::chat
