// libFuzzer: any bytes as a template, over a small context. No crash, no hang, no leak; one mark for each output byte.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "tokenizer/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto kContext = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": [{"type": "text", "text": "S\n"}]},
                 {"role": "user", "content": "नमस्ते <|im_end|> 😀"},
                 {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "id": "1",
                   "function": {"name": "f", "arguments": {"x": 1.5, "y": [true, null, -3]}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "s": "a,b c", "n": 7, "f": 0.5})");
  const auto parsed = vayu::ChatTemplate::parse(std::string(reinterpret_cast<const char*>(data), size));
  if (!parsed.ok()) return 0;
  const auto rendered = parsed.value()->render(kContext);
  if (rendered.ok()) VAYU_CHECK(rendered->text.size() == rendered->trusted.size(), "marks and bytes differ in number");
  return 0;
}
