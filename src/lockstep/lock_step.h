// Rank 0 of a group runs programs as if it were alone: it has the engine, the samplers and the
// connections. A LockStep tells the other ranks what it does to models and caches, one message a
// step, and they do the same to their parts.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/cache_journal.h"
#include "kv/blocks/sequence_file.h"
#include "lockstep/order.h"
#include "model/model.h"
#include "model/ranks/rank_links.h"

namespace kvlathe {

// Of one thread at a time, as its communicator is. After an error of the communicator every call
// that can return one does, and the group is of no use any more.
class LockStep : public StepLeader, public CacheJournal {
 public:
  // `ranks`, of which this process is rank 0, outlives it. A rank may take `timeout` to answer, and
  // `patience` where a model is made or a cache saved.
  LockStep(Communicator* ranks, std::chrono::milliseconds timeout,
           std::chrono::milliseconds patience)
      : ranks_(*ranks), timeout_(timeout), patience_(patience) {
    ranks_.set_timeout(timeout);
  }

  // Has the others make their shards of a model with that cache, in the meantime this rank makes
  // its own; then EndMake. A null model: it could not be made here, and the others forget theirs.
  Status BeginMake(const std::string& kv, std::optional<double> rate);
  Status EndMake(const Model* model);

  // Called once, with the first error after which the group cannot go on. It may end the process;
  // if it returns, what is asked of the group fails.
  void set_on_lost(std::function<void(const Status&)> on_lost) { on_lost_ = std::move(on_lost); }
  // Lets the others go. Nothing is told after it.
  void Dismiss();

  Status BeginStep(const Model& model, std::span<const SequenceStep> steps) override;
  Status BeginPress(const Model& model, const SequenceCache& cache, int run_idx) override;
  StatusOr<std::vector<Failure>> End() override;
  StatusOr<std::vector<KvBytes>> Measure(const SequenceCache& cache) override;
  Status Ask() override;
  void Forget(const Model& model) override;
  void Lose(const Status& status) override;

  int64_t PoolMade(BlockPool* pool) override;
  void PoolGone(int64_t pool) override;
  int64_t CacheMade(const CacheLayout& layout, int64_t pool) override;
  void CacheGone(int64_t cache) override;
  void PromptSet(int64_t cache, int64_t n_prompt, int64_t n_generated) override;
  void Extended(int64_t cache, int n_new) override;
  void ExtendedOnTrial(int64_t cache, int n_new) override;
  void TakenBack(int64_t cache, int n_tokens) override;
  void ReadAgain(int64_t cache) override;
  void Cleared(int64_t cache) override;
  void Copied(int64_t cache, int64_t to) override;
  void Shared(int64_t cache, int64_t to, const PrefixPlace& place, Sharing sharing) override;
  void KeptSet(int64_t cache) override;
  void Failed(int64_t cache) override;
  StatusOr<std::vector<std::string>> SaveParts(int64_t cache,
                                               const SequenceIdentity& identity) override;
  Status RestoreParts(int64_t cache, const SequenceIdentity& identity,
                      std::span<const std::string> parts) override;

 private:
  struct KnownModel {
    int64_t number;
    const Model* model;
  };
  struct KnownPool {
    int64_t number;
    BlockPool* pool;
  };

  // Sends it with the events so far.
  Status Tell(RankOrder order);
  // To one rank; an error is one after which the group cannot go on.
  Status Send(int rank, const RankOrder& order);
  StatusOr<RankAnswer> HearOne(int rank);
  // Of all others, in the order of ranks. An answer that says the order was not carried out is an
  // error that names its rank and host.
  StatusOr<std::vector<RankAnswer>> Hear();
  StatusOr<std::vector<RankAnswer>> HearPatiently();
  // Takes over what the answers say of pools.
  void TakePools(std::span<const RankAnswer> answers);
  int64_t NumberOf(const Model& model) const;

  Communicator& ranks_;
  std::chrono::milliseconds timeout_;
  std::chrono::milliseconds patience_;
  std::vector<CacheEvent> events_;  // since the last order
  std::vector<KnownModel> models_;
  std::vector<KnownPool> pools_;
  int64_t n_numbers_ = 0;  // that were given to models, pools and caches
  int64_t making_ = 0;     // the number of the model that is made
  bool has_dismissed_ = false;
  std::function<void(const Status&)> on_lost_;
  Status lost_;
};

}  // namespace kvlathe
