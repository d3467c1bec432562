#include "comm/peer_communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "comm/wait_pause.h"

namespace kvlathe {
namespace {

// Up to here a sum is made by all ranks from all values. Above it the bytes that each rank sends
// count for more than a second round of messages: measured with comm_bench, 2 and 4 processes in
// shared memory and over TCP on one machine.
constexpr size_t kWholeAllReduceBytes = size_t{128} << 10;

// Long transfers go in pieces, and the limit of time starts again with each: a slow network (100
// Mbit/s carries one in a third of a second) is no rank that does not answer.
constexpr size_t kPieceBytes = size_t{4} << 20;

// A rank that was stopped itself for so long between two looks does not count that as the others'
// time.
constexpr std::chrono::milliseconds kOwnAbsence{250};

std::span<const std::byte> BytesOf(std::span<const float> values) { return std::as_bytes(values); }

void AddTo(float* sum, const float* values, size_t n_values) {
#pragma omp simd
  for (size_t i = 0; i < n_values; ++i) sum[i] += values[i];
}

// values = values of rank 0 + values of rank 1 + ..., in that order; others: [n_ranks - 1, stride],
// the values of all ranks but `rank`, which has `values`. The sum is always made in the memory that
// has rank 0's values, by one loop, so that even which NaN stays is the same on all ranks.
void AddInOrder(int rank, float* others, size_t stride, std::span<float> values, int n_ranks) {
  const auto values_of = [&](int other) {
    if (other == rank) return values.data();
    return others + static_cast<size_t>(other < rank ? other : other - 1) * stride;
  };
  constexpr size_t kTileValues = 4096;  // stays in the nearest cache
  for (size_t begin = 0; begin < values.size(); begin += kTileValues) {
    const size_t n_values = std::min(kTileValues, values.size() - begin);
    for (int other = 1; other < n_ranks; ++other) {
      AddTo(values_of(0) + begin, values_of(other) + begin, n_values);
    }
  }
  if (rank != 0 && !values.empty()) std::memcpy(values.data(), values_of(0), values.size_bytes());
}

std::vector<std::string> HostsOf(const Transport& transport, const std::vector<int>& group_ranks) {
  std::vector<std::string> hosts;
  hosts.reserve(group_ranks.size());
  for (const int rank : group_ranks) hosts.push_back(transport.hosts()[static_cast<size_t>(rank)]);
  return hosts;
}

}  // namespace

PeerCommunicator::PeerCommunicator(std::shared_ptr<Transport> transport)
    : Communicator(transport->rank(), transport->hosts()),
      transport_(std::move(transport)),
      group_ranks_(static_cast<size_t>(size())),
      context_(0) {
  std::iota(group_ranks_.begin(), group_ranks_.end(), 0);
}

PeerCommunicator::PeerCommunicator(std::shared_ptr<Transport> transport,
                                   std::vector<int> group_ranks, int rank, int context)
    : Communicator(rank, HostsOf(*transport, group_ranks)),
      transport_(std::move(transport)),
      group_ranks_(std::move(group_ranks)),
      context_(context) {}

Status PeerCommunicator::AllReduce(std::span<float> values) {
  if (values.size_bytes() <= kWholeAllReduceBytes) return AllReduceWhole(values);
  return AllReduceInPieces(values);
}

Status PeerCommunicator::AllReduceWhole(std::span<float> values) {
  others_values_.resize(values.size() * static_cast<size_t>(size() - 1));
  std::span<float> free = others_values_;
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    PlanReceive(other, kCollective, std::as_writable_bytes(free.first(values.size())));
    PlanSend(other, kCollective, BytesOf(values));
    free = free.subspan(values.size());
  }
  KVL_RETURN_IF_ERROR(Exchange(timeout()));
  AddInOrder(rank(), others_values_.data(), values.size(), values, size());
  return OkStatus();
}

Status PeerCommunicator::AllReduceInPieces(std::span<float> values) {
  constexpr size_t kLineValues = 16;  // pieces begin at cache lines of `values`
  const size_t n_ranks = static_cast<size_t>(size());
  const size_t piece_values =
      (values.size() + n_ranks * kLineValues - 1) / (n_ranks * kLineValues) * kLineValues;
  const auto piece_of = [&](int other) {
    const size_t begin = std::min(values.size(), static_cast<size_t>(other) * piece_values);
    return values.subspan(begin, std::min(piece_values, values.size() - begin));
  };
  const std::span<float> mine = piece_of(rank());
  others_values_.resize(mine.size() * (n_ranks - 1));
  std::span<float> free = others_values_;
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    PlanReceive(other, kCollective, std::as_writable_bytes(free.first(mine.size())));
    PlanSend(other, kCollective, BytesOf(piece_of(other)));
    free = free.subspan(mine.size());
  }
  KVL_RETURN_IF_ERROR(Exchange(timeout()));
  AddInOrder(rank(), others_values_.data(), mine.size(), mine, size());
  return GatherParts(std::as_writable_bytes(values), piece_values * sizeof(float));
}

Status PeerCommunicator::AllGather(std::span<const std::byte> mine, std::span<std::byte> all) {
  KVL_CHECK_EQ(all.size(), mine.size() * static_cast<size_t>(size()));
  if (mine.empty()) return transport_->failure();
  std::byte* own_part = all.data() + static_cast<size_t>(rank()) * mine.size();
  if (own_part != mine.data()) std::memmove(own_part, mine.data(), mine.size());
  return GatherParts(all, mine.size());
}

Status PeerCommunicator::GatherParts(std::span<std::byte> all, size_t part_bytes) {
  const auto part_of = [&](int other) {
    const size_t begin = std::min(all.size(), static_cast<size_t>(other) * part_bytes);
    return all.subspan(begin, std::min(part_bytes, all.size() - begin));
  };
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    PlanReceive(other, kCollective, part_of(other));
    PlanSend(other, kCollective, part_of(rank()));
  }
  return Exchange(timeout());
}

Status PeerCommunicator::Broadcast(int root, std::span<std::byte> bytes) {
  KVL_CHECK(root >= 0 && root < size());
  if (rank() != root) {
    PlanReceive(root, kCollective, bytes);
  } else {
    for (int other = 0; other < size(); ++other) {
      if (other != root) PlanSend(other, kCollective, bytes);
    }
  }
  return Exchange(timeout());
}

Status PeerCommunicator::Send(int to, std::span<const std::byte> bytes) {
  PlanSend(to, kPointToPoint, bytes);
  return Exchange(timeout());
}

Status PeerCommunicator::Receive(int from, std::span<std::byte> bytes) {
  return ReceiveWithin(from, bytes, timeout());
}

Status PeerCommunicator::ReceiveWithin(int from, std::span<std::byte> bytes,
                                       std::optional<std::chrono::milliseconds> limit) {
  PlanReceive(from, kPointToPoint, bytes);
  return Exchange(limit);
}

Status PeerCommunicator::SendMessage(int to, std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxMessageBytes) {
    return Error(StatusCode::kInvalidArgument,
                 "a message of {} bytes to rank {}: at most {} are sent at once", bytes.size(), to,
                 kMaxMessageBytes);
  }
  const std::uint64_t n_bytes = bytes.size();
  PlanSend(to, kPointToPoint, std::as_bytes(std::span(&n_bytes, 1)));
  PlanSend(to, kPointToPoint, bytes);
  return Exchange(timeout());
}

StatusOr<std::vector<std::byte>> PeerCommunicator::ReceiveMessage(int from, bool wait_forever) {
  std::uint64_t n_bytes = 0;
  std::optional<std::chrono::milliseconds> limit = timeout();
  if (wait_forever) limit.reset();
  KVL_RETURN_IF_ERROR(ReceiveWithin(from, std::as_writable_bytes(std::span(&n_bytes, 1)), limit));
  if (n_bytes > kMaxMessageBytes) {
    return Error(StatusCode::kDataLoss,
                 "rank {} on {} announced a message of {} bytes, which none has; do all ranks run "
                 "the same program?",
                 group_ranks_[static_cast<size_t>(from)], host_of(from), n_bytes);
  }
  std::vector<std::byte> bytes(n_bytes);
  KVL_RETURN_IF_ERROR(Receive(from, bytes));
  return bytes;
}

StatusOr<std::unique_ptr<Communicator>> PeerCommunicator::Split(std::span<const int> ranks) {
  // A row for each rank: the last context it knows, the length of its list, the list. So all
  // see all lists, and choose the same new context, which is new to each of them.
  const size_t n_ranks = static_cast<size_t>(size());
  const size_t row_ints = 2 + n_ranks;
  std::vector<int> mine(row_ints, -1);
  mine[0] = transport_->last_context();
  mine[1] = static_cast<int>(std::min(ranks.size(), n_ranks + 1));
  std::copy_n(ranks.begin(), std::min(ranks.size(), n_ranks), mine.begin() + 2);
  std::vector<int> rows(row_ints * n_ranks);
  KVL_RETURN_IF_ERROR(
      AllGather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(rows))));

  int context = 0;
  std::set<std::vector<int>> lists;
  size_t n_listed = 0;
  for (size_t r = 0; r < n_ranks; ++r) {
    const int* row = &rows[r * row_ints];
    context = std::max(context, row[0] + 1);
    const size_t n_list = static_cast<size_t>(row[1]);
    std::vector<int> list(row + 2, row + 2 + std::min(n_list, n_ranks));
    const bool is_in = std::find(list.begin(), list.end(), static_cast<int>(r)) != list.end();
    if (n_list > n_ranks || !is_in) {
      return Error(StatusCode::kInvalidArgument,
                   "rank {} on {} splits its group with a list of {} ranks that it is not in",
                   group_ranks_[r], host_of(static_cast<int>(r)), n_list);
    }
    if (lists.insert(list).second) n_listed += list.size();
  }
  // Each rank is in its own list; so lists overlap, or name a rank twice or one that is not there,
  // exactly where together they have more entries than there are ranks.
  if (n_listed != n_ranks) {
    return Error(StatusCode::kInvalidArgument,
                 "{} ranks split their group with lists that overlap or differ", n_ranks);
  }
  transport_->set_last_context(context);

  std::vector<int> group_ranks;
  for (const int r : ranks) group_ranks.push_back(group_ranks_[static_cast<size_t>(r)]);
  const auto place = std::find(ranks.begin(), ranks.end(), rank());
  std::unique_ptr<PeerCommunicator> part(new PeerCommunicator(
      transport_, std::move(group_ranks), static_cast<int>(place - ranks.begin()), context));
  part->set_timeout(timeout());
  return part;
}

void PeerCommunicator::PlanSend(int to, Kind kind, std::span<const std::byte> bytes) {
  KVL_CHECK(to >= 0 && to < size() && to != rank());
  // A transfer that sends does not write to its bytes.
  PlanTransfers({.peer = group_ranks_[static_cast<size_t>(to)],
                 .channel = context_ * kKinds + kind,
                 .is_send = true,
                 .bytes = {const_cast<std::byte*>(bytes.data()), bytes.size()}});
}

void PeerCommunicator::PlanReceive(int from, Kind kind, std::span<std::byte> bytes) {
  KVL_CHECK(from >= 0 && from < size() && from != rank());
  PlanTransfers({.peer = group_ranks_[static_cast<size_t>(from)],
                 .channel = context_ * kKinds + kind,
                 .bytes = bytes});
}

void PeerCommunicator::PlanTransfers(Transfer transfer) {
  const std::span<std::byte> bytes = transfer.bytes;
  for (size_t begin = 0; begin < bytes.size(); begin += kPieceBytes) {
    transfer.bytes = bytes.subspan(begin, std::min(kPieceBytes, bytes.size() - begin));
    transfers_.push_back(transfer);
  }
}

Status PeerCommunicator::Exchange(std::optional<std::chrono::milliseconds> limit) {
  if (transport_->failure().ok()) {
    if (Status status = StartAndWait(limit); !status.ok()) {
      transport_->set_failure(std::move(status));
    }
  }
  transfers_.clear();
  return transport_->failure();
}

Status PeerCommunicator::StartAndWait(std::optional<std::chrono::milliseconds> limit) {
  for (Transfer& transfer : transfers_) KVL_RETURN_IF_ERROR(transport_->Start(&transfer));
  WaitPause pause;
  WaitPause::Clock::time_point now = WaitPause::Clock::now();
  WaitPause::Clock::time_point last_news = now;
  while (true) {
    const size_t n_waiting = transfers_.size();
    for (Transfer& transfer : transfers_) KVL_RETURN_IF_ERROR(transport_->Poll(&transfer));
    std::erase_if(transfers_, [](const Transfer& transfer) { return transfer.is_done; });
    if (transfers_.empty()) return OkStatus();
    if (transfers_.size() < n_waiting) last_news = now;
    if (limit && now - last_news > *limit) return NoAnswer(*limit);
    const WaitPause::Clock::time_point next = pause.Next();
    if (next - now > kOwnAbsence) last_news += next - now;
    now = next;
  }
}

// Names those that something was to come from; only where nothing was, those that take nothing.
Status PeerCommunicator::NoAnswer(std::chrono::milliseconds limit) const {
  const bool any_receive = std::any_of(transfers_.begin(), transfers_.end(),
                                       [](const Transfer& t) { return !t.is_send; });
  std::set<int> silent;
  for (const Transfer& transfer : transfers_) {
    if (!any_receive || !transfer.is_send) silent.insert(transfer.peer);
  }
  std::string names;
  for (const int peer : silent) {
    names += fmt::format("{}rank {} on {}", names.empty() ? "" : " and ", peer,
                         transport_->hosts()[static_cast<size_t>(peer)]);
  }
  const double seconds = std::chrono::duration<double>(limit).count();
  return Error(StatusCode::kUnavailable,
               "{} did not answer within {} s; is it stopped, out of memory or cut off?", names,
               seconds);
}

}  // namespace kvlathe
