// What ranks of a group say to each other: sums, pieces and messages, the same on threads of one
// process (thread_communicator.h), on processes of one or several machines (mpi_communicator.h) and
// on GPUs (nccl_communicator.h).
//
// A rank is here a member of a group, from 0 to size() - 1. (Elsewhere in the tree a rank is the
// dimension of a low-rank factor.)
//
// Errors. Where a rank does not answer in time or is gone, calls return kUnavailable and name it
// and its host: "rank 1 on node-b did not answer within 3.5 s". Ranks are those of the whole group,
// also in a communicator that Split made. After an error the group is of no use: every later call
// on a communicator of the same rank returns that error at once, and programs end the group
// (EndGroup of mpi_communicator.h).
//
// Threads. All communicators that one rank has of a group are used by one thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvlathe {

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(hosts_.size()); }
  const std::string& host_of(int rank) const { return hosts_[static_cast<size_t>(rank)]; }

  // Collectives: all ranks call them in the same order, with the same sizes. Of size 0 they return
  // at once and wait for nobody.

  // Sum over ranks, in place: ((v0 + v1) + v2) + ..., in the order of ranks, so that all ranks have
  // the same bits and these do not depend on the number of values or on the machine.
  virtual Status AllReduce(std::span<float> values) = 0;
  // all = each rank's `mine`, of equal sizes, one behind the other in the order of ranks.
  virtual Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  // bytes of `root` to all others.
  virtual Status Broadcast(int root, std::span<std::byte> bytes) = 0;

  // Point to point, to another rank, in order between two ranks and apart from collectives. The
  // receiver knows the size. Send returns when `bytes` may be changed, which may be before or after
  // they are received: two ranks that both send to each other before they receive may wait for each
  // other.
  virtual Status Send(int to, std::span<const std::byte> bytes) = 0;
  virtual Status Receive(int from, std::span<std::byte> bytes) = 0;

  // Messages of at most kMaxMessageBytes whose size the receiver does not know, in order with what
  // Send sends. With wait_forever the beginning of a message is waited for without a limit of time,
  // asleep: for ranks that wait for work.
  virtual Status SendMessage(int to, std::span<const std::byte> bytes) = 0;
  virtual StatusOr<std::vector<std::byte>> ReceiveMessage(int from, bool wait_forever = false) = 0;

  // A communicator of some of the ranks: `ranks` of this one, which become 0, 1, ... in the order
  // of the list. A collective: all ranks of this communicator call it, each with the list that it
  // is in; lists do not overlap. kInvalidArgument on all ranks if they do not fit together.
  virtual StatusOr<std::unique_ptr<Communicator>> Split(std::span<const int> ranks) = 0;

  // How long a rank is waited for while nothing comes from it; what Split makes starts with the
  // value of its origin.
  // The first value leaves mpirun, which may take a second to end a group, its time within five.
  virtual void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

  static constexpr size_t kMaxMessageBytes = size_t{1} << 32;

 protected:
  // hosts: by rank, the names of their machines.
  Communicator(int rank, std::vector<std::string> hosts) : rank_(rank), hosts_(std::move(hosts)) {}
  std::chrono::milliseconds timeout() const { return timeout_; }

 private:
  int rank_;
  std::vector<std::string> hosts_;
  std::chrono::milliseconds timeout_{3500};
};

}  // namespace kvlathe
