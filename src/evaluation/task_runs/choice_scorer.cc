#include "evaluation/task_runs/choice_scorer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "engine/sampler.h"

namespace kvlathe {
namespace {

// Tokens of one forward over all choices. Each takes a row of logits: with a vocabulary of 128 Ki
// they are 128 MiB.
constexpr size_t kForwardTokens = 256;

// The natural logarithm of the sum over exp(logits); NaN when a logit is not finite.
double LogOfSum(std::span<const float> logits) {
  if (!AreFinite(logits)) return std::nan("");
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(v - max);
  return max + std::log(sum);
}

// `log_of_sum` is of the logits.
WeighedToken Weighed(std::span<const float> logits, double log_of_sum, int32_t token) {
  return {.logprob = logits[token] - log_of_sum, .is_greedy = ArgMax(logits) == token};
}

double SumOf(std::span<const WeighedToken> tokens) {
  double sum = 0;
  for (const WeighedToken& token : tokens) sum += token.logprob;
  return sum;
}

// One choice on its way.
struct Branch {
  std::unique_ptr<SequenceCache> cache;  // has read the prompt and n_fed tokens of the choice
  size_t choice_idx = 0;
  size_t n_fed = 0;
};

class ChoiceScorer {
 public:
  ChoiceScorer(Model* model, BlockPool* pool, const PreparedExample& example)
      : model_(model), pool_(pool), example_(example) {}

  StatusOr<WeighedChoices> Run() {
    for (const PreparedQuestion& question : example_.questions) {
      KVL_RETURN_IF_ERROR(Weigh(question));
    }
    return std::move(weighed_);
  }

 private:
  Status Weigh(const PreparedQuestion& question) {
    const size_t n_choices = question.choices.size();
    tokens_.assign(n_choices, {});
    if (question.n_prompt > 0) {
      // Its logits are wanted: a cache that has read as much already has other ones behind it.
      if (cache_ != nullptr && cache_->n_tokens() == question.n_prompt) cache_.reset();
      KVL_RETURN_IF_ERROR(ReadPrompt(question.n_prompt));
      RecordSize(*cache_);
      WeighFirstTokens(question);
    }
    std::vector<size_t> left;  // choices of which tokens are still to be fed
    for (size_t i = 0; i < n_choices; ++i) {
      if (question.choices[i].size() > 1) left.push_back(i);
    }
    while (!left.empty()) {
      // What a failure is to leave as it was.
      const std::vector<std::vector<WeighedToken>> before = tokens_;
      size_t n_weighed = 0;
      const Status status = WeighSome(question, left, &n_weighed);
      if (status.code() == StatusCode::kResourceExhausted && may_copy_) {
        may_copy_ = false;  // once more without
        cache_.reset();
        tokens_ = before;
        continue;
      }
      KVL_RETURN_IF_ERROR(status);
      left.erase(left.begin(), left.begin() + static_cast<int64_t>(n_weighed));
    }
    std::vector<double> log_likelihoods;
    for (size_t i = 0; i < n_choices; ++i) {
      log_likelihoods.push_back(SumOf(tokens_[i]));
      if (std::isfinite(log_likelihoods[i])) continue;
      return Error(StatusCode::kDataLoss,
                   "the model computed logits that are not finite behind the choice '{}' (weights "
                   "or activations overflow in bf16? try --dtype f32)",
                   example_.text.choices[i]);
    }
    weighed_.log_likelihoods.push_back(std::move(log_likelihoods));
    weighed_.tokens.push_back(std::move(tokens_));
    return OkStatus();
  }

  void RecordSize(const SequenceCache& cache) {
    weighed_.kv_bytes = cache.bytes();
    weighed_.n_cached_tokens = cache.n_tokens();
  }

  // The last logits are those behind the prompt.
  void WeighFirstTokens(const PreparedQuestion& question) {
    const std::span<const float> logits = model_->logits(0);
    const double log_of_sum = LogOfSum(logits);
    for (size_t i = 0; i < question.choices.size(); ++i) {
      if (question.n_context[i] > 0) continue;
      tokens_[i].push_back(Weighed(logits, log_of_sum, question.choices[i][0]));
    }
  }

  // The first n tokens of the prompt; goes on where the cache has some of them.
  Status ReadPrompt(int n) {
    const std::span<const int32_t> prompt = example_.prompt;
    if (cache_ == nullptr || cache_->n_tokens() > n) {
      cache_.reset();  // gives its memory back before the next takes any
      cache_ = std::make_unique<SequenceCache>(&model_->layout(), pool_);
      KVL_RETURN_IF_ERROR(
          Prefill(model_, cache_.get(), prompt.first(example_.questions[0].n_prompt)));
    }
    const int n_read = cache_->n_tokens();
    return n_read == n ? OkStatus()
                       : Prefill(model_, cache_.get(), prompt.subspan(n_read, n - n_read));
  }

  // At least the first of the choices that are left.
  Status WeighSome(const PreparedQuestion& question, std::span<const size_t> left,
                   size_t* n_weighed) {
    std::vector<Branch> branches;
    KVL_RETURN_IF_ERROR(question.n_prompt == 0 ? ReadOwnContext(question, left[0], &branches)
                                               : BranchOff(question, left, &branches));
    *n_weighed = branches.size();
    return Advance(question, branches);
  }

  // Where choices share no token, each is a sequence of its own whose context is the prompt.
  Status ReadOwnContext(const PreparedQuestion& question, size_t choice_idx,
                        std::vector<Branch>* branches) {
    const std::span<const int32_t> choice = question.choices[choice_idx];
    const size_t n_context = static_cast<size_t>(question.n_context[choice_idx]);
    Branch& branch = branches->emplace_back(
        std::make_unique<SequenceCache>(&model_->layout(), pool_), choice_idx, n_context);
    KVL_RETURN_IF_ERROR(Prefill(model_, branch.cache.get(), choice.first(n_context)));
    if (choice_idx == 0) RecordSize(*branch.cache);
    const std::span<const float> logits = model_->logits(0);
    tokens_[choice_idx].push_back(Weighed(logits, LogOfSum(logits), choice[n_context]));
    return OkStatus();
  }

  // As many of the choices as there is room for. The last of the example goes on from the prompt's
  // cache itself, and so does each where copies have no room.
  Status BranchOff(const PreparedQuestion& question, std::span<const size_t> left,
                   std::vector<Branch>* branches) {
    KVL_RETURN_IF_ERROR(ReadPrompt(question.n_prompt));
    const bool is_last_question = &question == &example_.questions.back();
    for (const size_t i : left) {
      if (!may_copy_ || (is_last_question && i == left.back())) {
        branches->push_back({std::move(cache_), i});
        break;
      }
      auto copy = cache_->Copy();
      KVL_RETURN_IF_ERROR(copy.status());
      branches->push_back({*std::move(copy), i});
    }
    return OkStatus();
  }

  // Feeds every branch all tokens of its choice but the last.
  Status Advance(const PreparedQuestion& question, std::span<Branch> branches) {
    std::vector<Branch*> active;
    while (true) {
      active.clear();
      for (Branch& branch : branches) {
        if (branch.n_fed + 1 < question.choices[branch.choice_idx].size()) {
          active.push_back(&branch);
        }
      }
      if (active.empty()) return OkStatus();
      KVL_RETURN_IF_ERROR(Step(question, active));
    }
  }

  // One forward.
  Status Step(const PreparedQuestion& question, std::span<Branch* const> active) {
    const int64_t share = std::max<int64_t>(1, kForwardTokens / active.size());
    std::vector<SequenceStep> steps;
    for (Branch* branch : active) {
      const std::span<const int32_t> choice = question.choices[branch->choice_idx];
      const int64_t n_left = std::ssize(choice) - 1 - static_cast<int64_t>(branch->n_fed);
      const int64_t n = std::min({n_left, share, branch->cache->max_step()});
      KVL_RETURN_IF_ERROR(branch->cache->Extend(static_cast<int>(n)));
      steps.push_back(
          {branch->cache.get(), choice.subspan(branch->n_fed, n), SequenceStep::Logits::kAll});
    }
    KVL_RETURN_IF_ERROR(model_->Forward(steps));
    int64_t row = 0;
    for (size_t b = 0; b < active.size(); ++b) {
      Branch* branch = active[b];
      const std::span<const int32_t> choice = question.choices[branch->choice_idx];
      const auto n_context = static_cast<size_t>(question.n_context[branch->choice_idx]);
      for (size_t t = 0; t < steps[b].token_ids.size(); ++t, ++row) {
        const size_t predicted = ++branch->n_fed;
        if (predicted < n_context) continue;
        const std::span<const float> logits = model_->logits(row);
        tokens_[branch->choice_idx].push_back(Weighed(logits, LogOfSum(logits), choice[predicted]));
      }
    }
    return OkStatus();
  }

  Model* model_;
  BlockPool* pool_;
  const PreparedExample& example_;
  std::unique_ptr<SequenceCache> cache_;           // has read some of the prompt and nothing else
  bool may_copy_ = true;                           // until there was no room
  std::vector<std::vector<WeighedToken>> tokens_;  // [n_choices], of the question at work
  WeighedChoices weighed_;
};

}  // namespace

StatusOr<WeighedChoices> WeighChoices(Model* model, BlockPool* pool,
                                      const PreparedExample& example) {
  return ChoiceScorer(model, pool, example).Run();
}

}  // namespace kvlathe
