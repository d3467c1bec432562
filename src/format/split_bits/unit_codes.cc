#include "format/split_bits/unit_codes.h"

#include <array>
#include <bit>

#include "base/check.h"
#include "format/packed_layout.h"

namespace kvlathe {
namespace {

constexpr int kMaxBits = 5;

template <size_t kHalf>
constexpr std::array<float, 2 * kHalf> Mirrored(const std::array<float, kHalf>& positive) {
  std::array<float, 2 * kHalf> all{};
  for (size_t i = 0; i < kHalf; ++i) {
    all[kHalf + i] = positive[i];
    all[kHalf - 1 - i] = -positive[i];
  }
  return all;
}

template <size_t kN>
constexpr std::array<float, kN - 1> HalfWays(const std::array<float, kN>& centroids) {
  std::array<float, kN - 1> boundaries{};
  for (size_t i = 0; i + 1 < kN; ++i) boundaries[i] = (centroids[i] + centroids[i + 1]) / 2;
  return boundaries;
}

// unit_codes_test finds them again from the density.
constexpr auto kCentroids1 = Mirrored<1>({0.765625f});
constexpr auto kCentroids2 = Mirrored<2>({0.45703125f, 1.625f});
constexpr auto kCentroids3 = Mirrored<4>({0.2578125f, 0.8125f, 1.5078125f, 2.671875f});
constexpr auto kCentroids4 = Mirrored<8>(
    {0.138671875f, 0.421875f, 0.72265625f, 1.0625f, 1.453125f, 1.9609375f, 2.6875f, 4.03125f});
constexpr auto kCentroids5 =
    Mirrored<16>({0.072265625f, 0.216796875f, 0.365234375f, 0.515625f, 0.671875f, 0.83984375f,
                  1.015625f, 1.2109375f, 1.421875f, 1.6640625f, 1.9453125f, 2.28125f, 2.703125f,
                  3.28125f, 4.15625f, 5.84375f});
constexpr auto kBoundaries1 = HalfWays(kCentroids1);
constexpr auto kBoundaries2 = HalfWays(kCentroids2);
constexpr auto kBoundaries3 = HalfWays(kCentroids3);
constexpr auto kBoundaries4 = HalfWays(kCentroids4);
constexpr auto kBoundaries5 = HalfWays(kCentroids5);

constexpr std::array<std::span<const float>, kMaxBits> kCentroids = {
    kCentroids1, kCentroids2, kCentroids3, kCentroids4, kCentroids5};
constexpr std::array<std::span<const float>, kMaxBits> kBoundaries = {
    kBoundaries1, kBoundaries2, kBoundaries3, kBoundaries4, kBoundaries5};
using Table = std::array<uint16_t, 64>;

template <size_t kN>
constexpr Table MakeTable(const std::array<float, kN>& centroids, int bits) {
  const size_t n_low = size_t{1} << LowBits(bits), n_high = HasHighBit(bits) ? n_low : 0;
  Table table{};
  for (size_t i = 0; i < 32; ++i) {
    table[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(centroids[i % n_low]) >> 16);
    table[32 + i] =
        static_cast<uint16_t>(std::bit_cast<uint32_t>(centroids[n_high + i % n_low]) >> 16);
  }
  return table;
}

alignas(64) constexpr Table kTables[kMaxBits] = {
    MakeTable(kCentroids1, 1), MakeTable(kCentroids2, 2), MakeTable(kCentroids3, 3),
    MakeTable(kCentroids4, 4), MakeTable(kCentroids5, 5)};

using Numbers = std::array<int8_t, 64>;

template <size_t kN>
constexpr Numbers MakeNumbers(const std::array<float, kN>& centroids) {
  Numbers numbers{};
  const auto number = [&](size_t code) {
    return static_cast<int>(centroids[code] / kUnitNumberStep);  // exact
  };
  const auto upper = [&](size_t code) { return static_cast<int8_t>(number(code) >> 8); };
  const auto lower = [&](size_t code) { return static_cast<int8_t>(number(code) & 255); };
  for (size_t i = 0; i < 32; ++i) {
    const size_t code = i % kN;
    numbers[i / 16 * 32 + i % 16] = lower(code);
    numbers[i / 16 * 32 + 16 + i % 16] = upper(code);
  }
  return numbers;
}

constexpr Numbers kNumbers[kMaxBits] = {MakeNumbers(kCentroids1), MakeNumbers(kCentroids2),
                                        MakeNumbers(kCentroids3), MakeNumbers(kCentroids4),
                                        MakeNumbers(kCentroids5)};

constexpr std::array<double, kMaxBits + 1> kLosses = {1,         0.414063,  0.150466,
                                                      0.0484252, 0.0141481, 0.00386733};

}  // namespace

std::span<const float> UnitCentroids(int bits) {
  KVL_DCHECK(bits >= 1 && bits <= kMaxBits);
  return kCentroids[bits - 1];
}

std::span<const float> UnitBoundaries(int bits) {
  KVL_DCHECK(bits >= 1 && bits <= kMaxBits);
  return kBoundaries[bits - 1];
}

const uint16_t* UnitTable(int bits) {
  KVL_DCHECK(bits >= 1 && bits <= kMaxBits);
  return kTables[bits - 1].data();
}

const int8_t* UnitNumbers(int bits) {
  KVL_DCHECK(bits >= 1 && bits <= kMaxBits);
  return kNumbers[bits - 1].data();
}

double UnitLoss(int bits) {
  if (bits <= kMaxBits) return kLosses[bits];
  return double{kUnitStep} * kUnitStep / 12;
}

}  // namespace kvlathe
