#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/memory/cpu_device.h"
#include "cpu/memory/guarded_device.h"

namespace kvlathe {
namespace {

std::vector<std::byte> Downloaded(Device* device, const ObjectPlace& from, int64_t n_bytes) {
  std::vector<std::byte> bytes(static_cast<size_t>(n_bytes));
  device->Download(from, bytes);
  return bytes;
}

template <typename D>
class DeviceTest : public testing::Test {
 protected:
  D device_;
};
using Devices = testing::Types<CpuDevice, GuardedDevice>;
TYPED_TEST_SUITE(DeviceTest, Devices);

TYPED_TEST(DeviceTest, BytesComeBackAsTheyWent) {
  Device& device = this->device_;
  const uint32_t a = device.Allocate(1000), b = device.Allocate(100000);
  ASSERT_NE(a, 0u);
  ASSERT_NE(b, a);
  std::vector<std::byte> bytes(300);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i % 251);
  device.Upload({{a, 2}, 7}, bytes);
  EXPECT_EQ(Downloaded(&device, {{a, 2}, 7}, 300), bytes);
  device.Copy({{b, 1000}, 0}, {{a, 0}, 2 * kDeviceAlignment + 7}, 300);
  EXPECT_EQ(Downloaded(&device, {{b, 1000}, 0}, 300), bytes);
  device.Fill({{b, 1000}, 100}, std::byte{9}, 100);
  EXPECT_THAT(Downloaded(&device, {{b, 1000}, 100}, 100), testing::Each(std::byte{9}));
  EXPECT_EQ(Downloaded(&device, {{b, 1000}, 200}, 100),
            std::vector<std::byte>(bytes.begin() + 200, bytes.end()));
}

TYPED_TEST(DeviceTest, NumbersOfFreedRegionsAreUsedAgainTheLowestFirst) {
  Device& device = this->device_;
  const uint32_t a = device.Allocate(64), b = device.Allocate(64), c = device.Allocate(64);
  device.Free(b);
  device.Free(a);
  EXPECT_EQ(device.Allocate(64), a);
  EXPECT_EQ(device.Allocate(64), b);
  EXPECT_EQ(device.Allocate(64), c + 1);
}

TYPED_TEST(DeviceTest, DiscardedPagesAreZeroAndTheirNeighboursStay) {
  Device& device = this->device_;
  const int64_t page = device.page_bytes();
  const uint32_t region = device.Allocate(3 * page);
  device.Fill({{region, 0}, 0}, std::byte{5}, 3 * page);
  device.Discard(region, page, page);
  EXPECT_THAT(Downloaded(&device, {{region, 0}, page}, page), testing::Each(std::byte{0}));
  EXPECT_THAT(Downloaded(&device, {{region, 0}, 2 * page}, page), testing::Each(std::byte{5}));
}

TYPED_TEST(DeviceTest, HasNoRegionWhereTheSystemHasNoRoom) {
  EXPECT_EQ(this->device_.Allocate(int64_t{1} << 60), 0u);
}

TYPED_TEST(DeviceTest, KernelsSeeWhatWasUploaded) {
  CpuDevice& device = this->device_;
  const uint32_t region = device.Allocate(4096);
  device.Fill({{region, 1}, 0}, std::byte{3}, 64);
  const CpuAccess access(device);
  EXPECT_EQ(*access.At(ObjectId{region, 1}), std::byte{3});
  EXPECT_EQ(access.At(ObjectPlace{{region, 0}, 64}), access.At(ObjectId{region, 1}));
  EXPECT_EQ(access.At(ObjectId()), nullptr);
  const std::array ids = {ObjectId{region, 1}, ObjectId()};
  EXPECT_THAT(access.At(ids), testing::ElementsAre(access.At(ids[0]), nullptr));
}

TEST(CpuDevice, GivesMemoryOfTheCallersANumber) {
  alignas(kDeviceAlignment) std::array<std::byte, 128> memory = {};
  CpuDevice device;
  const uint32_t region = device.Adopt(memory.data());
  device.Fill({{region, 1}, 0}, std::byte{8}, 64);
  EXPECT_EQ(memory[63], std::byte{0});
  EXPECT_EQ(memory[64], std::byte{8});
}

std::byte* AddressAfterAccess(CpuDevice* device, const ObjectId& id) {
  const CpuAccess access(*device);
  return access.At(id);
}

// The address is right and the object is alive: only the guard can be what ends the program.
TEST(GuardedDeviceDeathTest, BitesWhoeverTouchesAnObjectOutsideAVerb) {
  GuardedDevice device;
  const ObjectId id = {device.Allocate(4096), 3};
  device.Fill({id, 0}, std::byte{1}, 64);
  volatile auto* const address = reinterpret_cast<uint8_t*>(AddressAfterAccess(&device, id));
  EXPECT_DEATH(static_cast<void>(uint8_t{*address}), "");
  EXPECT_DEATH(*address = 2, "");
  const CpuAccess access(device);
  EXPECT_EQ(uint8_t{*address}, 1);
}

TEST(GuardedDevice, StaysOpenUntilTheLastAccessIsOver) {
  GuardedDevice device;
  const ObjectId id = {device.Allocate(4096), 0};
  volatile auto* const address = reinterpret_cast<uint8_t*>(AddressAfterAccess(&device, id));
  const auto first = std::make_unique<CpuAccess>(device);
  auto second = std::make_unique<CpuAccess>(device);
  second.reset();
  *address = 4;
  EXPECT_EQ(uint8_t{*address}, 4);
}

TEST(GuardedDevice, WhatIsFreedInAnyOrderIsOneStretchAgain) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  GuardedDevice device;
  const uint32_t a = device.Allocate(300 * kMiB), b = device.Allocate(300 * kMiB),
                 c = device.Allocate(300 * kMiB);
  ASSERT_NE(c, 0u);
  EXPECT_EQ(device.Allocate(300 * kMiB), 0u);
  device.Free(b);
  EXPECT_EQ(device.Allocate(400 * kMiB), 0u);
  device.Free(a);
  device.Free(c);
  EXPECT_NE(device.Allocate(1000 * kMiB), 0u);
}

}  // namespace
}  // namespace kvlathe
