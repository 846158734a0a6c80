#include "server/prompt_builder.h"

#include <algorithm>

#include "server/limits.h"

namespace vayu::server {
namespace {

constexpr const char* kWhitespace = " \t\r\n";

// Cuts the prompt right behind the last message's text: the last place where all its bytes came from the context.
bool cut_after(RenderedPrompt& prompt, std::string_view content) {
  for (size_t at = prompt.text.rfind(content); at != std::string::npos; at = prompt.text.rfind(content, at - 1)) {
    const auto begin = prompt.trusted.begin() + static_cast<ptrdiff_t>(at);
    const auto end = begin + static_cast<ptrdiff_t>(content.size());
    if (std::none_of(begin, end, [](uint8_t trusted) { return trusted != 0; })) {
      prompt.text.resize(at + content.size());
      prompt.trusted.resize(at + content.size());
      return true;
    }
    if (at == 0) break;
  }
  return false;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kWhitespace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhitespace) + 1 - begin);
}

}  // namespace

PromptBuilder::PromptBuilder(const ServedModel& model, const ParserChoice& parsers)
    : model_(model), max_context_(model.engine->info().max_context) {
  const size_t longest = model_.tokenizer->max_token_bytes();
  if (longest > 0) max_prompt_bytes_ = static_cast<size_t>(max_context_) * longest * kNormaliserSlack;
  if (model_.bos_token.empty() && model_.tokenizer->bos_id()) {
    model_.bos_token = model_.tokenizer->token_bytes(*model_.tokenizer->bos_id());
  }
  if (model_.eos_token.empty() && !model_.tokenizer->end_ids().empty()) {
    model_.eos_token = model_.tokenizer->token_bytes(model_.tokenizer->end_ids().front());
  }
  format_ = detect_chat_format(model_.chat_template.get(), model_.bos_token, model_.eos_token, parsers);
}

Status PromptBuilder::check_length(size_t bytes, const char* field) const {
  if (bytes <= max_prompt_bytes_) return {};
  return field_error(field, "The prompt has {} bytes, more than the model's context of {} tokens can hold.", bytes,
                     max_context_);
}

Result<BuiltPrompt> PromptBuilder::raw(const PromptInput& input, std::optional<bool> add_special) const {
  BuiltPrompt prompt;
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&input)) {
    prompt.ids = *ids;
    return prompt;
  }
  prompt.text = std::get<std::string>(input);
  VAYU_RETURN_IF_ERROR(check_length(prompt.text.size(), "prompt"));
  EncodeOptions options;
  options.parse_special = true;
  options.add_special = add_special.value_or(true);
  prompt.ids = model_.tokenizer->encode(prompt.text, options);
  return prompt;
}

// Earlier thinking under the names that the template reads, and arguments in the form it prints.
Json PromptBuilder::template_messages(const Json& messages) const {
  Json result = messages;
  for (Json& message : result) {
    if (const auto reasoning = message.find("reasoning_content"); reasoning != message.end()) {
      const Json text = *reasoning;
      for (const std::string& field : format_.reasoning_fields) message[field] = text;
    }
    const auto calls = message.find("tool_calls");
    if (!format_.arguments_as_text || calls == message.end()) continue;
    for (Json& call : *calls) {
      const auto function = call.find("function");
      if (function == call.end()) continue;
      const auto arguments = function->find("arguments");
      if (arguments != function->end() && arguments->is_object()) *arguments = dump(*arguments);
    }
  }
  return result;
}

Result<RenderedPrompt> PromptBuilder::render(const ChatInput& input) const {
  if (model_.chat_template == nullptr) {
    return field_error("messages", "This model has no chat template; use /v1/completions.");
  }
  // The names and nulls are those that Hugging Face passes.
  Json context;
  context["messages"] = template_messages(input.messages);
  context["tools"] = input.tools;
  context["documents"] = nullptr;
  context["add_generation_prompt"] = input.add_generation_prompt;
  if (!model_.bos_token.empty()) context["bos_token"] = model_.bos_token;
  if (!model_.eos_token.empty()) context["eos_token"] = model_.eos_token;
  for (const auto& [key, value] : input.kwargs.items()) context[key] = value;
  auto rendered = model_.chat_template->render(context);
  if (!rendered.ok()) return field_error("messages", "The chat template failed: {}", rendered.error().message);
  VAYU_CHECK(rendered->trusted.size() == rendered->text.size(), "the template's trust mask has another size");
  return rendered;
}

// Ends the prompt right behind the final message's text, or behind its thinking when it has nothing else yet.
Status PromptBuilder::cut_to_final_message(const ChatInput& input, RenderedPrompt& prompt) const {
  const Json& message = input.messages.back();
  std::string text = message["content"];
  if (trimmed(text).empty()) text = message.value("reasoning_content", std::string());
  if (trimmed(text).empty()) return field_error("messages", "The final message has no text to continue.");
  // A template may trim the text it prints, and print thinking that stands in it elsewhere.
  std::vector<std::string_view> forms = {text, trimmed(text)};
  const size_t close = format_.reasoning ? text.rfind(format_.reasoning->close) : std::string::npos;
  if (close != std::string::npos) {
    forms.push_back(trimmed(std::string_view(text).substr(close + format_.reasoning->close.size())));
  }
  for (const std::string_view form : forms) {
    if (!form.empty() && cut_after(prompt, form)) return {};
  }
  return field_error("messages", "The chat template does not print the final message, so it cannot be continued.");
}

void PromptBuilder::see_where_thinking_stands(const ChatInput& input, const RenderedPrompt& rendered,
                                              BuiltPrompt& prompt) const {
  if (!format_.reasoning) return;
  const auto& [open, close, starts_thinking] = *format_.reasoning;
  const std::string_view text = trimmed(rendered.text);
  if (input.continue_final) {
    const Json& message = input.messages.back();
    const auto& content = message["content"].get_ref<const std::string&>();
    const size_t opened = content.rfind(open);
    const size_t closed = content.rfind(close);
    prompt.thinking_open =
        trimmed(content).empty() || (opened != std::string::npos && (closed == std::string::npos || closed < opened));
    return;
  }
  // Only tags that the template wrote count: a message may end with one too.
  const auto wrote = [&](const std::string& tag) {
    return input.add_generation_prompt && text.ends_with(tag) &&
           rendered.trusted[text.data() + text.size() - 1 - rendered.text.data()] != 0;
  };
  prompt.thinking_done = wrote(close);
  prompt.thinking_open = wrote(open) || (starts_thinking && input.add_generation_prompt && !prompt.thinking_done);
}

Result<BuiltPrompt> PromptBuilder::chat(const ChatInput& input, std::optional<bool> add_special) const {
  VAYU_ASSIGN_OR_RETURN(RenderedPrompt rendered, render(input));
  if (input.continue_final) {
    VAYU_RETURN_IF_ERROR(cut_to_final_message(input, rendered));
  } else if (input.add_generation_prompt && input.kwargs.value("enable_thinking", Json()) == false) {
    rendered.text += format_.empty_thinking;
    rendered.trusted.resize(rendered.text.size(), 1);
  }
  VAYU_RETURN_IF_ERROR(check_length(rendered.text.size(), "messages"));
  BuiltPrompt prompt;
  see_where_thinking_stands(input, rendered, prompt);
  EncodeOptions options;
  options.parse_special = true;
  options.add_special = add_special.value_or(false);
  options.trusted = rendered.trusted;
  prompt.ids = model_.tokenizer->encode(rendered.text, options);
  prompt.text = std::move(rendered.text);
  return prompt;
}

}  // namespace vayu::server
