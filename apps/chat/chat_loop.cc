#include "apps/chat/chat_loop.h"

namespace vayu::chat {

namespace {

constexpr std::string_view kHelp =
    "/reset         forget the conversation\n"
    "/system TEXT   set the system prompt and forget the conversation; without TEXT take it away\n"
    "/stats         live numbers\n"
    "/help          this list\n"
    "/exit          leave (so does Ctrl-D)\n"
    "Ctrl-C stops an answer; pressed twice it leaves.\n";

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

std::string figures(const AnswerStats& stats) {
  std::string out = fmt::format("{} tokens", stats.output_tokens);
  if (stats.output_tokens > 1 && stats.decode_s > 0) {
    out += fmt::format(", {:.1f} tokens/s", static_cast<double>(stats.output_tokens - 1) / stats.decode_s);
  }
  if (stats.output_tokens > 0) out += fmt::format(", first after {:.0f} ms", stats.ttft_s * 1000);
  if (stats.prompt_tokens > 0) out += fmt::format(", prompt {} ({} cached)", stats.prompt_tokens, stats.cached_tokens);
  if (stats.finish_reason == "length") out += ", cut at the token limit";
  if (stats.finish_reason == "cancelled") out += ", stopped";
  return out;
}

}  // namespace

std::string mask_control_characters(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    const bool c0 = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
    // U+0080 to U+009F: terminals take them as commands too.
    const bool c1 = c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    out += c0 || c1 ? '?' : text[i];
    i += c1;
  }
  return out;
}

ChatLoop::ChatLoop(ChatBackend& backend, ChatSettings settings, std::string system_prompt, Console console)
    : backend_(backend), settings_(settings), system_prompt_(std::move(system_prompt)), console_(std::move(console)) {}

void ChatLoop::note(std::string_view text) {
  if (console_.interactive) console_.write(fmt::format("\x1b[2m{}\x1b[0m\n", text));
}

int ChatLoop::run() {
  note(fmt::format("{} (/help lists commands)", backend_.model_name()));
  bool warned = false;
  while (!quit_) {
    console_.reset_interrupts();
    const ReadResult input = console_.read_line(console_.interactive ? "\x1b[1m> \x1b[0m" : "");
    if (input.kind == ReadResult::kEnd) break;
    if (input.kind == ReadResult::kInterrupted) {
      if (warned) break;
      warned = true;
      console_.write("\n");
      note("Ctrl-C again leaves");
      continue;
    }
    warned = false;
    const std::string line(trim(input.line));
    if (line.empty()) continue;
    if (line.starts_with('/')) {
      if (!handle_command(line)) return failed_ && !console_.interactive;
    } else {
      ask(line);
    }
  }
  if (console_.interactive) console_.write("\n");
  return failed_ && !console_.interactive;
}

bool ChatLoop::handle_command(const std::string& line) {
  const size_t space = line.find_first_of(" \t");
  const std::string name = line.substr(0, space);
  const std::string rest(space == std::string::npos ? std::string_view() : trim(std::string_view(line).substr(space)));
  if (name == "/exit" || name == "/quit") return false;
  if (name == "/help") {
    console_.write(kHelp);
  } else if (name == "/reset") {
    turns_.clear();
    note("the conversation is forgotten");
  } else if (name == "/system") {
    system_prompt_ = rest;
    turns_.clear();
    note(rest.empty() ? "no system prompt; the conversation is forgotten"
                      : "system prompt set; the conversation is forgotten");
  } else if (name == "/stats") {
    show_stats();
  } else {
    console_.write_error(fmt::format("unknown command {} (/help lists them)\n", mask_control_characters(name)));
  }
  return true;
}

void ChatLoop::show_stats() {
  const Result<std::string> stats = backend_.stats();
  if (stats.ok()) {
    console_.write(*stats);
  } else {
    console_.write_error(stats.error().message + "\n");
  }
}

// Thinking is dim and stands on lines of its own; it is no part of what a script reads.
void ChatLoop::show(TextKind kind, std::string_view piece) {
  if (!console_.interactive) {
    if (kind == TextKind::kAnswer) console_.write(piece);
    return;
  }
  if (kind != shown_) console_.write(kind == TextKind::kThinking ? "\x1b[2m" : "\x1b[0m\n\n");
  shown_ = kind;
  console_.write(mask_control_characters(piece));
}

void ChatLoop::ask(const std::string& question) {
  std::vector<ChatMessage> messages;
  if (!system_prompt_.empty()) messages.push_back({"system", system_prompt_});
  messages.insert(messages.end(), turns_.begin(), turns_.end());
  messages.push_back({"user", question});

  std::string answer;
  shown_ = TextKind::kAnswer;
  const TextSink sink = [&](TextKind kind, std::string_view piece) {
    if (kind == TextKind::kAnswer) answer += piece;
    show(kind, piece);
  };
  const Result<AnswerStats> result =
      backend_.answer(messages, settings_, sink, [this] { return console_.interrupts() > 0; });
  if (shown_ == TextKind::kThinking) show(TextKind::kAnswer, "");  // ended or stopped while it thought
  if (!answer.empty() && !answer.ends_with('\n')) console_.write("\n");
  if (result.ok()) {
    note(figures(*result));
  } else {
    failed_ = true;
    console_.write_error(mask_control_characters(result.error().message) + "\n");
  }
  // A question without an answer stays out: templates expect the roles to alternate.
  if (!answer.empty()) {
    turns_.push_back({"user", question});
    turns_.push_back({"assistant", std::move(answer)});
  }
  const int quit_after = console_.interactive ? 2 : 1;
  quit_ = console_.interrupts() >= quit_after;
}

}  // namespace vayu::chat
