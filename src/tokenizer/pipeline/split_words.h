// The splitting of words at matches, shared by all kinds of pre-tokenizers.
#pragma once

#include "tokenizer/pipeline/word_cutter.h"
#include "tokenizer/utf8.h"

namespace vayu {

// Collects the parts of one word, matches and the stretches between, and appends the words that `behavior` makes.
class WordSplitter {
 public:
  WordSplitter(const Words::Word& word, SplitBehavior behavior, bool invert, std::vector<Words::Word>& out)
      : word_(word), behavior_(behavior), invert_(invert), out_(out), done_(word.begin) {}

  // Matches come in order, within the word, and do not overlap; an empty one still parts its neighbours.
  void match(size_t begin, size_t end) {
    if (done_ < begin) part(done_, begin, false != invert_);
    part(begin, end, true != invert_);
    done_ = end;
  }
  void finish() {
    if (done_ < word_.end) part(done_, word_.end, false != invert_);
    flush();
  }

 private:
  struct Part {
    size_t begin, end;
    bool matched;
  };

  void part(size_t begin, size_t end, bool matched);
  void push(size_t begin, size_t end) {
    if (begin < end) out_.push_back({begin, end, word_.at_start && begin == word_.begin});
  }
  void flush() {
    if (open_) push(open_->begin, open_->end);
    open_.reset();
  }

  const Words::Word& word_;
  const SplitBehavior behavior_;
  const bool invert_;
  std::vector<Words::Word>& out_;
  size_t done_;
  std::optional<Part> open_;  // may still grow
};

// Splits at every character for which matches(code_point); bad bytes are no match.
template <class Predicate>
void split_at_characters(Words& words, SplitBehavior behavior, Predicate matches) {
  std::vector<Words::Word> out;
  for (const Words::Word& word : words.words) {
    WordSplitter splitter(word, behavior, false, out);
    const std::string_view text = std::string_view(words.text).substr(0, word.end);
    for (size_t pos = word.begin; pos < word.end;) {
      const Utf8Char c = decode_utf8(text, pos);
      if (c.state == Utf8State::kValid && matches(c.code_point)) splitter.match(pos, pos + c.length);
      pos += c.length;
    }
    splitter.finish();
  }
  words.words = std::move(out);
}

}  // namespace vayu
