// A model's own chat template: Jinja, executed as Hugging Face executes it (trim_blocks and lstrip_blocks on,
// sandboxed, raise_exception and strftime_now at hand). Immutable after parse; render is thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace vayu {

struct RenderedPrompt {
  std::string text;
  // (text.size()) 1 where the byte was written in the template itself, 0 where it came from the context (messages,
  // tools, names): only template bytes may form special tokens.
  std::vector<uint8_t> trusted;
};

// What a template mentions; each list sorted, without repeats.
struct TemplateWords {
  std::vector<std::string> texts;      // string constants and the text between tags; comments are left out
  std::vector<std::string> variables;  // names it reads: messages, tools, enable_thinking
  std::vector<std::string> keys;       // attributes and constant keys it reads: role, content, reasoning_content
};

class ChatTemplate {
 public:
  // Errors: kUnsupported or kInvalidArgument with line and construct.
  static Result<std::shared_ptr<const ChatTemplate>> parse(std::string source);
  virtual ~ChatTemplate() = default;

  // context: object with messages, tools, add_generation_prompt, bos_token, eos_token and chat_template_kwargs merged
  // in. String values under `bos_token`, `eos_token`, `pad_token`, `unk_token` at top level are trusted, and so is a
  // well-known role (user, assistant, ...) as messages[i].role: some templates build markers as '<|' + role + '|>'.
  // kInvalidArgument carries the text of raise_exception; work, output and depth are bounded (kTooLarge).
  virtual Result<RenderedPrompt> render(const nlohmann::ordered_json& context) const = 0;
  virtual const std::string& source() const = 0;
  // Of a template that is not Jinja nothing is known.
  virtual const TemplateWords& words() const;
};

}  // namespace vayu
