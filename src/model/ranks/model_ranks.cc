// A step of a model that several ranks share: which of them computes what, and what they send each
// other. Sums within the layers are AddToStream's.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "model/model.h"

namespace kvlathe {
namespace {

// Fewer tokens take a stage as long as these, because it reads its weights for them. Smaller groups
// would be on their way for longer together than one is alone.
constexpr int64_t kLeastGroupTokens = 8;

// Cuts the steps into at most n_stages groups with about as many tokens each.
std::vector<std::span<const SequenceStep>> GroupsOf(std::span<const SequenceStep> steps,
                                                    int n_stages) {
  int64_t n_left = 0;
  for (const SequenceStep& step : steps) n_left += step.n_new();
  const auto n = std::clamp<int64_t>(n_left / kLeastGroupTokens, 1, n_stages);
  std::vector<std::span<const SequenceStep>> groups;
  while (!steps.empty()) {
    const int64_t n_groups_left = std::max<int64_t>(1, n - std::ssize(groups));
    const int64_t share = (n_left + n_groups_left - 1) / n_groups_left;
    int64_t n_tokens = 0;
    size_t n_steps = 0;
    while (n_steps < steps.size() && (n_steps == 0 || n_tokens < share)) {
      n_tokens += steps[n_steps++].n_new();
    }
    if (n_groups_left == 1) n_steps = steps.size();
    groups.push_back(steps.first(n_steps));
    steps = steps.subspan(n_steps);
    n_left -= n_tokens;
  }
  return groups;
}

std::span<const std::byte> BytesOf(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace

Status Model::RunOnRanks(std::span<const SequenceStep> steps) {
  KVL_RETURN_IF_ERROR(CheckPositions(steps));
  const Stopwatch watch;
  const Status ran = RunGroups(steps);
  int64_t n_tokens = 0;
  for (const SequenceStep& step : steps) n_tokens += step.n_new();
  if (ran.ok() && n_tokens > 0) {
    seconds_per_token_ =
        std::max(seconds_per_token_, watch.Seconds() / static_cast<double>(n_tokens));
  }
  // Others may have begun what is not ended here.
  StepLeader* const leader = weights_->links().leader;
  if (!ran.ok() && leader != nullptr) leader->Lose(ran);
  return ran;
}

Status Model::RunGroups(std::span<const SequenceStep> steps) {
  const RankLinks& links = weights_->links();
  NoteWantedRows(steps);
  failures_.clear();
  held_logits_.clear();
  host_hidden_.clear();
  if (links.leader != nullptr) KVL_RETURN_IF_ERROR(links.leader->BeginStep(*this, steps));
  for (const auto group : GroupsOf(steps, weights_->shard().grid.n_stages)) {
    KVL_RETURN_IF_ERROR(RunGroup(group));
  }
  n_logit_rows_ = 0;
  for (const SequenceStep& step : steps) n_logit_rows_ += step.n_logit_rows();
  if (n_logit_rows_ > 0) KVL_RETURN_IF_ERROR(CollectLogits());
  return links.leader != nullptr ? HearOthers(steps) : OkStatus();
}

Status Model::RunGroup(std::span<const SequenceStep> steps) {
  KVL_ASSIGN_OR_RETURN(ForwardState state, Begin(steps, nullptr));
  if (activations_.n_tokens > 0) {
    const Status queued = QueueGroup(&state);
    KVL_ASSIGN_OR_RETURN(const StepReport report, machine().backend().Finish());
    KVL_RETURN_IF_ERROR(queued);
    sequences_.Learn(report);
    profile_.plan += report.plan_seconds;
    profile_.rebuild += report.rebuild_seconds;
    profile_.waiting += report.waiting_seconds;
    if (!weights_->shard().is_last_stage()) {
      KVL_RETURN_IF_ERROR(SendStream());
    } else if (n_logit_rows_ > 0) {
      HoldLogits();
    }
  }
  failures_.insert(failures_.end(), sequences_.failures().begin(), sequences_.failures().end());
  return OkStatus();
}

// All layers run whoever fails, because other ranks wait for the sums.
Status Model::QueueGroup(ForwardState* state) {
  if (weights_->shard().is_first_stage()) {
    EmbedTokens();
  } else {
    KVL_RETURN_IF_ERROR(ReceiveStream());
  }
  for (LayerProgram& program : programs_) KVL_RETURN_IF_ERROR(program.Run(state));
  if (weights_->shard().is_last_stage() && n_logit_rows_ > 0) ComputeLogits(state->steps());
  return OkStatus();
}

Status Model::ReceiveOfStage(int from, std::span<float> values) {
  const RankLinks& links = weights_->links();
  if (weights_->shard().grid.n_stages > 1) {
    // A stage waits for what those before it compute, which is no silence. Until a step has shown
    // how long that takes nobody knows.
    constexpr double kUnknownSeconds = 600, kSlack = 4;
    const double seconds = seconds_per_token_ < 0 ? kUnknownSeconds
                                                  : kSlack * seconds_per_token_ *
                                                        static_cast<double>(activations_.n_tokens);
    links.ranks->set_timeout(links.timeout +
                             std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds)));
  }
  const Status received = links.ranks->Receive(from, std::as_writable_bytes(values));
  links.ranks->set_timeout(links.timeout);
  return received;
}

Status Model::ReceiveStream() {
  const ScopedTimer timer(&profile_.messages);
  Communicator& ranks = *weights_->links().ranks;
  std::vector<float> stream(activations_.n_tokens * config().hidden_dim);
  KVL_RETURN_IF_ERROR(ReceiveOfStage(ranks.rank() - weights_->shard().grid.n_tensor_ranks, stream));
  activations_.memory->Upload(activations_.hidden.place(), BytesOf(stream));
  return OkStatus();
}

Status Model::SendStream() {
  const ScopedTimer timer(&profile_.messages);
  Communicator& ranks = *weights_->links().ranks;
  std::vector<float> stream(activations_.n_tokens * config().hidden_dim);
  activations_.memory->Download(activations_.hidden.place(),
                                std::as_writable_bytes(std::span(stream)));
  return ranks.Send(ranks.rank() + weights_->shard().grid.n_tensor_ranks, BytesOf(stream));
}

void Model::HoldLogits() {
  const ScopedTimer timer(&profile_.linear);
  const auto hold = [&](const MachineBuffer& rows, int64_t n, std::vector<float>* held) {
    const size_t before = held->size();
    held->resize(before + n);
    activations_.memory->Download(rows.place(),
                                  std::as_writable_bytes(std::span(*held).subspan(before)));
  };
  // As in a step on one machine, every row has a place in both where there are some of both kinds.
  if (has_logits_) hold(logits_, n_logit_rows_ * n_held_words(), &held_logits_);
  if (has_hidden_) hold(activations_.hidden, n_logit_rows_ * config().hidden_dim, &host_hidden_);
}

Status Model::CollectLogits() {
  const ScopedTimer timer(&profile_.messages);
  const ModelShard& own = weights_->shard();
  Communicator& ranks = *weights_->links().ranks;
  if (ranks.rank() != 0) {
    if (!own.is_last_stage()) return OkStatus();
    if (has_logits_) KVL_RETURN_IF_ERROR(ranks.Send(0, BytesOf(held_logits_)));
    return has_hidden_ && own.tensor_rank == 0 ? ranks.Send(0, BytesOf(host_hidden_)) : OkStatus();
  }
  const int n_tensor = own.grid.n_tensor_ranks, first = n_tensor * (own.grid.n_stages - 1);
  const int64_t n_words = config().vocab_size;
  if (has_logits_) downloaded_logits_.resize(n_logit_rows_ * n_words);
  for (int t = 0; has_logits_ && t < n_tensor; ++t) {
    KVL_ASSIGN_OR_RETURN(const ModelShard shard,
                         ShardOf(weights_->whole_config(), own.grid, first + t));
    const int64_t n_held = shard.words.end - shard.words.begin;
    if (first + t != 0) {
      held_logits_.resize(n_logit_rows_ * n_held);
      KVL_RETURN_IF_ERROR(ReceiveOfStage(first + t, held_logits_));
    }
    for (int64_t row = 0; row < n_logit_rows_; ++row) {
      std::copy_n(held_logits_.data() + row * n_held, n_held,
                  downloaded_logits_.data() + row * n_words + shard.words.begin);
    }
  }
  host_logits_ = downloaded_logits_.data();
  if (!has_hidden_ || first == 0) return OkStatus();
  host_hidden_.resize(n_logit_rows_ * config().hidden_dim);
  return ReceiveOfStage(first, host_hidden_);
}

Status Model::HearOthers(std::span<const SequenceStep> steps) {
  const ScopedTimer timer(&profile_.messages);
  KVL_ASSIGN_OR_RETURN(const std::vector<StepLeader::Failure> others,
                       weights_->links().leader->End());
  for (const auto& [step_idx, status] : others) {
    if (step_idx < 0 || step_idx >= std::ssize(steps)) {
      return Error(StatusCode::kDataLoss, "an answer of another rank is of sequence {} of {}",
                   step_idx, steps.size());
    }
    steps[step_idx].cache->SetFailed();
    failures_[step_idx].Update(status);
  }
  return OkStatus();
}

std::vector<KvBytes> Model::BytesByRank(const SequenceCache& cache) const {
  std::vector<KvBytes> held = {cache.bytes()};
  StepLeader* const leader = weights_->links().leader;
  if (leader == nullptr) return held;
  const StatusOr<std::vector<KvBytes>> others = leader->Measure(cache);
  if (others.ok()) held.insert(held.end(), others->begin(), others->end());
  return held;
}

Status Model::AskRanks() const {
  StepLeader* const leader = weights_->links().leader;
  return leader == nullptr ? OkStatus() : leader->Ask();
}

Status Model::PressRun(SequenceCache* cache, int run_idx) {
  StepLeader* const leader = weights_->links().leader;
  if (leader == nullptr) return PressHeld(cache, run_idx);
  KVL_RETURN_IF_ERROR(leader->BeginPress(*this, *cache, run_idx));
  const Status pressed = PressHeld(cache, run_idx);
  if (!pressed.ok()) leader->Lose(pressed);  // others may have pressed theirs
  KVL_RETURN_IF_ERROR(pressed);
  return leader->End().status();
}

}  // namespace kvlathe
