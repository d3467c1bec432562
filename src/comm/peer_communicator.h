// A Communicator over transfers between pairs of ranks, whatever carries them. As every rank waits
// for each other one by itself, it knows which one does not answer.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "comm/communicator.h"
#include "comm/transport.h"

namespace kvlathe {

class PeerCommunicator final : public Communicator {
 public:
  // All ranks of the transport.
  explicit PeerCommunicator(std::shared_ptr<Transport> transport);

  Status AllReduce(std::span<float> values) override;
  Status AllGather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  Status Broadcast(int root, std::span<std::byte> bytes) override;
  Status Send(int to, std::span<const std::byte> bytes) override;
  Status Receive(int from, std::span<std::byte> bytes) override;
  Status SendMessage(int to, std::span<const std::byte> bytes) override;
  StatusOr<std::vector<std::byte>> ReceiveMessage(int from, bool wait_forever) override;
  StatusOr<std::unique_ptr<Communicator>> Split(std::span<const int> ranks) override;

 private:
  enum Kind { kCollective, kPointToPoint, kKinds };

  // group_ranks: by rank of this communicator, the rank of the transport. context: tells
  // communicators that have a pair of ranks in common apart.
  PeerCommunicator(std::shared_ptr<Transport> transport, std::vector<int> group_ranks, int rank,
                   int context);

  // Each rank sends all its values to each other one, and adds up itself.
  Status AllReduceWhole(std::span<float> values);
  // Each rank adds up one piece of the values, and sends the sums.
  Status AllReduceInPieces(std::span<float> values);
  // all has this rank's own part already; part_bytes is the size of one, but of the last, which may
  // be shorter.
  Status GatherParts(std::span<std::byte> all, size_t part_bytes);
  Status ReceiveWithin(int from, std::span<std::byte> bytes,
                       std::optional<std::chrono::milliseconds> limit);

  // Transfers are first planned and then carried out together by Exchange.
  void PlanSend(int to, Kind kind, std::span<const std::byte> bytes);
  void PlanReceive(int from, Kind kind, std::span<std::byte> bytes);
  void PlanTransfers(Transfer transfer);
  Status Exchange(std::optional<std::chrono::milliseconds> limit);
  Status StartAndWait(std::optional<std::chrono::milliseconds> limit);
  Status NoAnswer(std::chrono::milliseconds limit) const;

  std::shared_ptr<Transport> transport_;
  std::vector<int> group_ranks_;
  int context_;
  std::vector<Transfer> transfers_;
  std::vector<float> others_values_;  // of AllReduce
};

}  // namespace kvlathe
