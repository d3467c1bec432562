#include "lockstep/lock_step.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "io/byte_reader.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {

int64_t LockStep::NumberOf(const Model& model) const {
  const auto known = std::ranges::find(models_, &model, &KnownModel::model);
  KVL_CHECK(known != models_.end());
  return known->number;
}

void LockStep::Lose(const Status& status) {
  if (!lost_.ok()) return;
  lost_ = status;
  if (on_lost_) on_lost_(status);
}

Status LockStep::Send(int rank, const RankOrder& order) {
  KVL_RETURN_IF_ERROR(lost_);
  const Status sent = ranks_.SendMessage(rank, Encode(order));
  if (!sent.ok()) Lose(sent);
  return sent;
}

Status LockStep::Tell(RankOrder order) {
  order.events = std::exchange(events_, {});
  for (int r = 1; r < ranks_.size(); ++r) KVL_RETURN_IF_ERROR(Send(r, order));
  return OkStatus();
}

StatusOr<RankAnswer> LockStep::HearOne(int rank) {
  KVL_RETURN_IF_ERROR(lost_);
  const StatusOr<std::vector<std::byte>> bytes = ranks_.ReceiveMessage(rank);
  StatusOr<RankAnswer> answer = bytes.ok() ? DecodeAnswer(*bytes) : bytes.status();
  if (!answer.ok()) Lose(answer.status());
  return answer;
}

StatusOr<std::vector<RankAnswer>> LockStep::Hear() {
  std::vector<RankAnswer> answers;
  Status first_error;
  for (int r = 1; r < ranks_.size(); ++r) {
    KVL_ASSIGN_OR_RETURN(RankAnswer answer, HearOne(r));
    if (answer.code != 0) {
      first_error.Update(Error(static_cast<StatusCode>(answer.code), "rank {} on {}: {}", r,
                               ranks_.host_of(r), answer.message));
    }
    answers.push_back(std::move(answer));
  }
  TakePools(answers);
  KVL_RETURN_IF_ERROR(first_error);
  return answers;
}

StatusOr<std::vector<RankAnswer>> LockStep::HearPatiently() {
  ranks_.set_timeout(patience_);
  StatusOr<std::vector<RankAnswer>> answers = Hear();
  ranks_.set_timeout(timeout_);
  return answers;
}

void LockStep::TakePools(std::span<const RankAnswer> answers) {
  for (const auto& [number, pool] : pools_) {
    const int64_t here = pool->usage().used_bytes;
    int64_t most = here;
    for (const RankAnswer& answer : answers) {
      for (const RankAnswer::PoolBytes& there : answer.pools) {
        if (there.pool == number) most = std::max(most, there.used_bytes);
      }
    }
    pool->SetMoreElsewhere(most - here);
  }
}

Status LockStep::BeginMake(const std::string& kv, std::optional<double> rate) {
  making_ = ++n_numbers_;
  return Tell(
      {.kind = RankOrder::Kind::kMakeModel, .model = making_, .kv = kv, .rate = rate.value_or(-1)});
}

Status LockStep::EndMake(const Model* model) {
  Status made = HearPatiently().status();
  if (model != nullptr && made.ok()) {
    models_.push_back({making_, model});
    return OkStatus();
  }
  made.Update(Tell({.kind = RankOrder::Kind::kForgetModel, .model = making_}));
  return made;
}

void LockStep::Forget(const Model& model) {
  const auto known = std::ranges::find(models_, &model, &KnownModel::model);
  if (known == models_.end()) return;
  const int64_t number = known->number;
  models_.erase(known);
  // A rank that does not hear of it any more is found where it should answer next.
  if (!has_dismissed_) {
    Tell({.kind = RankOrder::Kind::kForgetModel, .model = number}).IgnoreError();
  }
}

Status LockStep::Ask() {
  KVL_RETURN_IF_ERROR(Tell({.kind = RankOrder::Kind::kNothing}));
  // Nobody computes anything meanwhile, and a second or so has passed since the last question.
  ranks_.set_timeout(timeout_ * 7 / 10);
  const Status heard = Hear().status();
  ranks_.set_timeout(timeout_);
  return heard;
}

void LockStep::Dismiss() {
  if (!std::exchange(has_dismissed_, true)) Tell({.kind = RankOrder::Kind::kEnd}).IgnoreError();
}

Status LockStep::BeginStep(const Model& model, std::span<const SequenceStep> steps) {
  RankOrder order = {.kind = RankOrder::Kind::kStep, .model = NumberOf(model)};
  for (const SequenceStep& step : steps) {
    order.parts.push_back({.cache = step.cache->number(),
                           .logits = static_cast<uint8_t>(step.logits),
                           .token_ids = {step.token_ids.begin(), step.token_ids.end()}});
  }
  return Tell(std::move(order));
}

Status LockStep::BeginPress(const Model& model, const SequenceCache& cache, int run_idx) {
  return Tell({.kind = RankOrder::Kind::kPress,
               .model = NumberOf(model),
               .cache = cache.number(),
               .run_idx = run_idx});
}

StatusOr<std::vector<StepLeader::Failure>> LockStep::End() {
  KVL_ASSIGN_OR_RETURN(const std::vector<RankAnswer> answers, Hear());
  std::vector<Failure> failures;
  for (size_t i = 0; i < answers.size(); ++i) {
    const int rank = static_cast<int>(i) + 1;
    for (const RankAnswer::Failure& failure : answers[i].failures) {
      failures.push_back(
          {failure.step_idx, Error(static_cast<StatusCode>(failure.code), "rank {} on {}: {}", rank,
                                   ranks_.host_of(rank), failure.message)});
    }
  }
  return failures;
}

StatusOr<std::vector<KvBytes>> LockStep::Measure(const SequenceCache& cache) {
  KVL_RETURN_IF_ERROR(Tell({.kind = RankOrder::Kind::kMeasure, .cache = cache.number()}));
  KVL_ASSIGN_OR_RETURN(const std::vector<RankAnswer> answers, Hear());
  std::vector<KvBytes> held;
  for (const RankAnswer& answer : answers) {
    ByteReader reader(std::as_bytes(std::span(answer.payload)));
    KVL_CHECK(reader.Read(&held.emplace_back()));
  }
  return held;
}

StatusOr<std::vector<std::string>> LockStep::SaveParts(int64_t cache,
                                                       const SequenceIdentity& identity) {
  KVL_RETURN_IF_ERROR(Tell({.kind = RankOrder::Kind::kSave,
                            .cache = cache,
                            .kv = identity.spec,
                            .identity = identity.model}));
  KVL_ASSIGN_OR_RETURN(std::vector<RankAnswer> answers, HearPatiently());
  std::vector<std::string> parts;
  for (RankAnswer& answer : answers) parts.push_back(std::move(answer.payload));
  return parts;
}

Status LockStep::RestoreParts(int64_t cache, const SequenceIdentity& identity,
                              std::span<const std::string> parts) {
  if (std::ssize(parts) != ranks_.size() - 1) {
    return Error(StatusCode::kDataLoss, "it was saved by {} ranks, and there are {}",
                 parts.size() + 1, ranks_.size());
  }
  const std::vector<CacheEvent> events = std::exchange(events_, {});
  for (int r = 1; r < ranks_.size(); ++r) {
    KVL_RETURN_IF_ERROR(Send(r, {.kind = RankOrder::Kind::kRestore,
                                 .events = events,
                                 .cache = cache,
                                 .kv = identity.spec,
                                 .identity = identity.model,
                                 .payload = parts[r - 1]}));
  }
  const Status restored = HearPatiently().status();
  // Those that could restore theirs hold nothing that this rank does not hold.
  if (!restored.ok()) Cleared(cache);
  return restored;
}

int64_t LockStep::PoolMade(BlockPool* pool) {
  pools_.push_back({++n_numbers_, pool});
  events_.push_back({.kind = CacheEvent::Kind::kPoolMade, .subject = n_numbers_});
  return n_numbers_;
}

void LockStep::PoolGone(int64_t pool) {
  std::erase_if(pools_, [pool](const KnownPool& known) { return known.number == pool; });
  events_.push_back({.kind = CacheEvent::Kind::kPoolGone, .subject = pool});
}

int64_t LockStep::CacheMade(const CacheLayout& layout, int64_t pool) {
  const auto rate_of = [&](const Model& model) -> std::optional<double> {
    return &model.layout() == &layout ? -1 : model.RateOf(layout);
  };
  for (const auto& [number, model] : models_) {
    const std::optional<double> rate = rate_of(*model);
    if (!rate.has_value()) continue;
    events_.push_back({.kind = CacheEvent::Kind::kCacheMade,
                       .subject = ++n_numbers_,
                       .other = pool,
                       .numbers = {number},
                       .rate = *rate});
    return n_numbers_;
  }
  KVL_CHECK(false);  // a layout of no model that was made here
  return 0;
}

void LockStep::CacheGone(int64_t cache) {
  events_.push_back({.kind = CacheEvent::Kind::kCacheGone, .subject = cache});
}

void LockStep::PromptSet(int64_t cache, int64_t n_prompt, int64_t n_generated) {
  events_.push_back(
      {.kind = CacheEvent::Kind::kPromptSet, .subject = cache, .numbers = {n_prompt, n_generated}});
}

void LockStep::Extended(int64_t cache, int n_new) {
  events_.push_back({.kind = CacheEvent::Kind::kExtended, .subject = cache, .numbers = {n_new}});
}

void LockStep::ExtendedOnTrial(int64_t cache, int n_new) {
  events_.push_back(
      {.kind = CacheEvent::Kind::kExtendedOnTrial, .subject = cache, .numbers = {n_new}});
}

void LockStep::TakenBack(int64_t cache, int n_tokens) {
  events_.push_back(
      {.kind = CacheEvent::Kind::kTakenBack, .subject = cache, .numbers = {n_tokens}});
}

void LockStep::ReadAgain(int64_t cache) {
  events_.push_back({.kind = CacheEvent::Kind::kReadAgain, .subject = cache});
}

void LockStep::Cleared(int64_t cache) {
  events_.push_back({.kind = CacheEvent::Kind::kCleared, .subject = cache});
}

void LockStep::Copied(int64_t cache, int64_t to) {
  events_.push_back({.kind = CacheEvent::Kind::kCopied, .subject = cache, .other = to});
}

void LockStep::Shared(int64_t cache, int64_t to, const PrefixPlace& place, Sharing sharing) {
  events_.push_back(
      {.kind = sharing == Sharing::kKeep ? CacheEvent::Kind::kKept : CacheEvent::Kind::kForked,
       .subject = cache,
       .other = to,
       .numbers = {place.n_tokens, place.n_prompt, place.n_generated}});
}

void LockStep::KeptSet(int64_t cache) {
  events_.push_back({.kind = CacheEvent::Kind::kKeptSet, .subject = cache});
}

void LockStep::Failed(int64_t cache) {
  events_.push_back({.kind = CacheEvent::Kind::kFailed, .subject = cache});
}

}  // namespace kvlathe
