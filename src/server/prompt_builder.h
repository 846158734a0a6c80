// From request text to prompt ids. Raw prompts follow the tokenizer's own settings (BOS where the model says so,
// special tokens in the text recognised); chat prompts get only the marks that the template itself printed.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "base/result.h"
#include "server/api_request.h"
#include "server/chat_format.h"
#include "server/server.h"

namespace vayu::server {

struct BuiltPrompt {
  std::string text;  // raw or rendered; for echo and read-back
  std::vector<TokenId> ids;
  // Chat: where the answer begins. The prompt ends inside a thinking block, or right behind one.
  bool thinking_open = false;
  bool thinking_done = false;
};

class PromptBuilder {
 public:
  // `parsers`: valid (check_parser_choice).
  PromptBuilder(const ServedModel& model, const ParserChoice& parsers);

  const ChatFormat& format() const { return format_; }

  // Errors: kInvalidArgument, field `prompt` or `messages`. Text that cannot fit the context by its length alone is
  // refused before it is tokenised.
  Result<BuiltPrompt> raw(const PromptInput& input, std::optional<bool> add_special) const;
  Result<BuiltPrompt> chat(const ChatInput& input, std::optional<bool> add_special) const;

 private:
  Status check_length(size_t bytes, const char* field) const;
  Result<RenderedPrompt> render(const ChatInput& input) const;
  Json template_messages(const Json& messages) const;
  Status cut_to_final_message(const ChatInput& input, RenderedPrompt& prompt) const;
  void see_where_thinking_stands(const ChatInput& input, const RenderedPrompt& rendered, BuiltPrompt& prompt) const;

  ServedModel model_;
  ChatFormat format_;
  int32_t max_context_ = 0;
  size_t max_prompt_bytes_ = std::numeric_limits<size_t>::max();
};

}  // namespace vayu::server
