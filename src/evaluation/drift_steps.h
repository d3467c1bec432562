// A measurement of drift is made of these steps: sequences that decode together, what the logits of
// a step say, and how likely a written text is.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/sequence_cache.h"
#include "model/model.h"

namespace kvlathe {

// What the logits of one step say; nothing else of it means anything where they are not finite.
struct StepScore {
  bool finite = false;
  int32_t likeliest = 0;
  double log_sum = 0;  // log(sum(exp(logits)))
  double kl = 0;       // of another model's distribution to this one's

  double NllOf(int32_t token, std::span<const float> logits) const {
    return log_sum - logits[token];
  }
};

StepScore ScoreStep(std::span<const float> logits);
// With kl from the distribution of `base`, whose log_sum is base_log_sum. Not finite either where
// the two are too far apart.
StepScore CompareStep(std::span<const float> base, double base_log_sum,
                      std::span<const float> logits);

// The error of logits that are not finite, behind that prompt and for that generated token.
Status NotFinite(size_t prompt, size_t token);

// fn(i) for i in [0, n), shared by all workers.
template <typename F>
void ForEach(ThreadPool* threads, size_t n, const F& fn) {
  threads->Run([&](int worker_id) {
    const Range share = ShareOf(static_cast<int64_t>(n), 1, worker_id, threads->n_workers());
    for (int64_t i = share.begin; i < share.end; ++i) fn(static_cast<size_t>(i));
  });
}

// Sequences of one model that decode together: one for each prompt, and behind them those that
// branched off. Errors name the prompt and the token that they kept from being known.
class TextDecoder {
 public:
  // The prompts outlive it. n_tokens follow each.
  TextDecoder(Model* model, std::span<const std::vector<int32_t>> prompts, int n_tokens,
              int64_t kv_budget_bytes)
      : model_(model),
        prompts_(prompts),
        n_tokens_(n_tokens),
        pool_(kv_budget_bytes, &model->machine().memory()) {}

  Status ReadPrompts();
  // One more sequence, which is what that of this prompt is now.
  Status Branch(size_t prompt);
  // Feeds each sequence a token.
  Status Step(std::span<const int32_t> tokens);

  // The logits of the next token of a sequence; valid until the next step. A sequence that branched
  // off has them from its first step on.
  std::span<const float> logits(size_t sequence) const {
    return n_fed_ == 0 ? prompt_logits_[sequence] : model_->logits(static_cast<int64_t>(sequence));
  }
  size_t n_sequences() const { return sequences_.size(); }
  size_t prompt_of(size_t sequence) const { return sequences_[sequence].prompt; }
  // The mean over the sequences that did not branch off.
  double MeanKvFraction() const;

 private:
  struct Sequence {
    size_t prompt;
    std::unique_ptr<SequenceCache> cache;
  };

  Model* model_;
  std::span<const std::vector<int32_t>> prompts_;
  int n_tokens_;
  BlockPool pool_;
  size_t n_fed_ = 0;  // behind the prompt, to every sequence
  std::vector<Sequence> sequences_;
  std::vector<std::vector<float>> prompt_logits_;
};

// Sum of the negative log-likelihoods that the model gives to text[first...], behind the prompt and
// what comes before each.
StatusOr<double> NllOfText(Model* model, std::span<const int32_t> prompt,
                           std::span<const int32_t> text, size_t first, int64_t kv_budget_bytes,
                           ThreadPool* threads);

}  // namespace kvlathe
