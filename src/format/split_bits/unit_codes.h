// What codes stand for in channels that have no scale of their own: rows come in units of their
// channel's deviation, less its mean, because the basis that makes them folds both away. They may
// be divided by a scale of their token too.
//
// Codes of 1 to 5 bits stand for the centroids that lose least of a channel with the tails of
// TailDegrees (Lloyd 1982, Max 1960), rounded to Bf16. Codes of 8 bits stand for even steps of
// kUnitStep.
#pragma once

#include <cstdint>
#include <span>

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

// The 1 << bits centroids in ascending order, for bits from 1 to 5.
std::span<const float> UnitCentroids(int bits, StoredUnit unit = StoredUnit::kChannel);
// The (1 << bits) - 1 boundaries, each half way between two centroids. The code of x is the number
// of boundaries below x.
std::span<const float> UnitBoundaries(int bits, StoredUnit unit = StoredUnit::kChannel);

// The centroids in Bf16, as a table for look-ups by 16-bit words that hold other codes in the bits
// above. The first 32 entries go by the low bits of a code (LowBits) and repeat where these are
// fewer than 5. For 3 and 5 bits 32 more entries follow, for the codes whose high bit is set.
const uint16_t* UnitTable(int bits, StoredUnit unit = StoredUnit::kChannel);

// The centroids as whole numbers of kUnitNumberStep, for look-ups by bytes: first the lower bytes
// of 16 centroids, then their upper bytes; they repeat where there are fewer than 16. At 5 bits
// these are the centroids of codes without the high bit, and those of codes with it follow.
inline constexpr float kUnitNumberStep = 1.0f / 512;
inline constexpr float kLargestUnitNumber = 128 * kUnitStep / kUnitNumberStep;
const int8_t* UnitNumbers(int bits, StoredUnit unit = StoredUnit::kChannel);

// The centroids as bytes, for dots of bytes: code c stands for (byte - 128) times ByteStep, and at
// 8 bits the byte is the code. Codes of fewer bits are rounded so. Bits that lose about as much
// share a step, and those of a step follow each other in a row of channels.
inline constexpr int kByteSteps = 3;
constexpr int ByteStepOf(int bits) { return bits == 8 ? 0 : bits >= 4 ? 1 : 2; }
float ByteStep(int step, StoredUnit unit);
// The 1 << bits bytes for bits from 1 to 5, again and again up to 32 of them.
const uint8_t* UnitBytes(int bits, StoredUnit unit = StoredUnit::kChannel);

// The mean square error of codes of `bits` on a channel of unit variance, without scales of tokens.
// With 0 bits it is 1: the whole channel is lost.
double UnitLoss(int bits);

}  // namespace kvlathe
