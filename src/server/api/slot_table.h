// A slot is what llama.cpp's server calls the place of a sequence: here a view of one that runs or
// waits, by a number that is free again when it has ended. What it held last is remembered by its
// number, for each tenant, so that it can be saved by name.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampler.h"
#include "server/api/saved_prompts.h"

namespace kvlathe::api {

// Constant once it is taken, but for what was generated.
struct Slot {
  int id = 0;
  std::string request_id;
  std::string level;
  int64_t n_prompt = 0;  // tokens
  int64_t max_tokens = 0;
  SamplingParams sampling;
  std::string tenant;
  std::optional<int> keep_as;  // the number that it is remembered by, where a request names one
  SavedPrompt held;            // what it will hold: of the prompt, until it has ended
  std::atomic<int64_t> n_generated = 0;
};

// Any thread may use it.
class SlotTable {
 public:
  // Gives `slot` the lowest free number, which it keeps as long as somebody holds it.
  void Take(const std::shared_ptr<Slot>& slot);
  // By number; null: free. At least `n_least` of them.
  std::vector<std::shared_ptr<const Slot>> Slots(int n_least) const;

  // What the slot of this number held last for the tenant; none where that is nothing.
  void Remember(const std::string& tenant, int id, SavedPrompt held);
  std::optional<SavedPrompt> Held(const std::string& tenant, int id) const;
  // How many tokens are forgotten.
  int64_t Forget(const std::string& tenant, int id);

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, SavedPrompt> held_;  // under mutex_
  std::vector<std::weak_ptr<Slot>> slots_;                   // under mutex_
};

}  // namespace kvlathe::api
