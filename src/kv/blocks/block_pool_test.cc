#include "kv/blocks/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/units.h"
#include "cpu/memory/guarded_device.h"
#include "kv/blocks/host_pool_fixture.h"

namespace kvlathe {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

void Fill(BlockPool* pool, const ObjectId& object, int mark, int64_t n_bytes) {
  pool->device().Fill({object}, static_cast<std::byte>(mark), n_bytes);
}

std::byte ByteAt(const BlockPool& pool, const ObjectId& object, int64_t offset) {
  std::byte byte;
  pool.device().Download({object, offset}, {&byte, 1});
  return byte;
}

bool Holds(const BlockPool& pool, const ObjectId& object, int mark, int64_t n_bytes) {
  std::vector<std::byte> bytes(static_cast<size_t>(n_bytes));
  pool.device().Download({object}, bytes);
  return std::ranges::all_of(bytes, [&](std::byte b) { return b == static_cast<std::byte>(mark); });
}

TEST(BlockPool, CountsExactSizesInStepsOf64Bytes) {
  HostPool pool(kMiB);
  const ObjectId block = pool.Allocate(ObjectKind::kBlock, 6144);
  const ObjectId run = pool.Allocate(ObjectKind::kRunRecord, 65);
  const ObjectId layer = pool.Allocate(ObjectKind::kLayerRecord, 1);
  const ObjectId table = pool.Allocate(ObjectKind::kTable, 64);
  const PoolUsage usage = pool.usage();
  EXPECT_EQ(usage.used_bytes, 6144 + 128 + 64 + 64);
  EXPECT_THAT(usage.used_by_kind, testing::ElementsAre(6144, 128, 64, 64));
  EXPECT_EQ(usage.budget_bytes, kMiB);
  for (const ObjectId& object : {block, run, layer, table}) pool.Release(object);
  EXPECT_THAT(pool.usage().used_by_kind, testing::Each(0));
  EXPECT_EQ(pool.usage().peak_bytes, 6144 + 128 + 64 + 64);
}

// A keeper lets go when memory is short, so what it alone holds is as good as free.
TEST(BlockPool, CountsWhatOnlyKeepersHold) {
  HostPool pool(kMiB);
  const ObjectId object = pool.Allocate(ObjectKind::kBlock, 640);
  EXPECT_FALSE(pool.IsShared(object));
  pool.AddReference(object);
  pool.AddKeeper(object);
  EXPECT_TRUE(pool.IsShared(object));
  EXPECT_EQ(pool.usage().kept_bytes, 0);
  pool.Release(object);  // who wrote it has ended
  EXPECT_EQ(pool.usage().kept_bytes, 640);
  EXPECT_EQ(pool.usage().needed_bytes(), 0);
  pool.AddReference(object);  // a second keeper's
  EXPECT_EQ(pool.usage().kept_bytes, 0);
  pool.AddKeeper(object);
  EXPECT_EQ(pool.usage().kept_bytes, 640);
  pool.AddReference(object);  // of one who reads it
  EXPECT_EQ(pool.usage().needed_bytes(), 640);
  for (int n = 0; n < 2; ++n) {
    pool.RemoveKeeper(object);
    pool.Release(object);
    EXPECT_EQ(pool.usage().kept_bytes, 0);
  }
  EXPECT_EQ(pool.usage().needed_bytes(), 640);
  pool.CountHostTables(64);
  pool.CountKeptTables(64);
  EXPECT_EQ(pool.usage().kept_bytes, 64);
  pool.CountKeptTables(-64);
  pool.CountHostTables(-64);
  pool.Release(object);
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

TEST(BlockPool, RefusesWhatTheBudgetDoesNotHold) {
  HostPool pool(256);
  EXPECT_TRUE(pool.HasRoomFor(256));
  EXPECT_FALSE(pool.HasRoomFor(257));
  const ObjectId object = pool.Allocate(ObjectKind::kBlock, 200);
  ASSERT_FALSE(object.is_null());
  EXPECT_FALSE(pool.HasRoomFor(1));
  EXPECT_TRUE(pool.Allocate(ObjectKind::kBlock, 1).is_null());
  EXPECT_EQ(pool.usage().used_bytes, 256);
  pool.Release(object);
  EXPECT_FALSE(pool.Allocate(ObjectKind::kBlock, 256).is_null());
  EXPECT_TRUE(HostPool(100).Allocate(ObjectKind::kBlock, 65).is_null());
}

TEST(BlockPool, ReturnsNullWhenTheSystemHasNoRoom) {
  HostPool pool(kNoLimit);
  EXPECT_TRUE(pool.Allocate(ObjectKind::kBlock, int64_t{1} << 60).is_null());
  EXPECT_EQ(pool.usage().used_bytes, 0);
  EXPECT_EQ(pool.usage().reserved_bytes, 0);
  EXPECT_EQ(pool.usage().peak_bytes, 0);
}

TEST(BlockPool, AnObjectLivesUntilItsLastReference) {
  HostPool pool(kMiB);
  const ObjectId object = pool.Allocate(ObjectKind::kRunRecord, 64);
  pool.AddReference(object);
  pool.AddReference(object);
  pool.Release(object);
  pool.Release(object);
  EXPECT_EQ(pool.usage().used_bytes, 64);
  EXPECT_NE(pool.Allocate(ObjectKind::kRunRecord, 64), object);
  pool.Release(object);
  EXPECT_EQ(pool.usage().used_bytes, 64);
  EXPECT_EQ(pool.Allocate(ObjectKind::kRunRecord, 64), object);
}

TEST(BlockPool, ObjectsLargerThanAChunkReturnAtOnceBeyondTheSlack) {
  HostPool pool(kNoLimit);
  const ObjectId object = pool.Allocate(ObjectKind::kBlock, 5 * kMiB + 64);
  ASSERT_FALSE(object.is_null());
  Fill(&pool, object, 1, 5 * kMiB + 64);
  EXPECT_GE(pool.usage().reserved_bytes, 5 * kMiB + 64);
  pool.Release(object);
  EXPECT_EQ(pool.usage().reserved_bytes, 0);
}

TEST(BlockPool, ResizeKeepsContentsAndCountsTheDifference) {
  HostPool pool(256 + 64);
  const ObjectId object = pool.Allocate(ObjectKind::kTable, 256);
  Fill(&pool, object, 7, 256);
  const ObjectId grown = pool.Resize(object, 320);  // both copies would not fit the budget
  ASSERT_FALSE(grown.is_null());
  EXPECT_TRUE(Holds(pool, grown, 7, 256));
  EXPECT_EQ(pool.usage().used_bytes, 320);
  EXPECT_EQ(pool.usage().peak_bytes, 320);
  EXPECT_TRUE(pool.Resize(grown, 321).is_null());
  EXPECT_EQ(ByteAt(pool, grown, 255), std::byte{7});
  const ObjectId shrunk = pool.Resize(grown, 64);
  ASSERT_FALSE(shrunk.is_null());
  EXPECT_EQ(pool.usage().used_by_kind[static_cast<int>(ObjectKind::kTable)], 64);
  pool.Release(shrunk);
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

// Memory of which there is none left at will.
class FailingDevice : public CpuDevice {
 public:
  uint32_t Allocate(int64_t n_bytes) override {
    return n_left-- > 0 ? CpuDevice::Allocate(n_bytes) : 0;
  }
  int n_left = 1 << 30;
};

TEST(BlockPool, AFullPoolShrinksAllOrNone) {
  FailingDevice memory;
  BlockPool pool(int64_t{3} * 256 + 64, &memory);
  std::vector<ObjectId> objects;
  for (int i = 0; i < 3; ++i) {
    objects.push_back(pool.Allocate(ObjectKind::kBlock, 256));
    Fill(&pool, objects.back(), 10 + i, 256);
  }
  objects.push_back(pool.Allocate(ObjectKind::kBlock, 64));
  Fill(&pool, objects.back(), 13, 64);
  const std::vector<ObjectId> before = objects;
  const auto shrink = [&] {
    const BlockPool::Shrinking all[] = {
        {&objects[0], 128}, {&objects[1], 192}, {&objects[2], 100}, {&objects[3], 64}};
    return pool.ShrinkAll(all);
  };
  for (const int n_left : {0, 1}) {  // chunks of two sizes are new
    memory.n_left = n_left;
    EXPECT_FALSE(shrink());
    EXPECT_EQ(objects, before);
    EXPECT_EQ(pool.usage().used_bytes, 3 * 256 + 64);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(Holds(pool, objects[i], 10 + i, i < 3 ? 256 : 64));
  }
  memory.n_left = 2;
  EXPECT_TRUE(shrink());
  EXPECT_EQ(pool.usage().used_bytes, 128 + 192 + 128 + 64);
  EXPECT_EQ(pool.usage().peak_bytes, pool.usage().budget_bytes);
  EXPECT_TRUE(Holds(pool, objects[0], 10, 128));
  EXPECT_TRUE(Holds(pool, objects[1], 11, 192));
  EXPECT_TRUE(Holds(pool, objects[2], 12, 128));
  EXPECT_EQ(objects[3], before[3]);
  for (const ObjectId& object : objects) pool.Release(object);
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

TEST(BlockPool, ACopyIsAnObjectOfItsOwnUnderTheBudget) {
  HostPool pool(512);
  const ObjectId object = pool.Allocate(ObjectKind::kRunRecord, 256);
  Fill(&pool, object, 7, 256);
  const ObjectId copy = pool.CopyOf(object);
  ASSERT_FALSE(copy.is_null());
  EXPECT_EQ(pool.usage().used_by_kind[static_cast<int>(ObjectKind::kRunRecord)], 512);
  EXPECT_TRUE(pool.CopyOf(object).is_null());
  Fill(&pool, object, 8, 256);
  EXPECT_TRUE(Holds(pool, copy, 7, 256));
  pool.Release(object);
  pool.Release(copy);
  EXPECT_EQ(pool.usage().used_bytes, 0);
}

TEST(BlockPool, TablesOfTheHostCountAgainstTheBudget) {
  HostPool pool(256);
  EXPECT_TRUE(pool.CountHostTables(192));
  EXPECT_FALSE(pool.CountHostTables(128));
  EXPECT_TRUE(pool.Allocate(ObjectKind::kBlock, 128).is_null());
  EXPECT_EQ(pool.usage().used_by_kind[static_cast<int>(ObjectKind::kTable)], 192);
  EXPECT_EQ(pool.usage().reserved_bytes, 192);
  EXPECT_TRUE(pool.CountHostTables(-128));
  EXPECT_FALSE(pool.Allocate(ObjectKind::kBlock, 128).is_null());
  EXPECT_EQ(pool.usage().peak_bytes, 192);
}

TEST(BlockPool, TakesTheMemoryOfItsDevice) {
  GuardedDevice device;
  BlockPool pool(kMiB, &device);
  const ObjectId object = pool.Allocate(ObjectKind::kBlock, 64);
  Fill(&pool, object, 3, 64);
  EXPECT_TRUE(Holds(pool, pool.CopyOf(object), 3, 64));
  EXPECT_EQ(&pool.device(), &device);
}

// How much memory may be lost to holes, on the blocks of a layout with uneven ranks: sums of ranks
// from 32 to 256 in steps of 16, skewed to the middle as adaptive ranks are, with sinks and records
// among them.
int64_t DrawObjectBytes(Random* random) {
  const uint64_t draw = random->Below(20);
  if (draw == 0) return 64 * (1 + static_cast<int64_t>(random->Below(30)));
  return 2048 * (2 + static_cast<int64_t>(random->Below(8) + random->Below(8)));
}

void ExpectReservedWithinBound(const PoolUsage& usage) {
  EXPECT_GE(usage.reserved_bytes, usage.used_bytes);
  if (usage.reserved_bytes > 64 * kMiB) {
    EXPECT_LE(usage.reserved_bytes, usage.used_bytes * 110 / 100);
  }
}

TEST(BlockPool, ReservedStaysWithinTenPercentUnderRandomFrees) {
  HostPool pool(kNoLimit);
  Random random(11);
  std::vector<ObjectId> live;
  for (int wave = 0; wave < 6; ++wave) {
    while (pool.usage().used_bytes < 320 * kMiB) {
      live.push_back(pool.Allocate(ObjectKind::kBlock, DrawObjectBytes(&random)));
      if (live.size() % 256 == 0) ExpectReservedWithinBound(pool.usage());
    }
    const int64_t floor_bytes = kMiB * static_cast<int64_t>(40 + random.Below(200));
    while (pool.usage().used_bytes > floor_bytes) {
      std::swap(live[random.Below(live.size())], live.back());
      pool.Release(live.back());
      live.pop_back();
      if (live.size() % 256 == 0) ExpectReservedWithinBound(pool.usage());
    }
  }
  for (const ObjectId& object : live) pool.Release(object);
  EXPECT_EQ(pool.usage().used_bytes, 0);
  EXPECT_LE(pool.usage().reserved_bytes, 4 * kMiB);
}

TEST(BlockPool, ManySizesWithFewObjectsHoldFewPages) {
  HostPool pool(kNoLimit);
  for (int64_t n_bytes = 16384; pool.usage().used_bytes < 70 * kMiB; n_bytes += 64) {
    ASSERT_FALSE(pool.Allocate(ObjectKind::kBlock, n_bytes).is_null());
  }
  ExpectReservedWithinBound(pool.usage());
}

// A GPU's memory, which has no pages that it could do without.
TEST(BlockPool, RegionsAreHeldWholeWhereNothingIsGivenBack) {
  class NoPages : public Device {
   public:
    uint32_t Allocate(int64_t /*n_bytes*/) override { return ++n_regions_; }
    void Free(uint32_t /*region*/) override {}
    int64_t page_bytes() const override { return int64_t{1} << 40; }
    void Discard(uint32_t /*region*/, int64_t /*offset*/, int64_t /*n_bytes*/) override {
      ADD_FAILURE() << "of a device without pages";
    }
    void Upload(const ObjectPlace& /*to*/, std::span<const std::byte> /*from*/) override {}
    void Download(const ObjectPlace& /*from*/, std::span<std::byte> /*to*/) override {}
    void Copy(const ObjectPlace& /*to*/, const ObjectPlace& /*from*/, int64_t /*n*/) override {}
    void Fill(const ObjectPlace& /*to*/, std::byte /*value*/, int64_t /*n*/) override {}

   private:
    uint32_t n_regions_ = 0;
  } device;
  BlockPool pool(kNoLimit, &device);
  std::vector<ObjectId> objects;
  for (int i = 0; i < 24; ++i) objects.push_back(pool.Allocate(ObjectKind::kBlock, kMiB / 8));
  objects.push_back(pool.Allocate(ObjectKind::kBlock, 16 * kMiB));
  EXPECT_EQ(pool.usage().reserved_bytes, (3 + 16) * kMiB);
  for (const ObjectId& object : std::span(objects).subspan(1)) pool.Release(object);
  // Regions that hold nothing go back as far as the slack says.
  EXPECT_EQ(pool.usage().used_bytes, kMiB / 8);
  EXPECT_LE(pool.usage().reserved_bytes, 5 * kMiB);
}

TEST(BlockPool, PagesThatWereGivenBackCanBeUsedAgain) {
  HostPool pool(kNoLimit);
  std::vector<ObjectId> objects;
  for (int i = 0; i < 2000; ++i) objects.push_back(pool.Allocate(ObjectKind::kBlock, 12288));
  for (int i = 0; i < 2000; ++i) {
    Fill(&pool, objects[i], i % 251, 12288);
    if (i % 2 == 1) pool.Release(objects[i]);
  }
  EXPECT_LT(pool.usage().reserved_bytes, 1000 * 12288 + 5 * kMiB);
  for (int i = 1; i < 2000; i += 2) {
    objects[i] = pool.Allocate(ObjectKind::kBlock, 12288);
    Fill(&pool, objects[i], i % 251, 12288);
  }
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(Holds(pool, objects[i], i % 251, 12288)) << i;
  }
}

// Random operations against a map of what should be alive; contents betray overlapping objects.
TEST(BlockPool, AgreesWithASimpleModelOnRandomOperations) {
  struct Object {
    ObjectKind kind;
    int64_t n_bytes;
    int n_references;
    uint8_t mark;
  };
  const int64_t budget_bytes = 3 * kMiB;
  HostPool pool(budget_bytes);
  std::map<ObjectId, Object> model;
  int64_t used_bytes = 0, peak_bytes = 0;
  Random random(5);
  const auto pick = [&] { return std::next(model.begin(), random.Below(model.size())); };
  const auto write = [&](const ObjectId& object, const Object& o) {
    Fill(&pool, object, o.mark, o.n_bytes);
  };
  for (int step = 0; step < 60000; ++step) {
    const int64_t n_bytes = 1 + static_cast<int64_t>(random.Below(random.Below(3) ? 700 : 40000));
    const int64_t rounded = RoundUp(n_bytes, 64);
    switch (model.empty() ? 0 : random.Below(5)) {
      case 0:
      case 1: {
        const Object o{static_cast<ObjectKind>(random.Below(4)), rounded, 1, uint8_t(step)};
        const ObjectId object = pool.Allocate(o.kind, n_bytes);
        ASSERT_EQ(!object.is_null(), used_bytes + rounded <= budget_bytes);
        if (object.is_null()) break;
        ASSERT_TRUE(model.emplace(object, o).second);
        write(object, o);
        used_bytes += rounded;
        break;
      }
      case 2: {
        auto it = pick();
        pool.AddReference(it->first);
        ++it->second.n_references;
        break;
      }
      case 3: {
        auto it = pick();
        Object o = it->second;
        if (o.n_references > 1) break;
        const ObjectId moved = pool.Resize(it->first, n_bytes);
        ASSERT_EQ(!moved.is_null(), used_bytes + rounded - o.n_bytes <= budget_bytes);
        if (moved.is_null()) break;
        ASSERT_EQ(ByteAt(pool, moved, std::min(o.n_bytes, rounded) - 1), std::byte{o.mark});
        model.erase(it);
        used_bytes += rounded - o.n_bytes;
        o.n_bytes = rounded;
        write(moved, o);
        ASSERT_TRUE(model.emplace(moved, o).second);
        break;
      }
      default: {
        auto it = pick();
        const Object& o = it->second;
        ASSERT_EQ(ByteAt(pool, it->first, 0), std::byte{o.mark});
        ASSERT_EQ(ByteAt(pool, it->first, o.n_bytes - 1), std::byte{o.mark});
        pool.Release(it->first);
        if (--it->second.n_references > 0) break;
        used_bytes -= o.n_bytes;
        model.erase(it);
      }
    }
    peak_bytes = std::max(peak_bytes, used_bytes);
    ASSERT_EQ(pool.usage().used_bytes, used_bytes);
    ASSERT_EQ(pool.usage().peak_bytes, peak_bytes);
  }
  int64_t by_kind[kNumObjectKinds] = {};
  for (const auto& [object, o] : model) by_kind[static_cast<int>(o.kind)] += o.n_bytes;
  EXPECT_THAT(pool.usage().used_by_kind, testing::ElementsAreArray(by_kind));
}

}  // namespace
}  // namespace kvlathe
