// What is read behind a prompt for votes alone (RetentionPlan::Votes::kRepeat): the prompt once
// more, chunk by chunk, each behind words that ask for it. Every chunk is read behind all but the
// last token of the prompt, and is forgotten before the next one (SequenceCache::ExtendOnTrial,
// TakeBack).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/retention/retention_plan.h"

namespace kvlathe {

class PromptRepeat {
 public:
  PromptRepeat(const RepeatPlan* plan, int64_t n_prompt) : plan_(plan), n_context_(n_prompt - 1) {}

  // Whether all chunks have been read.
  bool is_done() const { return chunk_idx_ >= n_chunks(); }
  // The next tokens, at most n_max and of one chunk. `prompt` has its tokens, and may have more
  // behind them.
  std::vector<int32_t> Next(std::span<const int32_t> prompt, int64_t n_max) const;
  // Says that so many of them have been read. Whether they end their chunk, which is to be
  // forgotten then.
  bool Advance(std::span<const int32_t> prompt, int64_t n_read);

 private:
  int64_t n_chunks() const { return (n_context_ + plan_->chunk - 1) / plan_->chunk; }
  // The words and tokens of the chunk at work.
  std::vector<int32_t> Chunk(std::span<const int32_t> prompt) const;

  const RepeatPlan* plan_;
  int64_t n_context_;      // tokens that are read again
  int64_t chunk_idx_ = 0;  // of the chunk at work
  int64_t n_read_ = 0;     // of it
};

}  // namespace kvlathe
