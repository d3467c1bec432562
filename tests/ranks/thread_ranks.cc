#include "thread_ranks.h"

#include <gtest/gtest.h>

#include <mutex>
#include <utility>

#include "comm/thread_communicator.h"
#include "model/families/gguf/gguf_config.h"
#include "model/model_facts.h"
#include "plan/plan_shard.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe::testing {
namespace {

// What all ranks ask one source for, one after the other; they compute with threads of their own.
class LockedSource : public PlanSource {
 public:
  LockedSource(PlanSource* source, ThreadPool* threads) : source_(*source), threads_(threads) {}

  bool is_random() const override { return source_.is_random(); }
  StatusOr<const CalibrationStatistics*> Statistics(const StatisticsNeed& need) override {
    const std::lock_guard lock(mutex_);
    return source_.Statistics(need);
  }
  StatusOr<const FisherWeights*> Fisher(const Spec& spec) override {
    const std::lock_guard lock(mutex_);
    return source_.Fisher(spec);
  }
  StatusOr<std::vector<std::vector<double>>> ValueGrams(int n_joined) override {
    const std::lock_guard lock(mutex_);
    return source_.ValueGrams(n_joined);
  }
  StatusOr<std::vector<std::vector<double>>> KeyGrams(int n_joined) override {
    const std::lock_guard lock(mutex_);
    return source_.KeyGrams(n_joined);
  }
  StatusOr<std::vector<std::vector<double>>> OutputGrams() override {
    const std::lock_guard lock(mutex_);
    return source_.OutputGrams();
  }
  StatusOr<std::vector<std::vector<float>>> ValueBiases() override {
    const std::lock_guard lock(mutex_);
    return source_.ValueBiases();
  }
  StatusOr<std::vector<std::vector<float>>> KeyBiases() override {
    const std::lock_guard lock(mutex_);
    return source_.KeyBiases();
  }
  ThreadPool* threads() override { return threads_; }

 private:
  static inline std::mutex mutex_;
  PlanSource& source_;
  ThreadPool* threads_;
};

// Of a model whose weights count as random: bases are drawn, and nobody asks for more.
class NothingKnown : public PlanSource {
 public:
  bool is_random() const override { return true; }
  StatusOr<const CalibrationStatistics*> Statistics(const StatisticsNeed&) override {
    return Error(StatusCode::kNotFound, "no statistics");
  }
  StatusOr<const FisherWeights*> Fisher(const Spec&) override {
    return Error(StatusCode::kNotFound, "no Fisher information");
  }
  StatusOr<std::vector<std::vector<double>>> ValueGrams(int) override { return Grams(); }
  StatusOr<std::vector<std::vector<double>>> KeyGrams(int) override { return Grams(); }
  StatusOr<std::vector<std::vector<double>>> OutputGrams() override { return Grams(); }
  StatusOr<std::vector<std::vector<float>>> ValueBiases() override { return Biases(); }
  StatusOr<std::vector<std::vector<float>>> KeyBiases() override { return Biases(); }
  ThreadPool* threads() override { return nullptr; }

 private:
  using Grams = std::vector<std::vector<double>>;
  using Biases = std::vector<std::vector<float>>;
};

// A rank that stops where an order has come. The group waits for it until it has waited too long.
class HaltingCommunicator : public Communicator {
 public:
  HaltingCommunicator(Communicator* ranks, const std::atomic<bool>* is_halted)
      : Communicator(ranks->rank(), HostsOf(*ranks)), ranks_(*ranks), is_halted_(*is_halted) {}

  Status AllReduce(std::span<float> values) override { return ranks_.AllReduce(values); }
  Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    return ranks_.AllGather(mine, all);
  }
  Status Broadcast(int root, std::span<std::byte> bytes) override {
    return ranks_.Broadcast(root, bytes);
  }
  Status Send(int to, std::span<const std::byte> bytes) override { return ranks_.Send(to, bytes); }
  Status Receive(int from, std::span<std::byte> bytes) override {
    return ranks_.Receive(from, bytes);
  }
  Status SendMessage(int to, std::span<const std::byte> bytes) override {
    return ranks_.SendMessage(to, bytes);
  }
  StatusOr<std::vector<std::byte>> ReceiveMessage(int from, bool wait_forever) override {
    auto message = ranks_.ReceiveMessage(from, wait_forever);
    while (is_halted_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return message;
  }
  StatusOr<std::unique_ptr<Communicator>> Split(std::span<const int> ranks) override {
    return ranks_.Split(ranks);
  }

 private:
  static std::vector<std::string> HostsOf(const Communicator& ranks) {
    std::vector<std::string> hosts;
    for (int r = 0; r < ranks.size(); ++r) hosts.push_back(ranks.host_of(r));
    return hosts;
  }

  Communicator& ranks_;
  const std::atomic<bool>& is_halted_;
};

}  // namespace

SharedModel OfFile(const std::string& path) {
  SharedModel model;
  StatusOr<ModelConfig> config = LoadModelConfig(path);
  EXPECT_TRUE(config.ok()) << config.status();
  if (!config.ok()) return model;
  model.config = *std::move(config);
  model.open = [path]() -> std::unique_ptr<TensorSource> {
    if (path.ends_with(".gguf")) {
      StatusOr<GgufFile> file = GgufFile::Open(path);
      EXPECT_TRUE(file.ok()) << file.status();
      return MakeGgufSource(std::make_shared<const GgufFile>(*std::move(file)));
    }
    StatusOr<SafetensorsReader> reader = SafetensorsReader::OpenModel(path);
    EXPECT_TRUE(reader.ok()) << reader.status();
    return MakeFileSource(*std::move(reader));
  };
  return model;
}

StatusOr<std::unique_ptr<RankParts>> RankParts::Load(const SharedModel& model, const RankGrid& grid,
                                                     RankGroup* group) {
  std::unique_ptr<RankParts> parts(new RankParts);
  if (group != nullptr) {
    KVL_ASSIGN_OR_RETURN(parts->shard_, ShardOf(model.config, grid, group->rank()));
  }
  KVL_ASSIGN_OR_RETURN(const Isa isa, SelectIsa());
  KVL_ASSIGN_OR_RETURN(
      auto weights,
      ModelWeights::Load(
          model.config, model.types, model.open(),
          MakeMachine(&parts->threads_, isa, {}, group != nullptr ? group->stage.get() : nullptr),
          nullptr, parts->shard_.has_value() ? &*parts->shard_ : nullptr));
  parts->weights_ = std::move(weights);
  const ModelFacts facts = FactsOf(model.config, model.types.rows, grid);
  if (model.source != nullptr) {
    parts->source_ = std::make_unique<LockedSource>(model.source, &parts->threads_);
  } else {
    parts->source_ = std::make_unique<NothingKnown>();
  }
  parts->planner_.emplace(facts, parts->source_.get());
  return parts;
}

StatusOr<std::unique_ptr<Model>> RankParts::MakeModel(const std::string& kv,
                                                      std::optional<double> rate) {
  KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(kv));
  KVL_ASSIGN_OR_RETURN(const CachePlan plan, planner_->MakePlan(spec, rate));
  if (!shard_.has_value()) return Model::Create(weights_, plan);
  KVL_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                       Model::Create(weights_, ShardOf(plan, {shard_->layers, shard_->kv_heads})));
  model->set_whole_layout(plan.layout());
  return model;
}

ThreadRanks::ThreadRanks(SharedModel model, const RankGrid& grid, Options options)
    : model_(std::move(model)), grid_(grid), options_(std::move(options)) {
  std::vector<std::unique_ptr<Communicator>> group = MakeThreadGroup(grid.n_ranks());
  for (int r = 0; r < grid.n_ranks(); ++r) followers_.push_back(std::make_unique<FollowingRank>());
  for (int r = 1; r < grid.n_ranks(); ++r) {
    FollowingRank& following = *followers_[r];
    following.thread = std::thread([this, r, &following, all = std::move(group[r])]() mutable {
      following.ended = Follow(r, std::move(all));
      // What others wait for is told at once that the rank has left.
      following.follower.reset();
      following.parts.reset();
      following.halting.reset();
      following.group.reset();
    });
  }
  StatusOr<std::unique_ptr<RankGroup>> made =
      MakeRankGroup(std::move(group[0]), grid_, options_.patience);
  EXPECT_TRUE(made.ok()) << made.status();
  group_ = *std::move(made);
  StatusOr<std::unique_ptr<RankParts>> own = RankParts::Load(model_, grid_, group_.get());
  const Status agreed = Agree(group_->all.get(), CardOf(0, own.status()));
  EXPECT_TRUE(agreed.ok()) << agreed;
  own_ = *std::move(own);
  group_->BeginLockStep();
  own_->weights().set_links(group_->links());
  own_->memory().set_journal(group_->leader.get());
}

ThreadRanks::~ThreadRanks() { End(); }

RankCard ThreadRanks::CardOf(int rank, const Status& loaded) const {
  return {loaded, options_.facts.empty() ? "command test\n" : options_.facts[rank]};
}

Status ThreadRanks::Follow(int rank, std::unique_ptr<Communicator> all) {
  FollowingRank& own = *followers_[rank];
  KVL_ASSIGN_OR_RETURN(own.group, MakeRankGroup(std::move(all), grid_, options_.patience));
  StatusOr<std::unique_ptr<RankParts>> parts = RankParts::Load(model_, grid_, own.group.get());
  KVL_RETURN_IF_ERROR(Agree(own.group->all.get(), CardOf(rank, parts.status())));
  own.parts = *std::move(parts);
  own.group->BeginLockStep();
  own.parts->weights().set_links(own.group->links());
  own.halting = std::make_unique<HaltingCommunicator>(own.group->all.get(), &own.is_halted);
  own.follower = std::make_unique<Follower>(
      own.halting.get(), [this, rank, &own](const std::string& kv, std::optional<double> rate) {
        return options_.make_shard ? options_.make_shard(rank, own.parts.get(), kv)
                                   : own.parts->MakeModel(kv, rate);
      });
  return own.follower->Run();
}

StatusOr<std::unique_ptr<Model>> ThreadRanks::MakeModel(const std::string& kv,
                                                        std::optional<double> rate) {
  KVL_RETURN_IF_ERROR(leader().BeginMake(kv, rate));
  StatusOr<std::unique_ptr<Model>> model = own_->MakeModel(kv, rate);
  const Status made = leader().EndMake(model.ok() ? model->get() : nullptr);
  KVL_RETURN_IF_ERROR(model.status());
  KVL_RETURN_IF_ERROR(made);
  return model;
}

void ThreadRanks::AskAll() {
  const Status asked = leader().Ask();
  EXPECT_TRUE(asked.ok()) << asked;
}

KvBytes ThreadRanks::HeldOn(int rank, const SequenceCache& cache) const {
  if (rank == 0) return cache.bytes();
  const auto& caches = followers_[rank]->follower->caches();
  const auto part = caches.find(cache.number());
  EXPECT_NE(part, caches.end()) << "rank " << rank;
  return part == caches.end() ? KvBytes() : part->second->bytes();
}

KvBytes ThreadRanks::BytesOn(int rank, const SequenceCache& cache) {
  AskAll();
  return HeldOn(rank, cache);
}

KvBytes ThreadRanks::BytesOf(const SequenceCache& cache) {
  AskAll();
  KvBytes sum;
  for (int r = 0; r < grid_.n_ranks(); ++r) sum.Add(HeldOn(r, cache));
  return sum;
}

int ThreadRanks::CountMirrored() {
  AskAll();
  int64_t n = 0;
  for (int r = 1; r < grid_.n_ranks(); ++r) {
    n += std::ssize(followers_[r]->follower->caches()) + followers_[r]->follower->n_pools();
  }
  return static_cast<int>(n);
}

std::vector<Status> ThreadRanks::End() {
  std::vector<Status> ended(followers_.size());
  if (std::exchange(has_ended_, true)) return ended;
  leader().Dismiss();
  for (const auto& following : followers_) following->is_halted = false;
  // Who waits for this rank, which may have given the group up, is told that it has left.
  group_->all.reset();
  group_->stage.reset();
  for (size_t r = 1; r < followers_.size(); ++r) {
    followers_[r]->thread.join();
    ended[r] = followers_[r]->ended;
  }
  return ended;
}

}  // namespace kvlathe::testing
