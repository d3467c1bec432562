// Quality says how much a lossy cache changes the model: perplexity, KL divergence to the
// uncompressed model and top-1 agreement, as docs/evaluation.md defines them.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "evaluation/kl_tail.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/sequence_cache.h"
#include "model/model.h"

namespace kvlathe {

// Called now and then with what is being done and the share that is done, in [0, 1].
using Progress = std::function<void(const std::string& what, double fraction)>;

// A text cut into windows without overlap. Every window starts with BOS where the model has one.
// The first half of a window is read as a prompt; the tokens of the second half are scored.
struct EvaluationText {
  std::vector<std::vector<int32_t>> windows;
  // Bytes that each token stands for in the text; counted for the scored tokens.
  std::vector<std::vector<int>> token_bytes;

  int64_t n_scored() const;
};

// kInvalidArgument when the text is shorter than two tokens. A rest shorter than a window is left
// out when there is at least one whole window.
StatusOr<EvaluationText> CutIntoWindows(std::span<const int32_t> tokens,
                                        const std::function<int(int32_t)>& bytes_of_token,
                                        std::optional<int32_t> bos, int window_tokens);

// The quality of the scored tokens in one of kStretches equal stretches of the second halves of the
// windows.
struct StretchQuality {
  double kl = 0;
  // Mean over tokens of |l - b| / |b| with l this model's logits and b the baseline's, each less
  // its mean over the vocabulary, which no probability depends on.
  double logit_deviation = 0;
  double top1_agreement = 0;
  int64_t n_tokens = 0;
};
inline constexpr int kStretches = 8;

struct Quality {
  double perplexity = 0;
  // Perplexity over the baseline's, less 1, and its standard error from the differences token by
  // token: far smaller than that of either perplexity, which is mostly the text's.
  double perplexity_change = 0;
  double perplexity_change_stderr = 0;
  double bits_per_byte = 0;
  double kl = 0;         // nats per token, of the baseline's distribution to this one's
  double kl_stderr = 0;  // standard error of that mean
  double top1_agreement = 0;
  KlTail kl_tail;
  int64_t n_tokens = 0;                    // scored
  std::vector<StretchQuality> over_steps;  // [kStretches], the first tokens after the prompt first
  double kv_fraction = 0;                  // at a window's end
  double kv_bytes_per_token = 0;           // at a window's end
  KvBytes kv_bytes;                        // of the last window
  Reencoding reencoding;                   // the same
  int64_t kv_reserved_bytes = 0;           // taken from the system at a window's end
  double kv_peak_fraction = 0;  // most bytes held at any time of a window / the same reference
};

// Scores every model on the same windows; models[0] is the baseline of kl and top1_agreement. The
// caches of one model take `kv_budget_bytes` at most; where a cache takes few tokens in a step,
// several windows are scored side by side within them. kDataLoss, with window and model, when rows
// or logits are not finite, or when logits are too far apart for what compares them to be a number.
StatusOr<std::vector<Quality>> MeasureQuality(std::span<Model* const> models,
                                              const EvaluationText& text, int64_t kv_budget_bytes,
                                              ThreadPool* threads, const Progress& progress);

// Time to first token and mean time between tokens, milliseconds: the prompt is the first half of
// the first window, then 16 tokens follow one by one. Medians over all repetitions.
struct Latency {
  double ttft_ms = 0;
  double tbt_ms = 0;
};
StatusOr<Latency> MeasureLatency(Model* model, std::span<const int32_t> window,
                                 int64_t kv_budget_bytes, int n_repetitions);

// Feeds `tokens` in chunks of at most kChunkTokens and of one run each; logits of the last token.
// They are the prompt when the cache is empty, and go on with what it holds otherwise.
inline constexpr int kChunkTokens = 512;
Status Prefill(Model* model, SequenceCache* cache, std::span<const int32_t> tokens,
               QkvObserver* observer = nullptr);

}  // namespace kvlathe
