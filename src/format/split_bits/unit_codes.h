// What codes stand for in channels that have no scale of their own: rows come in units of their
// channel's deviation, less its mean, because the basis that makes them folds both away.
//
// 1 to 5 bits: the centroids that lose least of a channel with the tails of kTailDegrees (Lloyd
// 1982, Max 1960), rounded to Bf16. 8 bits: even steps of kUnitStep.
#pragma once

#include <cstdint>
#include <span>

namespace kvlathe {

// Stored channels are more pointed than a normal distribution: Student's t with this many degrees
// of freedom, scaled to unit variance.
inline constexpr double kTailDegrees = 8;

inline constexpr float kUnitStep = 1.0f / 16;  // from code to code at 8 bits; code 128 is 0

// Ascending, 1 << bits of them; bits from 1 to 5.
std::span<const float> UnitCentroids(int bits);
// The code of x is the number of these below it: (1 << bits) - 1 of them, half way between
// centroids.
std::span<const float> UnitBoundaries(int bits);

// The centroids as tables of Bf16 for look-ups by 16-bit words that hold other codes above theirs:
// 32 numbers by the low bits of a code (LowBits), repeated; and for 3 and 5 bits 32 more, of the
// codes with their high bit set.
const uint16_t* UnitTable(int bits);

// The centroids as whole numbers of kUnitNumberStep, for look-ups by bytes: their 16 lower and
// their 16 upper bytes, repeated where there are fewer; at 5 bits both of the codes without, then
// with their high bit.
inline constexpr float kUnitNumberStep = 1.0f / 512;
inline constexpr float kLargestUnitNumber = 128 * kUnitStep / kUnitNumberStep;
const int8_t* UnitNumbers(int bits);

// The mean square that a code of `bits` loses of a channel of unit variance; 0 bits: all of it.
double UnitLoss(int bits);

}  // namespace kvlathe
