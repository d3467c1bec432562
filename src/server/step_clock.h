// A StepClock knows when the engine computed last.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>

namespace kvlathe::server {

// Written by the thread that steps, read by any.
class StepClock {
 public:
  using Clock = std::chrono::steady_clock;

  void Begin() { began_ = Now(); }
  void End(bool failed) {
    last_failed_ = failed;
    ended_ = Now();
    began_ = kNever;
  }

  // How long the step under way takes already; negative when there is none.
  double SecondsUnderWay() const {
    const int64_t began = began_;
    return began == kNever ? -1 : SecondsSince(began);
  }
  // Since the last step ended without an error of its own; infinite when there was none, or when
  // the last one failed.
  double SecondsSinceGoodStep() const {
    const int64_t ended = ended_;
    return ended == kNever || last_failed_ ? std::numeric_limits<double>::infinity()
                                           : SecondsSince(ended);
  }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::min();
  static int64_t Now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
        .count();
  }
  static double SecondsSince(int64_t time) { return static_cast<double>(Now() - time) * 1e-9; }

  std::atomic<int64_t> began_ = kNever;
  std::atomic<int64_t> ended_ = kNever;
  std::atomic<bool> last_failed_ = false;
};

}  // namespace kvlathe::server
