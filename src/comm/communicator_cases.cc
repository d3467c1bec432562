#include "comm/communicator_cases.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/random.h"

namespace kvlathe {
namespace {

constexpr size_t kSizes[] = {0, 1, 3, 1001, 16384, 100003, 400001};

Status Wrong(const Communicator& all, const std::string& what) {
  return Error(StatusCode::kInternal, "on rank {} of {}: {}", all.rank(), all.size(), what);
}

// Of widely different sizes, so that (a + b) + c is seldom a + (b + c).
std::vector<float> DrawnValues(int rank, size_t n_values) {
  std::vector<float> values(n_values);
  Random random(static_cast<uint64_t>(rank));
  for (float& value : values) {
    const int exponent = static_cast<int>(random.Below(16)) - 8;
    value = static_cast<float>(std::ldexp(random.Uniform() - 0.5, exponent));
  }
  return values;
}

std::vector<std::byte> DrawnBytes(int seed, size_t n_bytes) {
  std::vector<uint64_t> words(n_bytes / sizeof(uint64_t) + 1);
  Random random(static_cast<uint64_t>(seed), /*stream=*/1);
  for (uint64_t& word : words) word = random.Next();
  const auto bytes = std::as_bytes(std::span(words)).first(n_bytes);
  return {bytes.begin(), bytes.end()};
}

// All ranks have the same bytes.
Status CheckSame(Communicator& all, std::span<const std::byte> bytes) {
  const uint32_t mine = ExtendCrc32c(0, bytes);
  std::vector<uint32_t> sums(static_cast<size_t>(all.size()));
  KVL_RETURN_IF_ERROR(
      all.AllGather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(sums))));
  for (const uint32_t sum : sums) {
    if (sum != mine) return Wrong(all, "ranks have different bits");
  }
  return OkStatus();
}

Status CheckSum(Communicator& all, size_t n_values) {
  std::vector<float> values = DrawnValues(all.rank(), n_values);
  std::vector<float> in_order = DrawnValues(0, n_values);
  std::vector<double> exact(in_order.begin(), in_order.end());
  std::vector<double> sizes(n_values);
  for (size_t i = 0; i < n_values; ++i) sizes[i] = std::abs(exact[i]);
  for (int rank = 1; rank < all.size(); ++rank) {
    const std::vector<float> others = DrawnValues(rank, n_values);
    for (size_t i = 0; i < n_values; ++i) {
      in_order[i] += others[i];
      exact[i] += others[i];
      sizes[i] += std::abs(others[i]);
    }
  }
  KVL_RETURN_IF_ERROR(all.AllReduce(values));
  for (size_t i = 0; i < n_values; ++i) {
    if (std::memcmp(&values[i], &in_order[i], sizeof(float)) != 0) {
      return Wrong(all, fmt::format("sum {} of {} is {}, in the order of ranks it is {}", i,
                                    n_values, values[i], in_order[i]));
    }
    if (std::abs(values[i] - exact[i]) > 0x1p-23 * all.size() * sizes[i]) {
      return Wrong(all,
                   fmt::format("sum {} of {} is {}, not {}", i, n_values, values[i], exact[i]));
    }
  }
  return CheckSame(all, std::as_bytes(std::span(values)));
}

// Even where NaN meets NaN, all ranks keep the same one.
Status CheckNans(Communicator& all) {
  std::vector<float> values(40, all.rank() % 2 == 0 ? 1.0f : std::nanf("7"));
  values[1] = all.rank() == 0 ? -std::nanf("5") : std::nanf("9");
  KVL_RETURN_IF_ERROR(all.AllReduce(values));
  if (all.size() > 1 && !std::isnan(values[0])) return Wrong(all, "a NaN was lost");
  return CheckSame(all, std::as_bytes(std::span(values)));
}

Status CheckReceived(Communicator& all, std::span<const std::byte> bytes, int seed,
                     size_t n_bytes) {
  const std::vector<std::byte> expected = DrawnBytes(seed, n_bytes);
  if (!std::equal(bytes.begin(), bytes.end(), expected.begin(), expected.end())) {
    return Wrong(all,
                 fmt::format("{} bytes of seed {} came as {} others", n_bytes, seed, bytes.size()));
  }
  return OkStatus();
}

// A message to the next rank and one from the one before; the even ranks send first.
Status PassAround(Communicator& all, size_t n_bytes) {
  const int next = (all.rank() + 1) % all.size();
  const int before = (all.rank() + all.size() - 1) % all.size();
  const std::vector<std::byte> mine = DrawnBytes(all.rank(), n_bytes);
  std::vector<std::byte> received(n_bytes);
  std::vector<std::byte> message;
  for (const bool sends : {all.rank() % 2 == 0, all.rank() % 2 != 0}) {
    if (sends) {
      KVL_RETURN_IF_ERROR(all.SendMessage(next, mine));
      KVL_RETURN_IF_ERROR(all.Send(next, mine));
    } else {
      KVL_ASSIGN_OR_RETURN(message, all.ReceiveMessage(before, /*wait_forever=*/n_bytes % 2 == 0));
      KVL_RETURN_IF_ERROR(all.Receive(before, received));
    }
  }
  KVL_RETURN_IF_ERROR(CheckReceived(all, message, before, n_bytes));
  return CheckReceived(all, received, before, n_bytes);
}

// Many small messages of growing sizes from rank 0 to all, before anybody receives.
Status CheckOrder(Communicator& all) {
  constexpr size_t kMessages = 40;
  for (int to = 1; all.rank() == 0 && to < all.size(); ++to) {
    for (size_t i = 0; i < kMessages; ++i) {
      KVL_RETURN_IF_ERROR(all.SendMessage(to, DrawnBytes(static_cast<int>(i) + to, i)));
    }
  }
  // Sums meanwhile are no messages.
  KVL_RETURN_IF_ERROR(CheckSum(all, 5));
  for (size_t i = 0; all.rank() != 0 && i < kMessages; ++i) {
    KVL_ASSIGN_OR_RETURN(const auto message, all.ReceiveMessage(0));
    KVL_RETURN_IF_ERROR(CheckReceived(all, message, static_cast<int>(i) + all.rank(), i));
  }
  return OkStatus();
}

Status CheckPart(Communicator& all, Communicator& part, const std::vector<int>& ranks) {
  if (part.size() != static_cast<int>(ranks.size())) return Wrong(all, "a part has another size");
  if (ranks[static_cast<size_t>(part.rank())] != all.rank()) {
    return Wrong(all, "a rank has another place in its part");
  }
  for (int rank = 0; rank < part.size(); ++rank) {
    if (part.host_of(rank) != all.host_of(ranks[static_cast<size_t>(rank)])) {
      return Wrong(all, "a rank of a part is on another host");
    }
  }
  KVL_RETURN_IF_ERROR(CheckSum(part, 77));
  return CheckMessages(part);
}

// Each refusal reaches all ranks.
Status CheckRefusedLists(Communicator& all) {
  const int n_ranks = all.size();
  std::vector<std::vector<int>> lists = {
      {},                                                              // not in it
      {all.rank(), all.rank()},                                        // twice
      {all.rank(), n_ranks},                                           // nobody
      std::vector<int>(static_cast<size_t>(n_ranks + 3), all.rank()),  // too long
  };
  if (n_ranks > 1) lists.push_back({all.rank(), (all.rank() + 1) % n_ranks});
  if (n_ranks == 2) lists.back() = {all.rank() == 0 ? std::vector<int>{0} : std::vector<int>{0, 1}};
  for (const std::vector<int>& list : lists) {
    const auto part = all.Split(list);
    if (part.status().code() != StatusCode::kInvalidArgument) {
      return Wrong(all, fmt::format("a list of {} ranks was not refused: {}", list.size(),
                                    part.status().ToString()));
    }
  }
  return OkStatus();
}

}  // namespace

Status CheckAllReduce(Communicator& all) {
  for (const size_t n_values : kSizes) KVL_RETURN_IF_ERROR(CheckSum(all, n_values));
  return CheckNans(all);
}

Status CheckGatherAndBroadcast(Communicator& all) {
  for (const size_t n_bytes : kSizes) {
    const std::vector<std::byte> mine = DrawnBytes(all.rank(), n_bytes);
    std::vector<std::byte> gathered(n_bytes * static_cast<size_t>(all.size()));
    KVL_RETURN_IF_ERROR(all.AllGather(mine, gathered));
    for (int rank = 0; rank < all.size(); ++rank) {
      const auto part = std::span(gathered).subspan(static_cast<size_t>(rank) * n_bytes, n_bytes);
      KVL_RETURN_IF_ERROR(CheckReceived(all, part, rank, n_bytes));
    }
  }
  for (int root = 0; root < all.size(); ++root) {
    const size_t n_bytes = 1000 * static_cast<size_t>(root);
    std::vector<std::byte> bytes = DrawnBytes(all.rank(), n_bytes);
    KVL_RETURN_IF_ERROR(all.Broadcast(root, bytes));
    KVL_RETURN_IF_ERROR(CheckReceived(all, bytes, root, n_bytes));
  }
  return OkStatus();
}

Status CheckMessages(Communicator& all) {
  if (all.size() == 1) return OkStatus();
  for (const size_t n_bytes : {0, 1, 4097, 200000, 9 << 20}) {
    KVL_RETURN_IF_ERROR(PassAround(all, n_bytes));
  }
  return CheckOrder(all);
}

Status CheckSplit(Communicator& all) {
  std::vector<int> ranks;
  for (int rank = all.size() - 1; rank >= 0; --rank) {
    if (rank % 2 == all.rank() % 2) ranks.push_back(rank);
  }
  KVL_ASSIGN_OR_RETURN(const auto part, all.Split(ranks));
  KVL_RETURN_IF_ERROR(CheckPart(all, *part, ranks));
  // Only the first part is split again: then ranks have made different numbers of communicators.
  if (all.rank() % 2 == 0) {
    const std::vector<int> alone = {part->rank()};
    KVL_ASSIGN_OR_RETURN(const auto single, part->Split(alone));
    KVL_RETURN_IF_ERROR(CheckPart(*part, *single, alone));
  }
  KVL_RETURN_IF_ERROR(CheckRefusedLists(all));
  std::vector<int> everybody(static_cast<size_t>(all.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  std::rotate(everybody.begin(), everybody.begin() + 1, everybody.end());
  KVL_ASSIGN_OR_RETURN(const auto turned, all.Split(everybody));
  // What is in flight in one communicator does not reach another.
  const std::vector<std::byte> early = DrawnBytes(99, 10);
  const std::vector<std::byte> late = DrawnBytes(98, 10);
  if (all.size() > 1 && all.rank() == 0) {
    KVL_RETURN_IF_ERROR(all.SendMessage(1, early));
    KVL_RETURN_IF_ERROR(turned->SendMessage(0, late));
  }
  if (all.size() > 1 && all.rank() == 1) {
    KVL_ASSIGN_OR_RETURN(const auto first, turned->ReceiveMessage(turned->size() - 1));
    KVL_RETURN_IF_ERROR(CheckReceived(all, first, 98, 10));
    KVL_ASSIGN_OR_RETURN(const auto second, all.ReceiveMessage(0));
    KVL_RETURN_IF_ERROR(CheckReceived(all, second, 99, 10));
  }
  return CheckPart(all, *turned, everybody);
}

Status CheckCommunicator(Communicator& all) {
  KVL_RETURN_IF_ERROR(CheckAllReduce(all));
  KVL_RETURN_IF_ERROR(CheckGatherAndBroadcast(all));
  KVL_RETURN_IF_ERROR(CheckMessages(all));
  return CheckSplit(all);
}

}  // namespace kvlathe
