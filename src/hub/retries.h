// When what a hub did not finish is asked for again.
#pragma once

#include <chrono>
#include <thread>

#include "base/status.h"

namespace kvlathe {

class Retries {
 public:
  explicit Retries(std::chrono::milliseconds wait) : wait_(wait) {}

  // Whether to try again after this error, having waited: an interruption that brought bytes always
  // (kMostTries times), one that brought none kMostIdleTries times, silence never.
  bool Again(const Status& error, bool has_brought_bytes) {
    const bool is_silence = error.code() == absl::StatusCode::kDeadlineExceeded;
    if (error.code() != absl::StatusCode::kAborted && !is_silence) return false;
    n_idle_ = has_brought_bytes ? 0 : n_idle_ + 1;
    if (++n_tries_ >= kMostTries || n_idle_ >= (is_silence ? 1 : kMostIdleTries)) return false;
    std::this_thread::sleep_for(wait_ * (1 << n_idle_));
    return true;
  }

 private:
  static constexpr int kMostTries = 50, kMostIdleTries = 3;

  std::chrono::milliseconds wait_;
  int n_tries_ = 0, n_idle_ = 0;
};

}  // namespace kvlathe
