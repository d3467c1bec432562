#include "evaluation/short_loss.h"

#include <algorithm>

#include "evaluation/drift_steps.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/seal/seal_schedule.h"

namespace kvlathe {
namespace {

constexpr int kLeastPrompt = 32;  // of which nothing is compared but what follows its last token
constexpr int kLeastCompared = 24;
// Rows of logits that a forward makes. Their room stays with the model, a row 0.6 MB at 151,936
// ids, but the uncompressed model goes when it has been read.
constexpr int kShortPieceTokens = 16, kBaselinePieceTokens = 64;

// Feeds the text from `begin` on in pieces. After each, fn(first, n): the rows [0, n) of the
// model's logits are those behind the tokens from `first` on.
template <typename F>
Status ReadOn(Model* model, SequenceCache* cache, std::span<const int32_t> text, int begin,
              int piece, const F& fn) {
  const int n_text = static_cast<int>(text.size());
  while (begin < n_text) {
    const auto n = static_cast<int>(std::min<int64_t>({piece, n_text - begin, cache->max_step()}));
    KVL_RETURN_IF_ERROR(cache->Extend(n));
    const SequenceStep step{cache, text.subspan(begin, n), SequenceStep::Logits::kAll};
    KVL_RETURN_IF_ERROR(model->Forward({&step, 1}));
    KVL_RETURN_IF_ERROR(fn(begin, n));
    begin += n;
  }
  return OkStatus();
}

}  // namespace

int PromptOfShortText(const CacheLayout& layout, int n_text) {
  const int most = std::max(kLeastPrompt, n_text - kLeastCompared);
  for (int n_prompt = kLeastPrompt; n_prompt <= most; ++n_prompt) {
    if (SealedBlocks(layout, n_prompt, n_prompt) > 0) return n_prompt;
  }
  return std::max(kLeastPrompt, std::min(most, n_text * 3 / 4));
}

StatusOr<ShortTextBaseline> ShortTextBaseline::Read(Model* none, std::span<const int32_t> tokens,
                                                    int64_t kv_budget_bytes) {
  ShortTextBaseline baseline;
  const std::span<const int32_t> text = tokens.first(std::min<size_t>(
      {tokens.size(), kShortTextTokens, static_cast<size_t>(none->config().max_seq_len)}));
  if (text.size() <= kLeastPrompt) {
    return Error(StatusCode::kInvalidArgument,
                 "a text of {} tokens is too short to compare caches; it takes {}", text.size(),
                 kLeastPrompt + 1);
  }
  baseline.tokens_.assign(text.begin(), text.end());
  baseline.vocab_size_ = none->config().vocab_size;
  BlockPool pool(kv_budget_bytes, &none->machine().memory());
  SequenceCache cache(&none->layout(), &pool);
  cache.set_n_prompt(std::ssize(text));
  KVL_RETURN_IF_ERROR(Prefill(none, &cache, text.first(kLeastPrompt)));
  const auto keep = [&](int64_t n_rows) {
    for (int64_t row = 0; row < n_rows; ++row) {
      const std::span<const float> logits = none->logits(row);
      baseline.logits_.insert(baseline.logits_.end(), logits.begin(), logits.end());
    }
    return OkStatus();
  };
  KVL_RETURN_IF_ERROR(keep(1));
  KVL_RETURN_IF_ERROR(ReadOn(none, &cache, text, kLeastPrompt, kBaselinePieceTokens,
                             [&](int, int n_rows) { return keep(n_rows); }));
  return baseline;
}

StatusOr<ShortLoss> ShortTextBaseline::Compare(Model* model, int64_t kv_budget_bytes,
                                               ThreadPool* threads) const {
  const int n_text = static_cast<int>(tokens_.size());
  const int n_prompt = PromptOfShortText(model->layout(), n_text);
  BlockPool pool(kv_budget_bytes, &model->machine().memory());
  SequenceCache cache(&model->layout(), &pool);
  cache.set_n_prompt(n_prompt, n_text - n_prompt);
  ShortLoss loss;
  const auto compare = [&](int first, int n_rows) -> Status {
    std::vector<StepScore> base(n_rows), found(n_rows);
    ForEach(threads, n_rows, [&](size_t row) {
      const size_t at = (first + row - (kLeastPrompt - 1)) * vocab_size_;
      const std::span<const float> logits(logits_.data() + at, vocab_size_);
      base[row] = ScoreStep(logits);
      if (base[row].finite) {
        found[row] =
            CompareStep(logits, base[row].log_sum, model->logits(static_cast<int64_t>(row)));
      }
    });
    for (int row = 0; row < n_rows; ++row) {
      if (!found[row].finite) {
        return Error(StatusCode::kDataLoss,
                     "the logits behind token {} of a short text are not finite", first + row);
      }
      loss.kl += found[row].kl;
      loss.top1_agreement += found[row].likeliest == base[row].likeliest;
      ++loss.n_tokens;
    }
    return OkStatus();
  };
  const std::span<const int32_t> text = tokens_;
  KVL_RETURN_IF_ERROR(Prefill(model, &cache, text.first(n_prompt)));
  KVL_RETURN_IF_ERROR(compare(n_prompt - 1, 1));
  KVL_RETURN_IF_ERROR(ReadOn(model, &cache, text, n_prompt, kShortPieceTokens, compare));
  loss.kl /= loss.n_tokens;
  loss.top1_agreement /= loss.n_tokens;
  return loss;
}

}  // namespace kvlathe
