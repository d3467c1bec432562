// A rank other than the first does what a LockStep tells it, on its own shards and caches.
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "comm/communicator.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/sequence_cache.h"
#include "lockstep/order.h"
#include "model/model.h"

namespace kvlathe {

class Follower {
 public:
  // Makes this rank's shard of a model with that cache.
  using MakeModel = std::function<StatusOr<std::unique_ptr<Model>>(const std::string& kv,
                                                                   std::optional<double> rate)>;

  // `ranks` outlives it.
  Follower(Communicator* ranks, MakeModel make_model)
      : ranks_(*ranks), make_model_(std::move(make_model)) {}

  // Follows until rank 0 lets go. An error is one after which the group cannot go on: another rank
  // does not answer, or this one has no memory.
  Status Run();

  // What it holds for rank 0, by the numbers that it has there; while it waits for an order.
  const std::map<int64_t, std::unique_ptr<SequenceCache>>& caches() const { return caches_; }
  int64_t n_pools() const { return std::ssize(pools_); }

 private:
  Status Take(const CacheEvent& event);
  Status TakeCacheEvent(const CacheEvent& event);
  Status CarryOut(const RankOrder& order, RankAnswer* answer);
  // An error of it is told to rank 0, which goes on without the model.
  Status Make(const RankOrder& order);
  Status Restore(const RankOrder& order);
  Status RunStep(const RankOrder& order, RankAnswer* answer);
  Status Answers(RankAnswer answer);
  SequenceCache* CacheOf(int64_t number) const;
  Model* ModelOf(int64_t number) const;

  Communicator& ranks_;
  MakeModel make_model_;
  // By their numbers on rank 0. Caches go before pools, and these before models and their memory.
  std::map<int64_t, std::unique_ptr<Model>> models_;
  std::map<int64_t, std::unique_ptr<BlockPool>> pools_;
  std::map<int64_t, std::unique_ptr<SequenceCache>> caches_;
};

}  // namespace kvlathe
