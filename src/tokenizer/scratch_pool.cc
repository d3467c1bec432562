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
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(scratch));
}

}  // namespace kvlathe
