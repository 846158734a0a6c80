// Whoever answers a chat: a server over HTTP or an engine in this process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vayu::chat {

struct ChatMessage {
  std::string role;  // system, user, assistant
  std::string content;
};

struct ChatSettings {
  float temperature = 0.7f;
  float top_p = 0.95f;
  int32_t max_tokens = 1024;
  std::optional<uint64_t> seed;
};

struct AnswerStats {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  double ttft_s = 0;
  double decode_s = 0;        // first to last token
  std::string finish_reason;  // stop, length, cancelled
};

enum class TextKind { kAnswer, kThinking };
using TextSink = std::function<void(TextKind, std::string_view)>;  // whole characters
using StopQuery = std::function<bool()>;                           // true: the user wants no more of this answer

class ChatBackend {
 public:
  virtual ~ChatBackend() = default;
  virtual const std::string& model_name() const = 0;
  // Streams one answer; blocks until it has ended or `stop` has said so (asked about every 50 ms), which is not an
  // error.
  virtual Result<AnswerStats> answer(const std::vector<ChatMessage>& messages, const ChatSettings& settings,
                                     const TextSink& text, const StopQuery& stop) = 0;
  virtual Result<std::string> stats() = 0;  // a few lines for people
};

}  // namespace vayu::chat
