// A slot is what llama.cpp's server calls the place of a sequence: here a view of one that runs or
// waits, by a number that is free again when it has ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/sampler.h"

namespace kvlathe::api {

// Constant once it is taken, but for what was generated.
struct Slot {
  int id = 0;
  std::string request_id;
  std::string level;
  int64_t n_prompt = 0;  // tokens
  int64_t max_tokens = 0;
  SamplingParams sampling;
  std::atomic<int64_t> n_generated = 0;
};

// Any thread may use it.
class SlotTable {
 public:
  // Gives `slot` the lowest free number, which it keeps as long as somebody holds it.
  void Take(const std::shared_ptr<Slot>& slot);
  // By number; null: free. At least `n_least` of them.
  std::vector<std::shared_ptr<const Slot>> Slots(int n_least) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Slot>> slots_;  // under mutex_
};

}  // namespace kvlathe::api
