#include <utility>

#include "tokenizer/word_model.h"

namespace kvlathe {

std::unique_ptr<TokenizeScratch> ScratchPool::Take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto scratch = std::move(idle_.back());
      idle_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<TokenizeScratch>();
}

void ScratchPool::Return(std::unique_ptr<TokenizeScratch> scratch) {
  // What one giant text needed is not kept for the small ones that follow.
  constexpr size_t kMaxKeptSymbols = size_t{1} << 18;
  if (scratch->symbols.capacity() > kMaxKeptSymbols) return;
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(scratch));
}

}  // namespace kvlathe
