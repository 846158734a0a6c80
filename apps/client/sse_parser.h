// Server-sent events, the part OpenAI streams use: data lines, comments, blank lines. Bytes may be cut anywhere.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace vayu::client {

class SseParser {
 public:
  using DataSink = std::function<void(std::string_view data)>;

  SseParser() = default;
  // max_event_bytes: an event or line longer than this is a peer gone mad.
  explicit SseParser(size_t max_event_bytes) : max_event_bytes_(max_event_bytes) {}

  // Calls on_data with the payload of every event that is now complete (several data lines are joined by \n).
  // False once the limit has been passed; nothing more is then delivered.
  bool push(std::string_view bytes, const DataSink& on_data);

 private:
  void take_line(std::string_view line, const DataSink& on_data);

  const size_t max_event_bytes_ = 16u << 20;
  std::string line_;  // unfinished line
  std::string data_;  // data lines of the unfinished event
  bool has_data_ = false;
  bool after_cr_ = false;  // the last byte was \r: a \n that follows belongs to it
  bool overflow_ = false;
};

}  // namespace vayu::client
