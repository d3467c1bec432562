#include "evaluation/drift_steps.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/sampler.h"
#include "evaluation/quality.h"

namespace kvlathe {
namespace {

constexpr int kScoredTokens = 64;  // of a text, in one forward

Status At(size_t prompt, size_t token, const Status& status) {
  return Error(status.code(), "prompt {}, token {}: {}", prompt + 1, token + 1, MessageOf(status));
}

double LogSumOf(std::span<const float> x) {
  const float max = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const float v : x) sum += std::exp(v - max);
  return max + std::log(sum);
}

// Of the rows of the last forward; NaN where logits are not finite.
double NllOfRows(const Model& model, std::span<const int32_t> targets, ThreadPool* threads) {
  std::vector<double> nll(targets.size(), std::nan(""));
  ForEach(threads, targets.size(), [&](size_t row) {
    const std::span<const float> logits = model.logits(static_cast<int64_t>(row));
    const StepScore score = ScoreStep(logits);
    if (score.finite) nll[row] = score.NllOf(targets[row], logits);
  });
  return std::accumulate(nll.begin(), nll.end(), 0.0);
}

}  // namespace

StepScore ScoreStep(std::span<const float> logits) {
  StepScore score;
  score.finite = AreFinite(logits);
  if (!score.finite) return score;
  score.likeliest = ArgMax(logits);
  score.log_sum = LogSumOf(logits);
  return score;
}

StepScore CompareStep(std::span<const float> base, double base_log_sum,
                      std::span<const float> logits) {
  StepScore score = ScoreStep(logits);
  if (!score.finite) return score;
  const double shift = score.log_sum - base_log_sum;
  double kl = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    const double difference = double{base[i]} - logits[i] + shift;
    kl += std::exp(base[i] - static_cast<float>(base_log_sum)) * difference;
  }
  score.kl = std::max(kl, 0.0);  // rounding of equal distributions can fall below zero
  score.finite = std::isfinite(kl);
  return score;
}

Status NotFinite(size_t prompt, size_t token) {
  return At(prompt, token,
            Error(StatusCode::kDataLoss,
                  "the model computed logits that are not finite, or too large to compare (weights "
                  "or activations overflow in bf16? try --dtype f32)"));
}

Status TextDecoder::ReadPrompts() {
  for (size_t i = 0; i < prompts_.size(); ++i) {
    auto cache = std::make_unique<SequenceCache>(&model_->layout(), &pool_);
    cache->set_n_prompt(std::ssize(prompts_[i]), n_tokens_);
    const Status status = Prefill(model_, cache.get(), prompts_[i]);
    if (!status.ok()) return At(i, 0, status);
    const std::span<const float> logits = model_->logits(0);
    prompt_logits_.emplace_back(logits.begin(), logits.end());
    sequences_.push_back({i, std::move(cache)});
  }
  return OkStatus();
}

Status TextDecoder::Branch(size_t prompt) {
  StatusOr<std::unique_ptr<SequenceCache>> copy = sequences_[prompt].cache->Copy();
  if (!copy.ok()) return At(prompt, n_fed_, copy.status());
  sequences_.push_back({prompt, *std::move(copy)});
  return OkStatus();
}

Status TextDecoder::Step(std::span<const int32_t> tokens) {
  ++n_fed_;
  std::vector<SequenceStep> steps;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const Status status = sequences_[i].cache->Extend(1);
    if (!status.ok()) return At(sequences_[i].prompt, n_fed_, status);
    steps.push_back({sequences_[i].cache.get(), tokens.subspan(i, 1)});
  }
  std::vector<Status> failures;
  KVL_RETURN_IF_ERROR(model_->ForwardEach(steps, &failures));
  for (size_t i = 0; i < failures.size(); ++i) {
    if (!failures[i].ok()) return At(sequences_[i].prompt, n_fed_, failures[i]);
  }
  return OkStatus();
}

double TextDecoder::MeanKvFraction() const {
  double sum = 0;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const SequenceCache& cache = *sequences_[i].cache;
    sum += static_cast<double>(cache.bytes().total()) /
           static_cast<double>(ReferenceBytes(model_->layout(), cache.n_tokens()));
  }
  return sum / static_cast<double>(prompts_.size());
}

StatusOr<double> NllOfText(Model* model, std::span<const int32_t> prompt,
                           std::span<const int32_t> text, size_t first, int64_t kv_budget_bytes,
                           ThreadPool* threads) {
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  tokens.insert(tokens.end(), text.begin(), text.end() - 1);
  BlockPool pool(kv_budget_bytes, &model->machine().memory());
  SequenceCache cache(&model->layout(), &pool);
  size_t n_read = prompt.size() + first;
  KVL_RETURN_IF_ERROR(Prefill(model, &cache, std::span(tokens).first(n_read)));
  double sum = NllOfRows(*model, text.subspan(first, 1), threads);
  while (n_read < tokens.size()) {
    const size_t n = std::min<size_t>(
        {kScoredTokens, tokens.size() - n_read, static_cast<size_t>(cache.max_step())});
    KVL_RETURN_IF_ERROR(cache.Extend(static_cast<int>(n)));
    const SequenceStep step{&cache, std::span(tokens).subspan(n_read, n),
                            SequenceStep::Logits::kAll};
    KVL_RETURN_IF_ERROR(model->Forward({&step, 1}));
    sum += NllOfRows(*model, text.subspan(n_read + 1 - prompt.size(), n), threads);
    n_read += n;
  }
  if (std::isfinite(sum)) return sum;
  return Error(StatusCode::kDataLoss,
               "the model computed logits that are not finite for a text that a lossy cache wrote "
               "(weights or activations overflow in bf16? try --dtype f32)");
}

}  // namespace kvlathe
