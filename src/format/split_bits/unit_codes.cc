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

using Windows = std::array<float, kCodeWindows>;

// Of codes that stand for themselves.
template <size_t kN>
constexpr Windows WindowsOf(const std::array<float, kN>& centroids, int bits) {
  Windows windows{};
  const size_t low_mask = (size_t{1} << LowBits(bits)) - 1;
  for (size_t i = 0; i < windows.size(); ++i) {
    const size_t high = HasHighBit(bits) ? i >> 4 << LowBits(bits) : 0;
    windows[i] = centroids[(i & low_mask) | high];
  }
  return windows;
}

constexpr double FactorOfRead(double loss) {
  return kCoherentFactor / (loss + kCoherentFactor * (1 - loss));
}

// The nearest multiple of kUnitNumberStep that is exact in Bf16.
constexpr float Rounded(double x) {
  const double size = x < 0 ? -x : x;
  double step = kUnitNumberStep;
  while (step * 256 <= size) step *= 2;
  const double n = size / step + 0.5;
  const double rounded = static_cast<double>(static_cast<int64_t>(n)) * step;
  return static_cast<float>(x < 0 ? -rounded : rounded);
}

constexpr Windows ReadWindows(const Windows& sought, double loss) {
  Windows windows{};
  for (size_t i = 0; i < windows.size(); ++i) {
    windows[i] = Rounded(sought[i] * FactorOfRead(loss));
  }
  return windows;
}

using Table = std::array<uint16_t, 64>;

constexpr Table MakeTable(const Windows& windows, int bits) {
  Table table{};
  for (size_t i = 0; i < table.size(); ++i) {
    const size_t window = HasHighBit(bits) ? i % 16 + i / 32 * 16 : i % 32;
    table[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(windows[window]) >> 16);
  }
  return table;
}

using Numbers = std::array<int8_t, 64>;

constexpr Numbers MakeNumbers(const Windows& windows) {
  Numbers numbers{};
  for (size_t i = 0; i < windows.size(); ++i) {
    const int number = static_cast<int>(windows[i] / kUnitNumberStep);  // exact
    numbers[i / 16 * 32 + i % 16] = static_cast<int8_t>(number & 255);
    numbers[i / 16 * 32 + 16 + i % 16] = static_cast<int8_t>(number >> 8);
  }
  return numbers;
}

using Bytes = std::array<uint8_t, kCodeWindows>;

constexpr Bytes MakeBytes(const Windows& windows, float step) {
  Bytes bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(windows[i] / step + 128.5f);
  }
  return bytes;
}

using SmallBytes = std::array<int8_t, kCodeWindows>;

constexpr SmallBytes MakeSmallBytes(const Windows& windows, float step) {
  SmallBytes bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) {
    const float steps = windows[i] / step;
    bytes[i] = static_cast<int8_t>(steps + (steps < 0 ? -0.5f : 0.5f));
  }
  return bytes;
}

// The largest values of 1 to kSmallBits bits, by StoredUnit.
constexpr float kLargestSmallValue[] = {2.765625f, 3.09375f};

constexpr float SmallStepOf(StoredUnit unit) {
  return kLargestSmallValue[static_cast<int>(unit)] / kLargestSmall;
}

// The finest steps with which the largest values of 4 and 5 and of 1 to 3 bits are bytes, by
// StoredUnit.
constexpr float kByteStepSizes[][kByteSteps] = {
    {kUnitStep, 5.875f / 127, kLargestSmallValue[0] / 127},
    {kUnitStep, 3.953125f / 127, kLargestSmallValue[1] / 127}};

// All that there is of codes of so many bits.
template <int kBits>
struct CodesOf {
  static constexpr size_t kHalf = size_t{1} << (kBits - 1);
  double loss;
  std::array<float, 2 * kHalf> centroids;
  std::array<float, 2 * kHalf - 1> boundaries;
  Windows sought, windows;
  alignas(64) Table table;
  alignas(64) Numbers numbers;
  Bytes bytes;
  SmallBytes small_bytes{};

  // Of codes that stand for themselves.
  constexpr CodesOf(StoredUnit unit, double unit_loss, const std::array<float, kHalf>& positive)
      : CodesOf(unit, unit_loss, positive, WindowsOf(Mirrored(positive), kBits)) {}
  // Of paths. The centroids are those of codes that would stand for themselves.
  constexpr CodesOf(StoredUnit unit, double unit_loss, const std::array<float, kHalf>& positive,
                    const Windows& values)
      : loss(unit_loss),
        centroids(Mirrored(positive)),
        boundaries(HalfWays(centroids)),
        sought(values),
        windows(ReadWindows(values, unit_loss)),
        table(MakeTable(windows, kBits)),
        numbers(MakeNumbers(windows)),
        bytes(MakeBytes(windows, kByteStepSizes[static_cast<int>(unit)][ByteStepOf(kBits)])) {
    if (kBits <= kSmallBits) small_bytes = MakeSmallBytes(windows, SmallStepOf(unit));
  }
};

// unit_codes_test finds the centroids again from the densities.
constexpr CodesOf<1> kOfChannels1(StoredUnit::kChannel, 0.414063, {0.765625f});
constexpr CodesOf<2> kOfChannels2(StoredUnit::kChannel, 0.150466, {0.45703125f, 1.625f});
constexpr CodesOf<3> kOfChannels3(StoredUnit::kChannel, 0.0484252,
                                  {0.2578125f, 0.8125f, 1.5078125f, 2.671875f});
constexpr CodesOf<4> kOfChannels4(StoredUnit::kChannel, 0.0141481,
                                  {0.138671875f, 0.421875f, 0.72265625f, 1.0625f, 1.453125f,
                                   1.9609375f, 2.6875f, 4.03125f});
constexpr CodesOf<5> kOfChannels5(StoredUnit::kChannel, 0.00386733,
                                  {0.072265625f, 0.216796875f, 0.365234375f, 0.515625f, 0.671875f,
                                   0.83984375f, 1.015625f, 1.2109375f, 1.421875f, 1.6640625f,
                                   1.9453125f, 2.28125f, 2.703125f, 3.28125f, 4.15625f, 5.84375f});
constexpr CodesOf<1> kOfTokens1(StoredUnit::kToken, 0.32162, {0.78515625f},
                                {-0.69140625f,  0.470703125f,  0.9921875f,   -0.296875f,
                                 0.041015625f,  -0.119140625f, 0.65625f,     -1.0703125f,
                                 -2.125f,       -0.56640625f,  -0.04296875f, 1.328125f,
                                 0.361328125f,  0.7109375f,    0.271484375f, -1.2578125f,
                                 -0.68359375f,  0.7734375f,    0.9765625f,   -0.34765625f,
                                 -0.10546875f,  -0.259765625f, -0.91015625f, 0.70703125f,
                                 0.6953125f,    2.125f,        -1.265625f,   -0.203125f,
                                 -0.416015625f, 0.04296875f,   -0.6171875f,  1.1015625f});
constexpr CodesOf<2> kOfTokens2(StoredUnit::kToken, 0.09918, {0.455078125f, 1.546875f},
                                {0.462890625f, -0.310546875f, 1.34375f,     -1.34375f,
                                 -1.0546875f,  1.203125f,     0.1328125f,   -0.376953125f,
                                 2.5f,         0.91015625f,   0.185546875f, -0.6171875f,
                                 0.09375f,     -0.6328125f,   -1.640625f,   0.69140625f,
                                 -0.59765625f, 0.04296875f,   -1.8046875f,  0.9296875f,
                                 0.5390625f,   -0.173828125f, 1.578125f,    -1.1796875f,
                                 -2.53125f,    0.71875f,      -0.71875f,    -0.00390625f,
                                 -0.9765625f,  -0.111328125f, 0.5078125f,   1.71875f});
constexpr CodesOf<3> kOfTokens3(
    StoredUnit::kToken, 0.02916, {0.25f, 0.77734375f, 1.3984375f, 2.3125f},
    {2.0f,        -1.2890625f,  -0.06640625f, -0.8125f,     -2.296875f,  0.4296875f,  -0.470703125f,
     -1.5703125f, 0.306640625f, -1.890625f,   2.796875f,    -1.1015625f, 1.921875f,   0.609375f,
     -1.3203125f, -0.765625f,   0.56640625f,  0.224609375f, 1.0546875f,  -0.3671875f, -0.029296875f,
     1.4453125f,  -0.93359375f, 0.83984375f,  0.8359375f,   -0.09375f,   1.4296875f,  -0.51953125f,
     1.1328125f,  -0.3359375f,  0.142578125f, -3.03125f});
constexpr CodesOf<4> kOfTokens4(
    StoredUnit::kToken, 0.00881,
    {0.134765625f, 0.40625f, 0.6875f, 0.9921875f, 1.3359375f, 1.734375f, 2.265625f, 3.09375f},
    {2.078125f,     0.15234375f, 3.328125f,    -0.4765625f, -0.06640625f, -1.71875f,   -0.94921875f,
     -0.244140625f, 1.1171875f,  -0.71484375f, -2.546875f,  1.4921875f,   0.6015625f,  0.8359375f,
     0.35546875f,   -1.2578125f, -0.5390625f,  -1.09375f,   -0.80859375f, 0.98828125f, 0.25f,
     0.45703125f,   -1.453125f,  0.048828125f, -2.046875f,  -3.34375f,    2.546875f,   1.7578125f,
     -0.14453125f,  -0.34375f,   1.296875f,    0.70703125f});
constexpr CodesOf<5> kOfTokens5(StoredUnit::kToken, 0.00292413,
                                {0.072265625f, 0.21875f, 0.365234375f, 0.51171875f, 0.6640625f,
                                 0.81640625f, 0.98046875f, 1.1484375f, 1.328125f, 1.5234375f,
                                 1.7421875f, 1.984375f, 2.28125f, 2.640625f, 3.125f, 3.9375f});

struct CodesView {
  double loss;
  std::span<const float> centroids, boundaries;
  const float *sought, *windows;
  const uint16_t* table;
  const int8_t* numbers;
  const uint8_t* bytes;
  const int8_t* small_bytes;

  template <int kBits>
  constexpr CodesView(const CodesOf<kBits>& codes)  // NOLINT: tables list them
      : loss(codes.loss),
        centroids(codes.centroids),
        boundaries(codes.boundaries),
        sought(codes.sought.data()),
        windows(codes.windows.data()),
        table(codes.table.data()),
        numbers(codes.numbers.data()),
        bytes(codes.bytes.data()),
        small_bytes(codes.small_bytes.data()) {}
};
constexpr CodesView kOfChannels[kMaxBits] = {kOfChannels1, kOfChannels2, kOfChannels3, kOfChannels4,
                                             kOfChannels5};
constexpr CodesView kOfTokens[kMaxBits] = {kOfTokens1, kOfTokens2, kOfTokens3, kOfTokens4,
                                           kOfTokens5};

const CodesView& CodesAt(int bits, StoredUnit unit) {
  KVL_DCHECK(bits >= 1 && bits <= kMaxBits);
  return (unit == StoredUnit::kToken ? kOfTokens : kOfChannels)[bits - 1];
}

}  // namespace

std::span<const float> UnitCentroids(int bits, StoredUnit unit) {
  return CodesAt(bits, unit).centroids;
}

std::span<const float> UnitBoundaries(int bits, StoredUnit unit) {
  return CodesAt(bits, unit).boundaries;
}

const float* SoughtUnitValues(int bits, StoredUnit unit) { return CodesAt(bits, unit).sought; }

const float* UnitValues(int bits, StoredUnit unit) { return CodesAt(bits, unit).windows; }

const uint16_t* UnitTable(int bits, StoredUnit unit) { return CodesAt(bits, unit).table; }

const int8_t* UnitNumbers(int bits, StoredUnit unit) { return CodesAt(bits, unit).numbers; }

float ByteStep(int step, StoredUnit unit) { return kByteStepSizes[static_cast<int>(unit)][step]; }

const uint8_t* UnitBytes(int bits, StoredUnit unit) { return CodesAt(bits, unit).bytes; }

float SmallStep(StoredUnit unit) { return SmallStepOf(unit); }

const int8_t* SmallUnitBytes(int bits, StoredUnit unit) { return CodesAt(bits, unit).small_bytes; }

double UnitLoss(int bits, StoredUnit unit) {
  if (bits == 0) return 1;
  return bits <= kMaxBits ? CodesAt(bits, unit).loss : double{kUnitStep} * kUnitStep / 12;
}

double UnitCost(int bits, StoredUnit unit) {
  const double loss = UnitLoss(bits, unit);
  return loss * FactorOfRead(loss);
}

}  // namespace kvlathe
