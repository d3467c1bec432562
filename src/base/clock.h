// A Stopwatch measures wall time for progress, latency and benchmarks.
#pragma once

#include <chrono>
#include <optional>

namespace kvlathe {

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  double Milliseconds() const { return Seconds() * 1e3; }
  void Restart() { start_ = std::chrono::steady_clock::now(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Adds the seconds of a scope to a counter.
class ScopedTimer {
 public:
  explicit ScopedTimer(double* seconds) : seconds_(seconds) {}
  ~ScopedTimer() { *seconds_ += watch_.Seconds(); }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  double* seconds_;
  Stopwatch watch_;
};

// The same, for a counter that may be null: then no clock is read.
class OptionalTimer {
 public:
  explicit OptionalTimer(double* seconds) {
    if (seconds != nullptr) timer_.emplace(seconds);
  }

 private:
  std::optional<ScopedTimer> timer_;
};

}  // namespace kvlathe
