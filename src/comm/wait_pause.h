// How long a rank that waits leaves the processor between two looks: at first not at all, because
// most answers come within microseconds; then it lets others run; then it sleeps an eighth of what
// it has waited so far, at most a millisecond. So a wait lasts at most an eighth longer than it
// must, and an idle rank uses about a percent of a processor.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace kvlathe {

class WaitPause {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns the time at which the next look is due, which is now.
  Clock::time_point Next() {
    const Clock::duration waited = Clock::now() - start_;
    if (waited >= kSleepsAfter) {
      std::this_thread::sleep_for(std::min<Clock::duration>(waited / 8, kLongestSleep));
    } else if (waited >= kYieldsAfter) {
      std::this_thread::yield();
    }
    return Clock::now();
  }

 private:
  static constexpr std::chrono::microseconds kYieldsAfter{30};
  static constexpr std::chrono::microseconds kSleepsAfter{200};
  static constexpr std::chrono::milliseconds kLongestSleep{1};
  Clock::time_point start_ = Clock::now();
};

}  // namespace kvlathe
