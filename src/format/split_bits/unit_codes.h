// Unit codes stand for numbers of channels that have no scale of their own: rows come in units of a
// channel's deviation, less its mean, because the basis that makes them folds both away. They may
// be divided by a scale of their token too.
//
// Codes of 1 to 5 bits in units of a channel stand for the centroids that lose least of a channel
// with the tails of TailDegrees (Lloyd 1982, Max 1960), rounded to Bf16. Codes of 8 bits stand for
// even steps of kUnitStep.
//
// In units of a token, codes of 1 to 4 bits are trellis codes (Marcellin and Fischer 1990, Trellis
// coded quantization; read by a window of bits as in QTIP, arXiv 2406.11235): what a code stands
// for depends on bits of the codes beside it in its word (code_lines.h) as well, so a word stands
// for a path, and sealing looks for a path that loses little. The window has five bits:
//   bits 1, 2, 4  those of the word from the code's lowest on, round the end of the word
//   bits 3, 5     four such bits, and the high bit of the code as the fifth and highest
// A code that stands for itself has tables in which the other bits of the window make no
// difference, so all are read alike.
//
// The value whose square loses least, the mean of what gets a code, is smaller than what it stands
// for by the share D that codes lose: x^ = (1 - D) x + noise. That shrinking is alike at all
// positions, so attention does not average it out as it does noise. With an error that goes with x
// costing k = kCoherentFactor times an independent one, values read are those found when sealing
// times k / (D + k (1 - D)).
#pragma once

#include <cstdint>
#include <span>

#include "format/codes/code_lines.h"

namespace kvlathe {

// The unit that a stored number counts in: its channel's deviation, or that times the scale of its
// token.
enum class StoredUnit : uint8_t { kChannel, kToken };

// Stored channels are more pointed than a normal distribution: Student's t with this many degrees
// of freedom, scaled to unit variance. The scales of tokens take most of the tails away: with them
// 20 degrees lose 5 to 8% less of SmolLM2-135M's rows than 8 do, and as little as a normal
// distribution.
constexpr double TailDegrees(StoredUnit unit) { return unit == StoredUnit::kToken ? 20 : 8; }

// Errors that go with the row itself, as when a channel has no bits at all, are alike at
// neighbouring positions; F (analysis/statistics/statistics.h) takes positions as independent and
// prices them too low. Of cuts that cost 1, 2, 4, 16 and 100 times as much, 2 and 4 lose least on
// SmolLM2-135M.
inline constexpr double kCoherentFactor = 4;

inline constexpr float kUnitStep = 1.0f / 16;  // from code to code at 8 bits; code 128 is 0

// The 1 << bits centroids in ascending order, for bits from 1 to 5, each code for itself.
std::span<const float> UnitCentroids(int bits, StoredUnit unit = StoredUnit::kChannel);
// The (1 << bits) - 1 boundaries, each half way between two centroids. The code of x is the number
// of boundaries below x.
std::span<const float> UnitBoundaries(int bits, StoredUnit unit = StoredUnit::kChannel);

// Whether codes stand for paths.
constexpr bool HasTrellis(int bits, StoredUnit unit) {
  return unit == StoredUnit::kToken && bits <= 4;
}

// What codes stand for by their windows: the values that sealing looks for, and those that are
// read in their place, multiples of kUnitNumberStep that are exact in Bf16.
inline constexpr int kCodeWindows = 32;
constexpr int LowWindowBits(int bits) { return HasHighBit(bits) ? 4 : 5; }  // of a word
const float* SoughtUnitValues(int bits, StoredUnit unit = StoredUnit::kChannel);
const float* UnitValues(int bits, StoredUnit unit = StoredUnit::kChannel);

// UnitValues in Bf16, as a table for look-ups by words that hold the bits of a window lowest. With
// 3 and 5 bits the first 32 entries are those without the high bit, each of them twice, and the
// other 32 those with it.
const uint16_t* UnitTable(int bits, StoredUnit unit = StoredUnit::kChannel);

// The same as whole numbers of kUnitNumberStep, for look-ups by bytes: the lower bytes of the
// values of the first 16 windows and their upper bytes, and then those of the other 16.
inline constexpr float kUnitNumberStep = 1.0f / 512;
inline constexpr float kLargestUnitNumber = 128 * kUnitStep / kUnitNumberStep;
const int8_t* UnitNumbers(int bits, StoredUnit unit = StoredUnit::kChannel);

// UnitValues as bytes, for dots of bytes: a window stands for (byte - 128) times ByteStep, to which
// it is rounded, and at 8 bits the byte is the code. Bits that lose about as much share a step, and
// those of a step follow each other in a row of channels.
inline constexpr int kByteSteps = 3;
constexpr int ByteStepOf(int bits) { return bits == 8 ? 0 : bits >= 4 ? 1 : 2; }
float ByteStep(int step, StoredUnit unit);
const uint8_t* UnitBytes(int bits, StoredUnit unit = StoredUnit::kChannel);

// UnitValues of 1 to kSmallBits bits as bytes from -63 to 63, times SmallStep: bytes of 7 bits, of
// whose products with others two fit into 16 bits.
inline constexpr int kSmallBits = 3;
inline constexpr int kLargestSmall = 63;
float SmallStep(StoredUnit unit);
const int8_t* SmallUnitBytes(int bits, StoredUnit unit = StoredUnit::kChannel);

// The mean square error of the values that sealing looks for on a channel of unit variance with
// the tails of TailDegrees. With 0 bits it is 1: the whole channel is lost.
double UnitLoss(int bits, StoredUnit unit = StoredUnit::kChannel);

// What the values that are read cost of the variance of a channel, what shrinks counted
// kCoherentFactor times: k D / (D + k (1 - D)) with D the UnitLoss.
double UnitCost(int bits, StoredUnit unit = StoredUnit::kChannel);

}  // namespace kvlathe
