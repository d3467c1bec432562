// Drift is how far free generation under a lossy cache departs from the uncompressed model's.
//
// A text is cut into prompts. Behind each of them the uncompressed cache (`none`) generates
// its text, n tokens, greedily. The end of a sequence is a token like any other there: generation
// goes on after it, so that every text has n tokens.
//
// The lossy cache reads the same prompt and then the same n tokens one by one, as if it had
// generated them itself: a token a step, sealing, dropping and merging on its way. At every step
// the distributions over the next token are compared. The first step at which another token is the
// likeliest is exactly where free greedy generation under the cache parts from that under `none`,
// because until there both read the same. From there the cache generates a second text freely, up
// to n tokens, beside the one it is given. What it wrote from the parting on, the token that parts
// included, is scored by the uncompressed model: `text_nll`, to be held against `own_nll`, what
// that gives to its own tokens at the same steps of the same prompts. A text may be likely because
// it goes round in circles, so repetition is counted too.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "evaluation/quality.h"
#include "model/model.h"

namespace kvlathe {

struct DriftOptions {
  int n_prompts = 4;
  int prompt_tokens = 512;  // of each, with BOS, at least 2
  int n_tokens = 1000;      // generated behind each, at least kStretches
};

struct DriftPlan {
  std::vector<std::vector<int32_t>> prompts;  // at least one
  int n_tokens = 0;
};

// The first pieces of the text without overlap, each with BOS in front where the model has one.
// kInvalidArgument when the text has fewer, or when prompt and generated tokens do not fit the
// context.
StatusOr<DriftPlan> PlanDrift(std::span<const int32_t> tokens, std::optional<int32_t> bos,
                              const DriftOptions& options, int context_tokens);

// The drift of one cache. Means are over all steps of all prompts where nothing else is said.
struct Drift {
  // Tokens generated before the likeliest was another than that of `none`; n_tokens when it never
  // was. [n_prompts]
  std::vector<int> parted_at;
  double mean_parted_at = 0;
  double median_parted_at = 0;
  int n_never_parted = 0;
  double kl = 0;  // nats, of the distribution under `none` to that under the cache
  // Standard error of that mean from the means of the prompts, since the steps of one text hang
  // together; none with a single prompt.
  std::optional<double> kl_stderr;
  std::array<double, kStretches> kl_over_steps = {};  // in equal stretches of the n tokens
  double top1_agreement = 0;
  // Mean negative log-likelihoods under `none` of the tokens from the parting on: freely generated
  // under the cache, and its own of the same prompts and steps. None when no prompt parted.
  std::optional<double> text_nll;
  std::optional<double> own_nll;
  // Share of the 4-grams of the freely generated text that stood in it before; mean over prompts.
  double repeats = 0;
  double none_repeats = 0;
  double kv_fraction = 0;  // at the end, with what all but the last token left; mean over prompts
  // Generated freely under the cache: [n_prompts][n_tokens].
  std::vector<std::vector<int32_t>> texts;
};

struct DriftResult {
  std::vector<std::vector<int32_t>> none_texts;  // [n_prompts][n_tokens]
  std::vector<Drift> drifts;                     // [models]
};

// `none` is the uncompressed model, and none of `models`; it generates once for all of them. All
// prompts decode together, a step of one token each. Every model has a pool of its own with
// `kv_budget_bytes`, which holds one sequence a prompt, and two of those that parted.
// kResourceExhausted where it does not; kDataLoss, with prompt and token, when rows or logits are
// not finite or logits are too far apart for a comparison.
StatusOr<DriftResult> MeasureDrift(Model* none, std::span<Model* const> models,
                                   const DriftPlan& plan, int64_t kv_budget_bytes,
                                   ThreadPool* threads, const Progress& progress);

// Share of the 4-grams of a text that stood in it before; 0 where it has none.
double RepeatedShare(std::span<const int32_t> text);

}  // namespace kvlathe
