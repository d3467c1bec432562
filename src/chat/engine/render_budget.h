// What one render of a template may take. A template comes with a model's file, so nobody vouches
// for it: the engine that runs it (cmake/jinja.patch adds the calls) counts steps, nesting, bytes
// and time here, and stops with an exception where one of them is spent.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace kvlathe::jinja_budget {

struct Limits {
  int64_t max_steps = 2'000'000;  // statements and expressions that are executed
  int64_t max_bytes = 256 << 20;  // text and values that are made, also those dropped again
  int max_depth = 600;            // of calls in calls, and of lists in lists
  std::chrono::milliseconds max_time{2000};
};

// Deliberately no std::exception: the engine turns those into errors with a place in the template.
struct Spent {
  const char* what;  // "steps", "bytes", "depth" or "time"
};

// Of the render that runs on this thread.
class Budget {
 public:
  explicit Budget(const Limits& limits)
      : limits_(limits), end_(std::chrono::steady_clock::now() + limits.max_time) {
    outer_ = current_;
    current_ = this;
  }
  ~Budget() {
    current_ = outer_;
    for (const Kept& kept : kept_) kept.empty(kept.container.get());
  }
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // Null: nothing is rendered here, as while a template is parsed.
  static Budget* Current() { return current_; }

  void Step() {
    if (++n_steps_ > limits_.max_steps) throw Spent{"steps"};
    const bool reads_clock = n_steps_ % 16 == 0;
    if (reads_clock && std::chrono::steady_clock::now() > end_) throw Spent{"time"};
  }
  void Bytes(size_t n) {
    if (n > static_cast<size_t>(limits_.max_bytes - n_bytes_)) throw Spent{"bytes"};
    n_bytes_ += static_cast<int64_t>(n);
  }
  // Containers are kept until the render ends and then emptied one by one: a list that holds itself
  // is freed, and one that is nested deeply is not freed by a recursion as deep.
  void Keep(std::shared_ptr<void> container, void (*empty)(void*)) {
    kept_.push_back({std::move(container), empty});
  }

  int depth = 0;
  int max_depth() const { return limits_.max_depth; }

 private:
  struct Kept {
    std::shared_ptr<void> container;
    void (*empty)(void*);
  };
  static inline thread_local Budget* current_ = nullptr;

  Limits limits_;
  std::chrono::steady_clock::time_point end_;
  Budget* outer_;
  int64_t n_steps_ = 0;
  int64_t n_bytes_ = 0;
  std::vector<Kept> kept_;
};

inline void Step() {
  if (Budget* const budget = Budget::Current()) budget->Step();
}
inline void Bytes(size_t n) {
  if (Budget* const budget = Budget::Current()) budget->Bytes(n);
}

// One level deeper while it lives. The limit of templates that are parsed is their own.
class Deeper {
 public:
  Deeper() {
    if (++Depth() > Limit()) {
      --Depth();
      throw Spent{"depth"};
    }
  }
  ~Deeper() { --Depth(); }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  static int& Depth() {
    static thread_local int parse_depth = 0;
    Budget* const budget = Budget::Current();
    return budget != nullptr ? budget->depth : parse_depth;
  }
  static int Limit() {
    constexpr int kMaxParseDepth = 200;
    Budget* const budget = Budget::Current();
    return budget != nullptr ? budget->max_depth() : kMaxParseDepth;
  }
};

}  // namespace kvlathe::jinja_budget
