#include "server/api/slot_table.h"

#include <algorithm>
#include <utility>

namespace kvlathe::api {

void SlotTable::Take(const std::shared_ptr<Slot>& slot) {
  const std::lock_guard lock(mutex_);
  auto free = std::ranges::find_if(slots_, [](const auto& taken) { return taken.expired(); });
  if (free == slots_.end()) free = slots_.emplace(slots_.end());
  slot->id = static_cast<int>(free - slots_.begin());
  *free = slot;
}

std::vector<std::shared_ptr<const Slot>> SlotTable::Slots(int n_least) const {
  std::vector<std::shared_ptr<const Slot>> slots;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& slot : slots_) slots.push_back(slot.lock());
  }
  while (std::ssize(slots) > n_least && slots.back() == nullptr) slots.pop_back();
  if (std::ssize(slots) < n_least) slots.resize(static_cast<size_t>(n_least));
  return slots;
}

void SlotTable::Remember(const std::string& tenant, int id, SavedPrompt held) {
  const std::lock_guard lock(mutex_);
  held_[{tenant, id}] = std::move(held);
}

std::optional<SavedPrompt> SlotTable::Held(const std::string& tenant, int id) const {
  const std::lock_guard lock(mutex_);
  const auto held = held_.find({tenant, id});
  return held == held_.end() ? std::nullopt : std::optional(held->second);
}

int64_t SlotTable::Forget(const std::string& tenant, int id) {
  const std::lock_guard lock(mutex_);
  const auto forgotten = held_.extract({tenant, id});
  return forgotten.empty() ? 0 : std::ssize(forgotten.mapped().tokens);
}

}  // namespace kvlathe::api
