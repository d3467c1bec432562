// How far a cache is from the uncompressed one on a short text, in little time: for a word of
// warning before a cache is used. `compare` and `eval` say it exactly.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "evaluation/quality.h"
#include "kv/cache_layout.h"
#include "model/model.h"

namespace kvlathe {

// The most tokens of the text that are read, BOS among them.
inline constexpr int kShortTextTokens = 160;

struct ShortLoss {
  double kl = 0;  // nats per token, of the uncompressed distribution to that under the cache
  double top1_agreement = 0;
  int n_tokens = 0;  // compared
};

// How many tokens of a short text are its prompt. Blocks of 64 entries are sealed behind the sinks
// where the prompt ends, and nothing newer than `newest` is. So the prompt is the shortest with
// which a block is sealed: all tokens behind it read compressed rows, and there are as many of them
// as there can be. Where nothing is sealed so early, and where nothing is sealed at all (bases,
// retention), the prompt takes most of the text: a cache that drops entries reads what follows
// token by token, which costs more time than the prompt.
int PromptOfShortText(const CacheLayout& layout, int n_text);

// What the uncompressed model says of the text; every cache is held against it.
class ShortTextBaseline {
 public:
  // Reads at most kShortTextTokens of `tokens`, which begin with BOS where the model has one.
  // kInvalidArgument where there are too few to compare anything.
  static StatusOr<ShortTextBaseline> Read(Model* none, std::span<const int32_t> tokens,
                                          int64_t kv_budget_bytes);

  // The text under a cache: its prompt at once, the tokens behind it as if they were generated.
  // Methods seal, drop and merge as they do anywhere. kDataLoss where logits are not finite.
  StatusOr<ShortLoss> Compare(Model* model, int64_t kv_budget_bytes, ThreadPool* threads) const;

 private:
  std::vector<int32_t> tokens_;
  int vocab_size_ = 0;
  std::vector<float> logits_;  // behind each token from kLeastPrompt - 1 on, [vocab_size] each
};

}  // namespace kvlathe
