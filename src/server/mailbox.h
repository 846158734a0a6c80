// Deltas on their way from the engine thread to a connection. Bounded: what a slow client leaves lying sets overflow.
#pragma once

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "core/engine_client.h"

namespace vayu::server {

class Mailbox {
 public:
  struct Item {
    size_t prompt = 0;  // index of the prompt in the HTTP request
    SequenceDelta delta;
  };

  // `wake` is called (under the lock, so it must only post) when the box stops being empty or overflows.
  Mailbox(size_t max_pending_tokens, std::function<void()> wake)
      : max_pending_tokens_(max_pending_tokens), wake_(std::move(wake)) {}

  void push(size_t prompt, SequenceDelta&& delta) {
    std::lock_guard lock(mutex_);
    if (closed_ || overflow_) return;
    pending_tokens_ += delta.tokens.size();
    overflow_ = pending_tokens_ > max_pending_tokens_;
    if (overflow_)
      items_.clear();
    else
      items_.push_back({prompt, std::move(delta)});
    if (overflow_ || items_.size() == 1) wake_();
  }

  std::vector<Item> take() {
    std::lock_guard lock(mutex_);
    pending_tokens_ = 0;
    return std::exchange(items_, {});
  }

  bool overflow() const {
    std::lock_guard lock(mutex_);
    return overflow_;
  }

  // After this the engine may go on pushing; nothing is kept and nobody is woken. The engine's last reference to the
  // box may outlive the server, so `wake` and what it holds go now.
  void close() {
    std::lock_guard lock(mutex_);
    closed_ = true;
    items_.clear();
    wake_ = nullptr;
  }

 private:
  const size_t max_pending_tokens_;
  mutable std::mutex mutex_;
  std::function<void()> wake_;  // null once closed
  std::vector<Item> items_;
  size_t pending_tokens_ = 0;
  bool overflow_ = false;
  bool closed_ = false;
};

}  // namespace vayu::server
