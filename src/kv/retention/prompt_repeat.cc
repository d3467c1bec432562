#include "kv/retention/prompt_repeat.h"

#include <algorithm>

namespace kvlathe {

std::vector<int32_t> PromptRepeat::Next(std::span<const int32_t> prompt, int64_t n_max) const {
  if (is_done()) return {};
  const std::vector<int32_t> chunk = Chunk(prompt);
  const int64_t end = std::min<int64_t>(std::ssize(chunk), n_read_ + n_max);
  return {chunk.begin() + n_read_, chunk.begin() + end};
}

bool PromptRepeat::Advance(std::span<const int32_t> prompt, int64_t n_read) {
  n_read_ += n_read;
  if (n_read_ < std::ssize(Chunk(prompt))) return false;
  n_read_ = 0;
  ++chunk_idx_;
  return true;
}

std::vector<int32_t> PromptRepeat::Chunk(std::span<const int32_t> prompt) const {
  const int64_t begin = chunk_idx_ * plan_->chunk;
  const int64_t n = std::min<int64_t>(plan_->chunk, n_context_ - begin);
  std::vector<int32_t> tokens = chunk_idx_ == 0 ? plan_->first_words : plan_->later_words;
  const auto add = [&tokens](std::span<const int32_t> more) {
    tokens.insert(tokens.end(), more.begin(), more.end());
  };
  const int64_t n_carried = std::min<int64_t>(RepeatPlan::kCarried, begin);
  add(prompt.subspan(begin - n_carried, n_carried));
  add(plan_->end_words);
  add(prompt.subspan(begin, n));
  return tokens;
}

}  // namespace kvlathe
