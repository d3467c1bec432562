#include "greedy_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/random.h"

namespace kvlathe::testing {

GreedyBatch::GreedyBatch(Model* model, BlockPool* pool, const std::vector<PromptToRead>& prompts,
                         int n_to_decode)
    : model_(model), n_to_decode_(n_to_decode) {
  for (const PromptToRead& prompt : prompts) {
    Sequence& sequence = sequences_.emplace_back();
    sequence.prompt = prompt;
    sequence.cache = std::make_unique<SequenceCache>(&model->layout(), pool);
    sequence.cache->set_n_prompt(std::ssize(prompt.ids), n_to_decode);
  }
}

// Null tokens: the sequence has decoded all.
SequenceStep GreedyBatch::NextOf(Sequence* sequence) const {
  const std::vector<int32_t>& ids = sequence->prompt.ids;
  SequenceStep step{.cache = sequence->cache.get()};
  if (sequence->n_read < ids.size()) {
    const int64_t n = std::min<int64_t>({sequence->prompt.chunk, sequence->cache->max_step(),
                                         std::ssize(ids) - static_cast<int64_t>(sequence->n_read)});
    step.token_ids = std::span(ids).subspan(sequence->n_read, n);
    sequence->n_read += n;
    if (sequence->n_read < ids.size()) step.logits = sequence->prompt.logits;
  } else if (std::ssize(sequence->tokens) < n_to_decode_) {
    step.token_ids = std::span(sequence->tokens).last(1);
  }
  return step;
}

bool GreedyBatch::Step() {
  std::vector<SequenceStep> steps;
  std::vector<Sequence*> of_steps;
  std::vector<bool> gives_token;
  for (Sequence& sequence : sequences_) {
    const SequenceStep step = NextOf(&sequence);
    if (step.token_ids.empty()) continue;
    if (sequence.cache->must_read_again()) {
      const Status again =
          model_->ReadPromptAgain(sequence.cache.get(), sequence.prompt.ids, sequence.prompt.chunk);
      EXPECT_TRUE(again.ok()) << again;
    }
    const Status extended = sequence.cache->Extend(step.n_new());
    EXPECT_TRUE(extended.ok()) << extended;
    if (!extended.ok()) return false;
    steps.push_back(step);
    of_steps.push_back(&sequence);
    gives_token.push_back(sequence.n_read == sequence.prompt.ids.size());
  }
  if (steps.empty()) return false;
  const Status status = model_->Forward(steps);
  EXPECT_TRUE(status.ok()) << status;
  if (!status.ok()) return false;
  int64_t row = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const int64_t end = row + steps[i].n_logit_rows();
    for (; row < end; ++row) {
      const std::span<const float> logits = model_->logits(row);
      of_steps[i]->logits.emplace_back(logits.begin(), logits.end());
    }
    if (!gives_token[i]) continue;
    const std::vector<float>& last = of_steps[i]->logits.back();
    of_steps[i]->tokens.push_back(
        static_cast<int32_t>(std::ranges::max_element(last) - last.begin()));
  }
  return true;
}

std::vector<PromptToRead> RandomPrompts(const std::vector<int>& lengths,
                                        const std::vector<int>& chunks, int vocab_size) {
  std::vector<PromptToRead> prompts;
  for (size_t i = 0; i < lengths.size(); ++i) {
    Random random(100 + i);
    PromptToRead& prompt = prompts.emplace_back();
    prompt.chunk = chunks[i];
    for (int t = 0; t < lengths[i]; ++t) {
      prompt.ids.push_back(static_cast<int32_t>(random.Below(vocab_size)));
    }
  }
  return prompts;
}

double LargestKl(const std::vector<std::vector<float>>& a,
                 const std::vector<std::vector<float>>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  const auto log_sum = [](const std::vector<float>& row) {
    const double most = *std::ranges::max_element(row);
    double sum = 0;
    for (const float x : row) sum += std::exp(x - most);
    return most + std::log(sum);
  };
  double largest = 0;
  for (size_t r = 0; r < a.size(); ++r) {
    const double of_a = log_sum(a[r]), of_b = log_sum(b[r]);
    double kl = 0;
    for (size_t i = 0; i < a[r].size(); ++i) {
      kl += std::exp(a[r][i] - of_a) * ((a[r][i] - of_a) - (b[r][i] - of_b));
    }
    if (!std::isfinite(kl)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, kl);
  }
  return largest;
}

}  // namespace kvlathe::testing
