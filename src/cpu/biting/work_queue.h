// Work that was asked for and has not run.
#pragma once

#include <deque>
#include <functional>
#include <utility>

namespace kvlathe {

class WorkQueue {
 public:
  void Add(std::function<void()> work) { works_.push_back(std::move(work)); }
  // Runs everything, in the order in which it was asked for.
  void Run() {
    while (!works_.empty()) {
      const std::function<void()> work = std::move(works_.front());
      works_.pop_front();
      work();
    }
  }
  void Drop() { works_.clear(); }
  bool empty() const { return works_.empty(); }

 private:
  std::deque<std::function<void()>> works_;
};

}  // namespace kvlathe
