#include "tokenizer/pipeline/split_words.h"

namespace vayu {

void WordSplitter::part(size_t begin, size_t end, bool matched) {
  const bool open_matched = open_ && open_->matched;
  bool joins = false;  // this part belongs to the open one
  switch (behavior_) {
    case SplitBehavior::kRemoved:
      flush();
      if (!matched) push(begin, end);
      return;
    case SplitBehavior::kIsolated:
      break;
    case SplitBehavior::kMergedWithPrevious:
      joins = open_ && matched && !open_matched;
      break;
    case SplitBehavior::kMergedWithNext:
      joins = open_ && !matched && open_matched;
      break;
    case SplitBehavior::kContiguous:
      joins = open_ && matched == open_matched;
      break;
  }
  if (!joins) flush();
  // A part that took a match in ends there: a match after it stands alone.
  open_ = Part{joins ? open_->begin : begin, end, matched};
}

}  // namespace vayu
