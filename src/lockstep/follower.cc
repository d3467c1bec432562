#include "lockstep/follower.h"

#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/byte_reader.h"
#include "kv/blocks/sequence_file.h"

namespace kvlathe {
namespace {

// Rank 0 keeps the budget for all.
constexpr int64_t kNoBudget = std::numeric_limits<int64_t>::max() / 2;

}  // namespace

SequenceCache* Follower::CacheOf(int64_t number) const {
  const auto found = caches_.find(number);
  KVL_CHECK(found != caches_.end());
  return found->second.get();
}

Model* Follower::ModelOf(int64_t number) const {
  const auto found = models_.find(number);
  KVL_CHECK(found != models_.end());
  return found->second.get();
}

Status Follower::Run() {
  for (;;) {
    KVL_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                         ranks_.ReceiveMessage(0, /*wait_forever=*/true));
    KVL_ASSIGN_OR_RETURN(const RankOrder order, DecodeOrder(bytes));
    for (const CacheEvent& event : order.events) KVL_RETURN_IF_ERROR(Take(event));
    if (order.kind == RankOrder::Kind::kEnd) return OkStatus();
    if (order.kind == RankOrder::Kind::kForgetModel) {
      models_.erase(order.model);
      continue;
    }
    RankAnswer answer;
    KVL_RETURN_IF_ERROR(CarryOut(order, &answer));
    KVL_RETURN_IF_ERROR(Answers(std::move(answer)));
  }
}

Status Follower::Answers(RankAnswer answer) {
  for (const auto& [number, pool] : pools_) {
    answer.pools.push_back({number, pool->usage().used_bytes});
  }
  return ranks_.SendMessage(0, Encode(answer));
}

Status Follower::CarryOut(const RankOrder& order, RankAnswer* answer) {
  Status done;
  switch (order.kind) {
    case RankOrder::Kind::kMakeModel:
      done = Make(order);
      break;
    case RankOrder::Kind::kStep:
      return RunStep(order, answer);
    case RankOrder::Kind::kPress:
      return ModelOf(order.model)->PressRun(CacheOf(order.cache), static_cast<int>(order.run_idx));
    case RankOrder::Kind::kMeasure:
      AppendBytes(CacheOf(order.cache)->bytes(), &answer->payload);
      break;
    case RankOrder::Kind::kSave:
      for (SequencePieces pieces(CacheOf(order.cache), {order.kv, order.identity}, {});
           !pieces.is_at_end();) {
        answer->payload += pieces.Next();
      }
      break;
    case RankOrder::Kind::kRestore:
      done = Restore(order);
      break;
    case RankOrder::Kind::kNothing:
    case RankOrder::Kind::kForgetModel:
    case RankOrder::Kind::kEnd:
      break;
  }
  if (done.ok()) return OkStatus();
  answer->code = static_cast<int32_t>(done.code());
  answer->message = MessageOf(done);
  return OkStatus();
}

Status Follower::Make(const RankOrder& order) {
  KVL_ASSIGN_OR_RETURN(
      std::unique_ptr<Model> model,
      make_model_(order.kv, order.rate < 0 ? std::nullopt : std::optional(order.rate)));
  models_[order.model] = std::move(model);
  return OkStatus();
}

Status Follower::Restore(const RankOrder& order) {
  SequenceCache* const cache = CacheOf(order.cache);
  const SequencePlace place = {
      {order.kv, order.identity}, &cache->layout(), std::numeric_limits<int>::max()};
  return RestoreSequence(std::as_bytes(std::span(order.payload)), "its part", place, cache)
      .status();
}

Status Follower::RunStep(const RankOrder& order, RankAnswer* answer) {
  std::vector<SequenceStep> steps;
  for (const RankOrder::Part& part : order.parts) {
    steps.push_back({.cache = CacheOf(part.cache),
                     .token_ids = part.token_ids,
                     .logits = static_cast<SequenceStep::Logits>(part.logits)});
  }
  std::vector<Status> failures;
  KVL_RETURN_IF_ERROR(ModelOf(order.model)->ForwardEach(steps, &failures));
  for (size_t i = 0; i < failures.size(); ++i) {
    if (failures[i].ok()) continue;
    answer->failures.push_back({.step_idx = static_cast<int32_t>(i),
                                .code = static_cast<int32_t>(failures[i].code()),
                                .message = MessageOf(failures[i])});
  }
  return OkStatus();
}

Status Follower::Take(const CacheEvent& event) {
  switch (event.kind) {
    case CacheEvent::Kind::kPoolMade: {
      // All models are of the memory of one machine.
      KVL_CHECK(!models_.empty());
      pools_[event.subject] =
          std::make_unique<BlockPool>(kNoBudget, &models_.begin()->second->machine().memory());
      return OkStatus();
    }
    case CacheEvent::Kind::kPoolGone:
      pools_.erase(event.subject);
      return OkStatus();
    case CacheEvent::Kind::kCacheMade: {
      Model* const model = ModelOf(event.numbers[0]);
      const CacheLayout* layout = &model->layout();
      if (event.rate >= 0) {
        KVL_ASSIGN_OR_RETURN(layout, model->LayoutAt(event.rate));
      }
      caches_[event.subject] =
          std::make_unique<SequenceCache>(layout, pools_.at(event.other).get());
      return OkStatus();
    }
    case CacheEvent::Kind::kCacheGone:
      caches_.erase(event.subject);
      return OkStatus();
    default:
      return TakeCacheEvent(event);
  }
}

Status Follower::TakeCacheEvent(const CacheEvent& event) {
  SequenceCache* const cache = CacheOf(event.subject);
  const PrefixPlace place = {.n_tokens = static_cast<int>(event.numbers[0]),
                             .n_prompt = event.numbers[1],
                             .n_generated = event.numbers[2]};
  switch (event.kind) {
    case CacheEvent::Kind::kPromptSet:
      cache->set_n_prompt(event.numbers[0], event.numbers[1]);
      break;
    case CacheEvent::Kind::kExtended:
      return cache->Extend(static_cast<int>(event.numbers[0]));
    case CacheEvent::Kind::kExtendedOnTrial:
      return cache->ExtendOnTrial(static_cast<int>(event.numbers[0]));
    case CacheEvent::Kind::kTakenBack:
      cache->TakeBack(static_cast<int>(event.numbers[0]));
      break;
    case CacheEvent::Kind::kReadAgain:
      cache->EndReadingAgain();
      break;
    case CacheEvent::Kind::kCleared:
      cache->Clear();
      break;
    case CacheEvent::Kind::kCopied: {
      KVL_ASSIGN_OR_RETURN(caches_[event.other], cache->Copy());
      break;
    }
    case CacheEvent::Kind::kKept: {
      KVL_ASSIGN_OR_RETURN(caches_[event.other], cache->Keep(place));
      break;
    }
    case CacheEvent::Kind::kForked: {
      KVL_ASSIGN_OR_RETURN(caches_[event.other], cache->Fork(place));
      break;
    }
    case CacheEvent::Kind::kKeptSet:
      cache->SetKept();
      break;
    case CacheEvent::Kind::kFailed:
      cache->SetFailed();
      break;
    case CacheEvent::Kind::kPoolMade:
    case CacheEvent::Kind::kPoolGone:
    case CacheEvent::Kind::kCacheMade:
    case CacheEvent::Kind::kCacheGone:
      break;  // Take
  }
  return OkStatus();
}

}  // namespace kvlathe
