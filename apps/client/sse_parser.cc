#include "apps/client/sse_parser.h"

namespace vayu::client {

bool SseParser::push(std::string_view bytes, const DataSink& on_data) {
  while (!overflow_ && !bytes.empty()) {
    if (after_cr_ && bytes[0] == '\n') bytes.remove_prefix(1);
    after_cr_ = false;
    const size_t end = bytes.find_first_of("\r\n");
    const std::string_view part = bytes.substr(0, end);
    if (line_.size() + data_.size() + part.size() > max_event_bytes_) {
      overflow_ = true;
      break;
    }
    if (end == std::string_view::npos) {
      line_.append(part);
      break;
    }
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (line_.empty()) {
      take_line(part, on_data);
    } else {
      line_.append(part);
      take_line(line_, on_data);
      line_.clear();
    }
  }
  return !overflow_;
}

void SseParser::take_line(std::string_view line, const DataSink& on_data) {
  if (line.empty()) {
    if (has_data_) on_data(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  if (!line.starts_with("data:")) return;  // comments, id, event, retry: nothing OpenAI streams need
  line.remove_prefix(5);
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (has_data_) data_.push_back('\n');
  data_.append(line);
  has_data_ = true;
}

}  // namespace vayu::client
