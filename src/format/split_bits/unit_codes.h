// What codes stand for in channels that have no scale of their own: rows come in units of their
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

// What codes stand for by their windows.
inline constexpr int kCodeWindows = 32;
constexpr int LowWindowBits(int bits) { return HasHighBit(bits) ? 4 : 5; }  // of a word
const float* UnitValues(int bits, StoredUnit unit = StoredUnit::kChannel);

// The same in Bf16, as a table for look-ups by words that hold the bits of a window lowest. With 3
// and 5 bits the first 32 entries are those without the high bit, each of them twice, and the
// other 32 those with it.
const uint16_t* UnitTable(int bits, StoredUnit unit = StoredUnit::kChannel);

// The same as whole numbers of kUnitNumberStep, for look-ups by bytes: the lower bytes of the
// values of the first 16 windows and their upper bytes, and then those of the other 16.
inline constexpr float kUnitNumberStep = 1.0f / 512;
inline constexpr float kLargestUnitNumber = 128 * kUnitStep / kUnitNumberStep;
const int8_t* UnitNumbers(int bits, StoredUnit unit = StoredUnit::kChannel);

// The mean square error of codes of `bits` on a channel of unit variance with the tails of
// TailDegrees. With 0 bits it is 1: the whole channel is lost.
double UnitLoss(int bits, StoredUnit unit = StoredUnit::kChannel);

}  // namespace kvlathe
