// What ties a shard of a model to the other ranks that hold the rest of it.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "model/forward.h"

namespace kvlathe {

class Model;

// On rank 0: has the other ranks do what is done here, in the same order.
class StepLeader {
 public:
  // What became of a sequence elsewhere: its place among the steps, and why it failed.
  struct Failure {
    int step_idx;
    Status status;
  };

  virtual ~StepLeader() = default;

  // Has the others begin the same step. What they and this rank send each other while it runs comes
  // between this call and End.
  virtual Status BeginStep(const Model& model, std::span<const SequenceStep> steps) = 0;
  // Has them seal that run of their parts of the cache again (Model::PressRun).
  virtual Status BeginPress(const Model& model, const SequenceCache& cache, int run_idx) = 0;
  // Waits until all others have answered what was begun.
  virtual StatusOr<std::vector<Failure>> End() = 0;
  // What each of them holds of the cache, in the order of ranks.
  virtual StatusOr<std::vector<KvBytes>> Measure(const SequenceCache& cache) = 0;
  // Has all of them answer, so that one that is gone is found while there is nothing to compute.
  virtual Status Ask() = 0;
  // Has them forget their shards of the model, which is going.
  virtual void Forget(const Model& model) = 0;
  // Says that the group cannot go on: a rank does not answer, or a step broke off.
  virtual void Lose(const Status& status) = 0;
};

// Null pointers where a model is whole.
struct RankLinks {
  Communicator* ranks = nullptr;  // all that share the model: rank r of RankGrid is rank r here
  StepLeader* leader = nullptr;   // on rank 0
  // How long a rank may take to answer that has nothing to compute meanwhile.
  std::chrono::milliseconds timeout{3500};
};

}  // namespace kvlathe
