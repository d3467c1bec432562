#include "comm/thread_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "comm/peer_communicator.h"
#include "comm/transport.h"

namespace kvlathe {
namespace {

struct Letter {
  int channel;
  std::uint64_t number;  // of the letters of its sender, receiver and channel
  std::vector<std::byte> bytes;
};

// What one rank has sent to one other and that one has not yet received.
struct Mailbox {
  std::mutex mutex;
  std::list<Letter> letters;
};

struct MailRoom {
  explicit MailRoom(int n_ranks)
      : boxes(static_cast<size_t>(n_ranks * n_ranks)), has_left(static_cast<size_t>(n_ranks)) {}
  Mailbox& box(int from, int to) {
    return boxes[static_cast<size_t>(from) * has_left.size() + static_cast<size_t>(to)];
  }
  std::vector<Mailbox> boxes;  // [from, to]
  std::vector<std::atomic<bool>> has_left;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<MailRoom> room, int rank, std::vector<std::string> hosts)
      : Transport(rank, std::move(hosts)), room_(std::move(room)) {}
  ~ThreadTransport() override { room_->has_left[static_cast<size_t>(rank())] = true; }

  Status Start(Transfer* transfer) override {
    // Letters are received in the order in which receives began, not in that in which they are
    // looked for.
    transfer->handle = n_begun_[{transfer->peer, transfer->channel, transfer->is_send}]++;
    if (!transfer->is_send) return OkStatus();
    Letter letter{
        transfer->channel, transfer->handle, {transfer->bytes.begin(), transfer->bytes.end()}};
    Mailbox& box = room_->box(rank(), transfer->peer);
    const std::lock_guard lock(box.mutex);
    box.letters.push_back(std::move(letter));
    transfer->is_done = true;
    return OkStatus();
  }

  Status Poll(Transfer* transfer) override {
    if (transfer->is_done) return OkStatus();
    // Read first: what a rank sent before it left is still received.
    const bool has_left = room_->has_left[static_cast<size_t>(transfer->peer)];
    std::list<Letter> taken;
    {
      Mailbox& box = room_->box(transfer->peer, rank());
      const std::lock_guard lock(box.mutex);
      const auto letter =
          std::find_if(box.letters.begin(), box.letters.end(), [&](const Letter& l) {
            return l.channel == transfer->channel && l.number == transfer->handle;
          });
      if (letter != box.letters.end()) taken.splice(taken.begin(), box.letters, letter);
    }
    const std::string& host = hosts()[static_cast<size_t>(transfer->peer)];
    if (taken.empty()) {
      if (!has_left) return OkStatus();
      return Error(StatusCode::kUnavailable, "rank {} on {} has left the group", transfer->peer,
                   host);
    }
    const std::vector<std::byte>& bytes = taken.front().bytes;
    if (bytes.size() != transfer->bytes.size()) {
      return Error(StatusCode::kInternal,
                   "rank {} on {} sent {} bytes where {} are received; do all ranks run the same "
                   "program with the same options?",
                   transfer->peer, host, bytes.size(), transfer->bytes.size());
    }
    std::memcpy(transfer->bytes.data(), bytes.data(), bytes.size());
    transfer->is_done = true;
    return OkStatus();
  }

 private:
  std::shared_ptr<MailRoom> room_;
  std::map<std::tuple<int, int, bool>, std::uint64_t>
      n_begun_;  // by peer, channel, whether it sends
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> MakeThreadGroup(int n_ranks,
                                                           std::vector<std::string> hosts) {
  KVL_CHECK_GE(n_ranks, 1);
  if (hosts.empty()) {
    for (int rank = 0; rank < n_ranks; ++rank) hosts.push_back(fmt::format("thread-{}", rank));
  }
  KVL_CHECK_EQ(hosts.size(), static_cast<size_t>(n_ranks));
  const auto room = std::make_shared<MailRoom>(n_ranks);
  std::vector<std::unique_ptr<Communicator>> group;
  group.reserve(hosts.size());
  for (int rank = 0; rank < n_ranks; ++rank) {
    group.push_back(
        std::make_unique<PeerCommunicator>(std::make_shared<ThreadTransport>(room, rank, hosts)));
  }
  return group;
}

}  // namespace kvlathe
