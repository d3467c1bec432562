// A replay reads an answer that was given once more, with the uncompressed cache and with another
// one, and compares what the two say at every position of the answer. It goes step by step, so that
// whoever has other work can do that in between.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/sequence_cache.h"
#include "model/model.h"

namespace kvlathe {

// An answer as an engine gave it.
struct GivenAnswer {
  std::vector<int32_t> tokens;  // what was read, and the answer behind it
  int64_t n_read = 0;           // of them, at least 1
  // SequenceCache::set_n_prompt: n_cache_prompt is less than n_read where the request went on
  // behind an earlier answer, and n_generated is what the request might have generated.
  int64_t n_cache_prompt = 0;
  int64_t n_generated = 0;

  int64_t n_answer() const { return static_cast<int64_t>(tokens.size()) - n_read; }
};

// kInvalidArgument where the numbers do not fit each other, or tokens are not of the vocabulary.
Status CheckAnswer(const GivenAnswer& answer, int vocab_size);

// What a replay has compared.
struct ReplayScore {
  // Nats, of the distribution under `none` to that under the cache: [positions of the answer]. The
  // entry of a token is of the distribution that it was drawn from.
  std::vector<double> kl;
  int64_t n_agree = 0;                  // positions with the same likeliest token
  std::optional<int64_t> first_parted;  // the first position where it is another
};

// Sealing depends on where the prompt ends and on positions alone, so both caches hold what they
// would hold if they had given the answer: prompts in runs, answers buffer by buffer.
class AnswerReplay {
 public:
  // Tokens of one step. Of the answer a step takes fewer where logits are long or a cache must drop
  // entries in between.
  static constexpr int kStepTokens = 64;
  static constexpr int64_t kMaxLogitBytes = int64_t{16} << 20;

  // `none` and `model` have the same weights, `layout` is of `model`; all outlive the replay, and
  // so does `pool`, which holds both caches. The answer has passed CheckAnswer and is not empty.
  AnswerReplay(GivenAnswer answer, Model* none, Model* model, const CacheLayout* layout,
               BlockPool* pool);

  // An upper bound of what both caches take of the pool.
  static int64_t PeakBytes(const GivenAnswer& answer, const Model& none, const CacheLayout& layout);

  // At most kStepTokens of one cache, or of the answer in both. kResourceExhausted where the pool
  // has no room, kDataLoss where logits are not finite; then the replay is over.
  Status Step(ThreadPool* threads);
  bool is_done() const { return n_scored() == answer_.n_answer(); }

  int64_t n_scored() const { return static_cast<int64_t>(score_.kl.size()); }
  const ReplayScore& score() const { return score_; }

 private:
  struct Reader {
    Model* model;
    SequenceCache cache;
  };

  Status Feed(Reader* reader, int64_t n_tokens, SequenceStep::Logits logits) const;
  int64_t NextOfPrompt(const Reader& reader) const;
  Status ReadPrompt(Reader* reader);
  Status ReadAnswer(ThreadPool* threads);

  GivenAnswer answer_;
  Reader none_;
  Reader other_;
  ReplayScore score_;
};

}  // namespace kvlathe
