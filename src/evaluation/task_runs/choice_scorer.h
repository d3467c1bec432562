// A ChoiceScorer finds the log-likelihoods of the choices of one example.
#pragma once

#include <vector>

#include "base/status.h"
#include "evaluation/task_runs/task_run.h"
#include "kv/blocks/block_pool.h"
#include "model/model.h"

namespace kvlathe {

// What a model makes of one token of a choice.
struct WeighedToken {
  double logprob = 0;      // natural logarithm, given all that comes before
  bool is_greedy = false;  // it is the likeliest of all, the first of equals
};

struct WeighedChoices {
  // [n_questions][n_choices], natural logarithms: sums over the tokens of each choice given the
  // prompt, the right answers to the questions before and what comes before each token.
  std::vector<std::vector<double>> log_likelihoods;
  // [n_questions][n_choices]: the tokens behind the sums, in their order.
  std::vector<std::vector<std::vector<WeighedToken>>> tokens;
  // Of the cache where the choices of the last question are weighed: at the end of the prompt, or
  // of the first choice's own context where choices share no token.
  KvBytes kv_bytes;
  int n_cached_tokens = 0;
};

// The prompt is read once, and every choice of more than one token goes on from a copy of its
// cache, all of them in the same forwards. For the cache the prompt ends at the first question
// (before the contexts that choices have of their own, if they share a token). Where the pool has
// no room for copies the choices are weighed one after the other, each behind a prompt read for it.
// kDataLoss when logits are not finite, kResourceExhausted when the pool does not hold one
// sequence.
StatusOr<WeighedChoices> WeighChoices(Model* model, BlockPool* pool,
                                      const PreparedExample& example);

}  // namespace kvlathe
