// Tests share a model among ranks that are threads of their process. The test's own thread is rank
// 0, and has the model as if it were alone.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "comm/communicator.h"
#include "kv/blocks/sequence_cache.h"
#include "lockstep/follower.h"
#include "lockstep/rank_group.h"
#include "machine/machine.h"
#include "model/config.h"
#include "model/model.h"
#include "model/number_types.h"
#include "model/tensor_source.h"
#include "plan/planner.h"

namespace kvlathe::testing {

// What every rank loads for itself.
struct SharedModel {
  ModelConfig config;
  NumberTypes types = DType::kF32;
  std::function<std::unique_ptr<TensorSource>()> open;
  PlanSource* source = nullptr;  // null: weights count as random, and maps are drawn
};

// Of a folder with a config.json or a GGUF file.
SharedModel OfFile(const std::string& path);

// One rank, or the whole model on one machine: its threads, weights and planner.
class RankParts {
 public:
  // A null group: the whole model, with the plans that ranks of the grid make.
  static StatusOr<std::unique_ptr<RankParts>> Load(const SharedModel& model, const RankGrid& grid,
                                                   RankGroup* group);

  // The model, or the shard of it, with that cache.
  StatusOr<std::unique_ptr<Model>> MakeModel(const std::string& kv,
                                             std::optional<double> rate = std::nullopt);
  ModelWeights& weights() { return *weights_; }
  Device& memory() { return weights_->machine().memory(); }

 private:
  RankParts() = default;

  ThreadPool threads_{1};
  std::unique_ptr<PlanSource> source_;
  std::optional<ModelShard> shard_;
  std::shared_ptr<ModelWeights> weights_;
  std::optional<CachePlanner> planner_;
};

// Models that it makes, and what is made of them, are gone before it is.
class ThreadRanks {
 public:
  struct Options {
    // Sanitizers on a busy machine take their time.
    RankPatience patience = {std::chrono::seconds(120), std::chrono::seconds(600)};
    // What ranks say of themselves before they begin (RankCard::facts), by rank; empty: all the
    // same.
    std::vector<std::string> facts;
    // Of a rank's shards; null: what its RankParts make.
    std::function<StatusOr<std::unique_ptr<Model>>(int rank, RankParts* parts,
                                                   const std::string& kv)>
        make_shard;
  };

  // Failures of loading are failures of the test.
  ThreadRanks(SharedModel model, const RankGrid& grid, Options options);
  ThreadRanks(SharedModel model, const RankGrid& grid)
      : ThreadRanks(std::move(model), grid, Options()) {}
  ~ThreadRanks();

  // On rank 0, of a model that all ranks make.
  StatusOr<std::unique_ptr<Model>> MakeModel(const std::string& kv,
                                             std::optional<double> rate = std::nullopt);
  Device& memory() { return own_->memory(); }
  LockStep& leader() { return *group_->leader; }
  const RankGrid& grid() const { return grid_; }

  // What the cache holds on all ranks together.
  KvBytes BytesOf(const SequenceCache& cache);
  // The same of one rank.
  KvBytes BytesOn(int rank, const SequenceCache& cache);
  // How many pools and caches of rank 0 the other ranks know.
  int CountMirrored();

  // From now on the rank takes orders and does not carry them out, until the group ends.
  void Halt(int rank) { followers_[rank]->is_halted = true; }
  // Lets the others go: how following has ended, by rank; OK for rank 0.
  std::vector<Status> End();

 private:
  struct FollowingRank {
    std::atomic<bool> is_halted{false};
    std::unique_ptr<Communicator> halting;  // that the follower is given
    std::unique_ptr<RankGroup> group;
    std::unique_ptr<RankParts> parts;
    std::unique_ptr<Follower> follower;
    Status ended;
    std::thread thread;
  };

  Status Follow(int rank, std::unique_ptr<Communicator> all);
  // Once they have answered, the others wait for an order, and what they hold can be read.
  void AskAll();
  KvBytes HeldOn(int rank, const SequenceCache& cache) const;
  RankCard CardOf(int rank, const Status& loaded) const;

  SharedModel model_;
  RankGrid grid_;
  Options options_;
  std::unique_ptr<RankGroup> group_;
  std::unique_ptr<RankParts> own_;
  std::vector<std::unique_ptr<FollowingRank>> followers_;  // by rank; that of rank 0 does nothing
  bool has_ended_ = false;
};

}  // namespace kvlathe::testing
