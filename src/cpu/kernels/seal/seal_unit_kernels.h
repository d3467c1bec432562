// The kernels of sealing that make codes of split bits (unit_codes.h), and measure what they lose.
// Only files that are compiled for one instruction set may include this.
#pragma once

#include "cpu/kernels/seal/seal_kernels.h"
#include "cpu/kernels/seal/seal_vectors.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {
namespace {

// Adding 1.5 * 2^23 rounds half to even and leaves the integer in the low bits of the mantissa.
constexpr float kRoundingBias = 0x1.8p23f;

// A code as a number, and what is read in its place.
struct UnitCode {
  Floats code, value;
};

class UnitTableCoder {
 public:
  UnitTableCoder(int bits, StoredUnit unit)
      : n_codes_(1 << bits), boundaries_(UnitBoundaries(bits, unit).data()) {
    const float* const values = UnitValues(bits, unit);
    for (int code = 0; code < n_codes_; ++code) {
      const int low = code & ((1 << LowBits(bits)) - 1);
      values_[code] = values[HasHighBit(bits) ? low + (code >> LowBits(bits)) * 16 : low];
    }
  }

  KVL_INLINE UnitCode Encode(Floats x) const {
    const Floats one = Splat(1.0f), zero = Splat(0.0f);
    UnitCode to = {zero, Splat(values_[0])};
    for (int c = 1; c < n_codes_; ++c) {
      const Ints is_above = Splat(boundaries_[c - 1]) < x;
      to.code = to.code + Select(is_above, one, zero);
      to.value = Select(is_above, Splat(values_[c]), to.value);
    }
    return to;
  }

 private:
  int n_codes_;
  const float* boundaries_;
  float values_[32];  // that are read
};

struct UnitStepCoder {
  KVL_INLINE UnitCode Encode(Floats x) const {
    const Floats step = Splat(kUnitStep), middle = Splat(128.0f), bias = Splat(kRoundingBias);
    const Floats code =
        Lower()(Higher()(x / step + middle, Splat(0.0f)), Splat(255.0f)) + bias - bias;
    return {code, (code - middle) * step};
  }
};

template <typename Coder>
void EncodeBy(const Coder& coder, int64_t n, float* x, float* residual) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const Floats from = Load(x + i);
    const UnitCode to = coder.Encode(from);
    if (residual != nullptr) Store(from - to.value, residual + i);
    Store(to.code, x + i);
  }
}

void EncodeUnits(int bits, StoredUnit unit, int64_t n, float* x, float* residual) {
  if (bits == 8) return EncodeBy(UnitStepCoder(), n, x, residual);
  EncodeBy(UnitTableCoder(bits, unit), n, x, residual);
}

// The number nearest to x >= 0 of a table's upper half, which mirrors the lower one.
struct UpperHalf {
  static constexpr int32_t kMask = 0x7fffffff;  // the sign makes no difference
  int n;
  const float *centroids, *boundaries;  // the first boundary is the one between the first two

  KVL_INLINE void Nearest(const Floats (&x)[kLossFactors], Floats (&values)[kLossFactors]) const {
#pragma GCC unroll 6
    for (Floats& value : values) value = Splat(centroids[0]);
    for (int c = 1; c < n; ++c) {
      const Floats boundary = Splat(boundaries[c - 1]), centroid = Splat(centroids[c]);
#pragma GCC unroll 6
      for (int i = 0; i < kLossFactors; ++i) {
        values[i] = Select(boundary < x[i], centroid, values[i]);
      }
    }
  }
};

struct UnitSteps {
  static constexpr int32_t kMask = -1;  // there is one more step below 0

  KVL_INLINE void Nearest(const Floats (&x)[kLossFactors], Floats (&values)[kLossFactors]) const {
#pragma GCC unroll 6
    for (int i = 0; i < kLossFactors; ++i) values[i] = UnitStepCoder().Encode(x[i]).value;
  }
};

// Losses of numbers, of which codes look at the bits of kMask.
template <typename Codes>
void LossesOf(const Codes& codes, int64_t n, const float* x, const float* factors, float* losses) {
  Floats sums[kLossFactors];
#pragma GCC unroll 6
  for (Floats& sum : sums) sum = Splat(0.0f);
  for (int64_t first = 0; first < n; first += kLanes) {
    const Floats from = FromBits(BitsOf(Load(x + first)) & Splat(Codes::kMask));
    Floats scaled[kLossFactors], values[kLossFactors];
#pragma GCC unroll 6
    for (int i = 0; i < kLossFactors; ++i) scaled[i] = from * Splat(factors[i]);
    codes.Nearest(scaled, values);
#pragma GCC unroll 6
    for (int i = 0; i < kLossFactors; ++i) {
      const Floats lost = scaled[i] - values[i];
      sums[i] = sums[i] + lost * lost;
    }
  }
  for (int i = 0; i < kLossFactors; ++i) {
    const Pair sum = FoldPairs(sums[i], Sum());
    losses[i] = sum.even + sum.odd;
  }
}

void UnitLosses(int bits, int64_t n, const float* x, const float* factors, float* losses) {
  if (bits == 8) return LossesOf(UnitSteps(), n, x, factors, losses);
  const int half = 1 << (bits - 1);
  const UpperHalf codes = {half, UnitCentroids(bits, StoredUnit::kToken).data() + half,
                           UnitBoundaries(bits, StoredUnit::kToken).data() + half};
  LossesOf(codes, n, x, factors, losses);
}

}  // namespace
}  // namespace kvlathe
