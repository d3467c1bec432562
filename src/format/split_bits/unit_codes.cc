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

using Bytes = std::array<uint8_t, 32>;

template <size_t kN>
constexpr Bytes MakeBytes(const std::array<float, kN>& centroids, float step) {
  Bytes bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(centroids[i % kN] / step + 128.5f);
  }
  return bytes;
}

// The finest steps with which the largest centroids of 5 and of 3 bits are bytes, by StoredUnit.
constexpr float kByteStepSizes[][kByteSteps] = {{kUnitStep, 5.84375f / 127, 2.671875f / 127},
                                                {kUnitStep, 3.9375f / 127, 2.3125f / 127}};

// All that there is of codes of so many bits.
template <int kBits>
struct CodesOf {
  static constexpr size_t kHalf = size_t{1} << (kBits - 1);
  std::array<float, 2 * kHalf> centroids;
  std::array<float, 2 * kHalf - 1> boundaries;
  alignas(64) Table table;
  alignas(64) Numbers numbers;
  Bytes bytes;

  constexpr CodesOf(StoredUnit unit, const std::array<float, kHalf>& positive)
      : centroids(Mirrored(positive)),
        boundaries(HalfWays(centroids)),
        table(MakeTable(centroids, kBits)),
        numbers(MakeNumbers(centroids)),
        bytes(MakeBytes(centroids, kByteStepSizes[static_cast<int>(unit)][ByteStepOf(kBits)])) {}
};

// unit_codes_test finds the centroids again from the densities.
constexpr CodesOf<1> kOfChannels1(StoredUnit::kChannel, {0.765625f});
constexpr CodesOf<2> kOfChannels2(StoredUnit::kChannel, {0.45703125f, 1.625f});
constexpr CodesOf<3> kOfChannels3(StoredUnit::kChannel,
                                  {0.2578125f, 0.8125f, 1.5078125f, 2.671875f});
constexpr CodesOf<4> kOfChannels4(StoredUnit::kChannel,
                                  {0.138671875f, 0.421875f, 0.72265625f, 1.0625f, 1.453125f,
                                   1.9609375f, 2.6875f, 4.03125f});
constexpr CodesOf<5> kOfChannels5(StoredUnit::kChannel,
                                  {0.072265625f, 0.216796875f, 0.365234375f, 0.515625f, 0.671875f,
                                   0.83984375f, 1.015625f, 1.2109375f, 1.421875f, 1.6640625f,
                                   1.9453125f, 2.28125f, 2.703125f, 3.28125f, 4.15625f, 5.84375f});
constexpr CodesOf<1> kOfTokens1(StoredUnit::kToken, {0.78515625f});
constexpr CodesOf<2> kOfTokens2(StoredUnit::kToken, {0.455078125f, 1.546875f});
constexpr CodesOf<3> kOfTokens3(StoredUnit::kToken, {0.25f, 0.77734375f, 1.3984375f, 2.3125f});
constexpr CodesOf<4> kOfTokens4(StoredUnit::kToken, {0.134765625f, 0.40625f, 0.6875f, 0.9921875f,
                                                     1.3359375f, 1.734375f, 2.265625f, 3.09375f});
constexpr CodesOf<5> kOfTokens5(StoredUnit::kToken,
                                {0.072265625f, 0.21875f, 0.365234375f, 0.51171875f, 0.6640625f,
                                 0.81640625f, 0.98046875f, 1.1484375f, 1.328125f, 1.5234375f,
                                 1.7421875f, 1.984375f, 2.28125f, 2.640625f, 3.125f, 3.9375f});

struct CodesView {
  std::span<const float> centroids, boundaries;
  const uint16_t* table;
  const int8_t* numbers;
  const uint8_t* bytes;

  template <int kBits>
  constexpr CodesView(const CodesOf<kBits>& codes)  // NOLINT: tables list them
      : centroids(codes.centroids),
        boundaries(codes.boundaries),
        table(codes.table.data()),
        numbers(codes.numbers.data()),
        bytes(codes.bytes.data()) {}
};
constexpr CodesView kOfChannels[kMaxBits] = {kOfChannels1, kOfChannels2, kOfChannels3, kOfChannels4,
                                             kOfChannels5};
constexpr CodesView kOfTokens[kMaxBits] = {kOfTokens1, kOfTokens2, kOfTokens3, kOfTokens4,
                                           kOfTokens5};

const CodesView& CodesAt(int bits, StoredUnit unit) {
  KVL_DCHECK(bits >= 1 && bits <= kMaxBits);
  return (unit == StoredUnit::kToken ? kOfTokens : kOfChannels)[bits - 1];
}

constexpr std::array<double, kMaxBits + 1> kLosses = {1,         0.414063,  0.150466,
                                                      0.0484252, 0.0141481, 0.00386733};

}  // namespace

std::span<const float> UnitCentroids(int bits, StoredUnit unit) {
  return CodesAt(bits, unit).centroids;
}

std::span<const float> UnitBoundaries(int bits, StoredUnit unit) {
  return CodesAt(bits, unit).boundaries;
}

const uint16_t* UnitTable(int bits, StoredUnit unit) { return CodesAt(bits, unit).table; }

const int8_t* UnitNumbers(int bits, StoredUnit unit) { return CodesAt(bits, unit).numbers; }

float ByteStep(int step, StoredUnit unit) { return kByteStepSizes[static_cast<int>(unit)][step]; }

const uint8_t* UnitBytes(int bits, StoredUnit unit) { return CodesAt(bits, unit).bytes; }

double UnitLoss(int bits) {
  if (bits <= kMaxBits) return kLosses[bits];
  return double{kUnitStep} * kUnitStep / 12;
}

}  // namespace kvlathe
