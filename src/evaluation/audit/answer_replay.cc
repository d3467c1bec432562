#include "evaluation/audit/answer_replay.h"

#include <algorithm>
#include <utility>

#include "evaluation/drift_steps.h"

namespace kvlathe {

Status CheckAnswer(const GivenAnswer& answer, int vocab_size) {
  const auto n_tokens = static_cast<int64_t>(answer.tokens.size());
  if (answer.n_read < 1 || answer.n_read > n_tokens) {
    return Error(StatusCode::kInvalidArgument,
                 "{} of {} tokens were read; there is at least one, and no more than there are",
                 answer.n_read, n_tokens);
  }
  if (answer.n_cache_prompt < 1 || answer.n_cache_prompt > answer.n_read) {
    return Error(StatusCode::kInvalidArgument,
                 "the prompt of the cache ends at {}; it ends between 1 and the {} tokens that "
                 "were read",
                 answer.n_cache_prompt, answer.n_read);
  }
  if (answer.n_generated < answer.n_answer()) {
    return Error(StatusCode::kInvalidArgument,
                 "the answer has {} tokens, but {} were to be generated at most", answer.n_answer(),
                 answer.n_generated);
  }
  for (const int32_t id : answer.tokens) {
    if (id < 0 || id >= vocab_size) {
      return Error(StatusCode::kInvalidArgument, "token id {} is outside the vocabulary of {}", id,
                   vocab_size);
    }
  }
  return OkStatus();
}

AnswerReplay::AnswerReplay(GivenAnswer answer, Model* none, Model* model, const CacheLayout* layout,
                           BlockPool* pool)
    : answer_(std::move(answer)),
      none_{none, SequenceCache(&none->layout(), pool)},
      other_{model, SequenceCache(layout, pool)} {
  for (Reader* const reader : {&none_, &other_}) {
    reader->cache.set_n_prompt(answer_.n_cache_prompt, answer_.n_generated);
  }
}

int64_t AnswerReplay::PeakBytes(const GivenAnswer& answer, const Model& none,
                                const CacheLayout& layout) {
  // The last token of the answer is never read.
  const auto n_positions =
      std::max<int64_t>(static_cast<int64_t>(answer.tokens.size()) - 1, answer.n_read);
  int64_t n_bytes = 0;
  for (const CacheLayout* const of : {&none.layout(), &layout}) {
    n_bytes += PeakSequenceBytes(*of, n_positions, kStepTokens, answer.n_cache_prompt);
  }
  return n_bytes;
}

// The next tokens that the cache has not read.
Status AnswerReplay::Feed(Reader* reader, int64_t n_tokens, SequenceStep::Logits logits) const {
  const auto begin = static_cast<size_t>(reader->cache.n_tokens());
  const auto n = static_cast<size_t>(n_tokens);
  if (reader->cache.must_read_again()) {
    KVL_RETURN_IF_ERROR(
        reader->model->ReadPromptAgain(&reader->cache, answer_.tokens, kStepTokens));
  }
  KVL_RETURN_IF_ERROR(reader->cache.Extend(static_cast<int>(n_tokens)));
  const SequenceStep step{&reader->cache,
                          std::span<const int32_t>(answer_.tokens).subspan(begin, n), logits};
  return reader->model->Forward({&step, 1});
}

// How many tokens it reads in its next step before the last token that was read, whose logits the
// answer begins with.
int64_t AnswerReplay::NextOfPrompt(const Reader& reader) const {
  const int64_t n_held = reader.cache.n_tokens();
  const int64_t end = n_held < answer_.n_cache_prompt
                          ? std::min(answer_.n_cache_prompt, answer_.n_read - 1)
                          : answer_.n_read - 1;
  return std::min({int64_t{kStepTokens}, end - n_held, reader.cache.max_step()});
}

Status AnswerReplay::ReadAnswer(ThreadPool* threads) {
  const int64_t row_bytes = none_.model->config().vocab_size * int64_t{sizeof(float)};
  int64_t n = std::min<int64_t>(kStepTokens, std::max<int64_t>(1, kMaxLogitBytes / row_bytes));
  n = std::min(
      {n, answer_.n_answer() - n_scored(), none_.cache.max_step(), other_.cache.max_step()});
  if (n_scored() == 0) n = 1;  // what was read and the answer never share a step
  for (Reader* const reader : {&none_, &other_}) {
    KVL_RETURN_IF_ERROR(Feed(reader, n, SequenceStep::Logits::kAll));
  }
  std::vector<StepScore> base(static_cast<size_t>(n)), scores(static_cast<size_t>(n));
  ForEach(threads, static_cast<size_t>(n), [&](size_t i) {
    const auto row = static_cast<int64_t>(i);
    const std::span<const float> logits = none_.model->logits(row);
    // The two may be one model, whose logits are those of its last step.
    base[i] = ScoreStep(logits);
    scores[i] = CompareStep(logits, base[i].log_sum, other_.model->logits(row));
  });
  for (int64_t i = 0; i < n; ++i) {
    if (!base[i].finite || !scores[i].finite) return NotFinite(0, static_cast<size_t>(n_scored()));
    const bool agrees = base[i].likeliest == scores[i].likeliest;
    if (!agrees && !score_.first_parted.has_value()) score_.first_parted = n_scored();
    score_.n_agree += agrees;
    score_.kl.push_back(scores[i].kl);
  }
  return OkStatus();
}

Status AnswerReplay::Step(ThreadPool* threads) {
  for (Reader* const reader : {&none_, &other_}) {
    const int64_t n = NextOfPrompt(*reader);
    if (n > 0) return Feed(reader, n, SequenceStep::Logits::kNone);
  }
  return ReadAnswer(threads);
}

}  // namespace kvlathe
