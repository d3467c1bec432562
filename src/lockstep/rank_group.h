// The ranks that share a model, as one of them sees them.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "comm/communicator.h"
#include "lockstep/lock_step.h"
#include "model/ranks/model_shard.h"

namespace kvlathe {

struct RankPatience {
  std::chrono::milliseconds step{3500};      // of a message of a step
  std::chrono::milliseconds start{600'000};  // while models are loaded and made
};

struct RankGroup {
  RankGrid grid;
  std::unique_ptr<Communicator> all;
  std::unique_ptr<Communicator> stage;  // the tensor ranks of this rank's stage
  std::unique_ptr<LockStep> leader;     // on rank 0, once all have agreed
  RankPatience patience;
  int n_threads_alone = 0;  // OpenOptions::n_threads of what one rank does while the others wait
  std::string command;      // that runs on every rank, as it was typed
  std::function<void(const Status&)> on_lost;  // of the leader

  // Once all ranks have agreed.
  void BeginLockStep();
  int rank() const { return all->rank(); }
  // How many of the ranks are on this rank's host.
  int CountHere() const;
  bool is_leader() const { return rank() == 0; }
  RankLinks links() const { return {all.get(), leader.get(), patience.step}; }
};

// kInvalidArgument where there are not as many ranks as the grid has.
StatusOr<std::unique_ptr<RankGroup>> MakeRankGroup(std::unique_ptr<Communicator> all,
                                                   const RankGrid& grid,
                                                   const RankPatience& patience);

// What a rank says of itself once it has opened the model, or not.
struct RankCard {
  Status opened;
  // What must be the same on all ranks: the build, the model's files, the options. Each line names
  // one thing, as in "model 3f2a...".
  std::string facts;
};

// Waits until all ranks have shown their cards. The error is the same on all of them: that of the
// first rank that could not open the model, or kInvalidArgument naming the first rank whose facts
// are not those of rank 0, and what differs.
Status Agree(Communicator* all, const RankCard& card);

}  // namespace kvlathe
