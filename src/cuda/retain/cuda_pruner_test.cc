// Entries that a GPU drops against those that the CPU drops: every byte that stays.
#include "cuda/retain/cuda_pruner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/random.h"
#include "base/threads.h"
#include "cpu/kernels/residents/cpu_residents.h"
#include "cpu/memory/cpu_device.h"
#include "cpu/prune.h"

namespace kvlathe {
namespace {

constexpr int kEntries = 200;
constexpr int kHeads = 2;

struct PruneCase {
  const char* name;
  BlockShape shape = {.rank_k = 48, .rank_v = 32};
  bool in_order = true;
  bool shares_heads = false;
  bool restarts_votes = false;
  bool has_sums = true;
  int pool_kernel = 1;
};

using CudaPrunerTest = ::testing::TestWithParam<PruneCase>;

// What a device holds: the blocks and tables of all heads.
struct PrunedCache {
  PrunedCache(Device* memory, const PruneCase& c) : device(memory) {
    Random random(5);
    constexpr int kBlocks = (kEntries + kBlockSize - 1) / kBlockSize;
    const auto drawn = [&](int64_t n) {
      std::vector<std::byte> bytes(n);
      for (std::byte& b : bytes) b = static_cast<std::byte>(random.Below(256));
      return bytes;
    };
    const auto placed = [&](const std::vector<std::byte>& bytes) {
      const ObjectId id = {.region = memory->Allocate(std::ssize(bytes))};
      memory->Upload({.object = id}, bytes);
      objects.emplace_back(id, std::ssize(bytes));
      return id;
    };
    for (int g = 0; g < kHeads; ++g) {
      blocks.emplace_back();
      for (int b = 0; b < kBlocks; ++b) blocks.back().push_back(placed(drawn(BlockBytes(c.shape))));
      std::vector<std::byte> table(kBlocks * EntryTable::BlockBytes(c.has_sums));
      const EntryTable entries(table.data(), c.has_sums);
      for (int e = 0; e < kEntries; ++e) {
        entries.position(e) = 3 * e;
        if (c.has_sums) entries.sum(e) = static_cast<int64_t>(random.Below(50));
      }
      heads.push_back({.shape = c.shape,
                       .blocks = blocks.back(),
                       .entries = {.object = placed(table), .has_sums = c.has_sums},
                       .n_entries = kEntries});
    }
    for (int g = 0; g < kHeads; ++g) heads[g].blocks = blocks[g];
  }
  PrunePlan Plan(const PruneCase& c) const {
    return {.device = device,
            .heads = heads,
            .pool_kernel = c.pool_kernel,
            .shares_heads = c.shares_heads,
            .restarts_votes = c.restarts_votes,
            .kept = {.n = 120, .n_recent = 16},
            .in_order = c.in_order};
  }
  std::vector<std::byte> Bytes() const {
    std::vector<std::byte> all;
    for (const auto& [id, n_bytes] : objects) {
      std::vector<std::byte> bytes(n_bytes);
      device->Download({.object = id}, bytes);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

  Device* device;
  std::vector<std::pair<ObjectId, int64_t>> objects;
  std::vector<std::vector<ObjectId>> blocks;
  std::vector<PruneHead> heads;
};

TEST_P(CudaPrunerTest, LeavesTheBytesOfTheCpu) {
  const PruneCase& c = GetParam();
  CpuDevice host;
  const PrunedCache on_host(&host, c);
  const std::vector<std::byte> before = on_host.Bytes();
  {
    const CpuResidents residents(&host);
    ThreadPool threads(1);
    const CpuAccess access(host);
    PruneHeads(on_host.Plan(c), {access, access, residents}, &threads);
  }
  const std::unique_ptr<CudaStream> stream = CudaStream::Create().value();
  const std::unique_ptr<CudaDevice> device = CudaDevice::Create(stream.get(), 4 << 20).value();
  const PrunedCache on_device(device.get(), c);
  ASSERT_EQ(on_device.Bytes(), before);
  ASSERT_TRUE(CudaPruner::Takes(on_device.Plan(c)));
  CudaPruner(device.get()).Prune(on_device.Plan(c));
  EXPECT_TRUE(stream->Finish().ok());
  const std::vector<std::byte> after = on_host.Bytes();
  EXPECT_NE(after, before);
  EXPECT_EQ(on_device.Bytes(), after);
}

INSTANTIATE_TEST_SUITE_P(
    Caches, CudaPrunerTest,
    ::testing::Values(PruneCase{.name = "InOrder"}, PruneCase{.name = "Gaps", .in_order = false},
                      PruneCase{.name = "F32",
                                .shape = {.rank_k = 16, .rank_v = 64, .row_type = DType::kF32}},
                      PruneCase{.name = "SharedHeads", .shares_heads = true},
                      PruneCase{.name = "LastVotes", .restarts_votes = true, .pool_kernel = 5},
                      PruneCase{.name = "NoVotes", .has_sums = false}),
    [](const auto& info) { return info.param.name; });

TEST(CudaPrunerRefusalTest, SealedEntriesAreTheMirrors) {
  const std::vector<ObjectId> opened = {{.region = 1}};
  const std::vector<PruneHead> heads = {{.entries = {.object = {.region = 1}}, .opened = opened}};
  EXPECT_FALSE(CudaPruner::Takes({.heads = heads}));
}

}  // namespace
}  // namespace kvlathe
