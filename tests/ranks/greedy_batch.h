// Tests decode several sequences greedily in one ragged batch: each reads its prompt in chunks of
// its own, while others decode already.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kv/blocks/block_pool.h"
#include "kv/blocks/sequence_cache.h"
#include "model/model.h"

namespace kvlathe::testing {

struct PromptToRead {
  std::vector<int32_t> ids;
  int chunk = 1;                                              // positions of a step
  SequenceStep::Logits logits = SequenceStep::Logits::kLast;  // of chunks before the last one
};

class GreedyBatch {
 public:
  // Both outlive it.
  GreedyBatch(Model* model, BlockPool* pool, const std::vector<PromptToRead>& prompts,
              int n_to_decode);

  // False when all sequences have decoded what they are to decode. A step that fails is a failure
  // of the test.
  bool Step();

  const SequenceCache& cache(size_t i) const { return *sequences_[i].cache; }
  size_t size() const { return sequences_.size(); }
  // Decoded tokens.
  const std::vector<int32_t>& tokens(size_t i) const { return sequences_[i].tokens; }
  // All logits of sequence i in the order of its positions.
  const std::vector<std::vector<float>>& logits(size_t i) const { return sequences_[i].logits; }

 private:
  struct Sequence {
    PromptToRead prompt;
    std::unique_ptr<SequenceCache> cache;
    size_t n_read = 0;  // of the prompt
    std::vector<int32_t> tokens;
    std::vector<std::vector<float>> logits;
  };

  SequenceStep NextOf(Sequence* sequence) const;

  Model* model_;
  int n_to_decode_;
  std::vector<Sequence> sequences_;
};

// Prompts of random tokens of so many lengths and chunks.
std::vector<PromptToRead> RandomPrompts(const std::vector<int>& lengths,
                                        const std::vector<int>& chunks, int vocab_size);

// The largest KL divergence of softmax(b) from softmax(a), row by row, in nats.
double LargestKl(const std::vector<std::vector<float>>& a,
                 const std::vector<std::vector<float>>& b);

}  // namespace kvlathe::testing
