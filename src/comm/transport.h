// What a way of carrying bytes has to do; all else (PeerCommunicator) is written once over it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvlathe {

// Bytes on their way from or to one other rank. Transfers of one channel between two ranks are
// received in the order in which they were sent.
struct Transfer {
  int peer = 0;     // rank of the whole group
  int channel = 0;  // at least 0
  bool is_send = false;
  std::span<std::byte> bytes;  // of a send only read
  bool is_done = false;
  std::uintptr_t handle = 0;  // of the transport
};

// One rank's end of a group. Used by one thread at a time.
class Transport {
 public:
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // Begins a transfer. Its bytes stay where they are until it is done.
  virtual Status Start(Transfer* transfer) = 0;
  // Looks, without waiting, whether a transfer is done, and moves it on.
  virtual Status Poll(Transfer* transfer) = 0;

  int rank() const { return rank_; }
  const std::vector<std::string>& hosts() const { return hosts_; }
  void set_hosts(std::vector<std::string> hosts) { hosts_ = std::move(hosts); }

  // The first error. Behind it nothing is carried any more, so that no transfer that was given up
  // writes to memory which its caller has freed.
  const Status& failure() const { return failure_; }
  void set_failure(Status failure) { failure_ = std::move(failure); }

  // Numbers of communicators that share this transport (PeerCommunicator::Split).
  int last_context() const { return last_context_; }
  void set_last_context(int context) { last_context_ = context; }

 protected:
  Transport(int rank, std::vector<std::string> hosts) : rank_(rank), hosts_(std::move(hosts)) {}

 private:
  int rank_;
  std::vector<std::string> hosts_;
  Status failure_;
  int last_context_ = 0;
};

}  // namespace kvlathe
