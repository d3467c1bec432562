// The search for the scale of a group of values that become codes of few bits.
//
// A scale is judged by what it leaves: t = value / scale lies near its code q, r = q - t is small,
// and the least squares of a scale that is larger by the factor 1 + f (and of a minimum that is
// moved by m) are sums of products of r, q and the weights. They lose no digits, as the difference
// of two large sums would. Four scales are tried at a time, one in each lane of a vector.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kvlathe::ggml_fits {

constexpr int kLanes = 4;
using Lanes __attribute__((vector_size(kLanes * sizeof(float)))) = float;
using IntLanes __attribute__((vector_size(kLanes * sizeof(int32_t)))) = int32_t;

// Groups whose values are smaller beside the largest of their block, which is in [1, 2), are zeros.
constexpr float kNegligible = 0x1p-40f;

inline Lanes Splat(float x) { return Lanes{x, x, x, x}; }
inline Lanes Within(Lanes x, float low, float high) {
  const Lanes above = x < low ? Splat(low) : x;
  return above > high ? Splat(high) : above;
}
// To the nearest integer, ties to even, of numbers below 2^22.
inline Lanes Rounded(Lanes x) {
  constexpr float kMagic = 0x1.8p23f;
  return (x + kMagic) - kMagic;
}

// The integers from kLow to kHigh, whose codes count from 0.
template <int kLow, int kHigh>
struct IntegerGrid {
  static constexpr float kLargest = kLow;  // what the largest value of a group lies near
  // What else it may lie near: kLargest * (1 + kStep * k), k from -kCandidates / 2.
  static constexpr int kCandidates = 16;
  static constexpr float kStep = kLow >= -4 ? 0.0625f : 0.125f / -kLow;

  static Lanes Nearest(Lanes t) { return Rounded(Within(t, kLow, kHigh)); }
  static int CodeOf(float value) { return static_cast<int>(value) - kLow; }
  static float ValueOf(int code) { return static_cast<float>(code + kLow); }
};

// Sixteen values of a table, the nearest of which is found by an index at steps of a half: no
// boundary between two integers lies within a step.
template <typename Table>
struct TableGrid {
  static constexpr float kLargest = Table::kLargest;
  static constexpr int kCandidates = Table::kCandidates;
  static constexpr float kStep = Table::kStep;

  static Lanes Nearest(Lanes t) {
    constexpr float kHalves = Table::kRange;  // steps on either side of 0
    const Lanes at = Within(t * 2.0f + kHalves, 0.0f, 2 * kHalves - 1);
    const IntLanes index = __builtin_convertvector(at, IntLanes);
    const float* values = kNearest.value;
    return Lanes{values[index[0]], values[index[1]], values[index[2]], values[index[3]]};
  }
  static int CodeOf(float value) {
    int code = 0;
    while (Table::kValues[code] != value) ++code;
    return code;
  }
  static float ValueOf(int code) { return Table::kValues[code]; }

 private:
  struct NearestValues {
    float value[2 * Table::kRange];
  };
  static constexpr NearestValues kNearest = [] {
    NearestValues nearest{};
    for (int i = 0; i < 2 * Table::kRange; ++i) {
      const float middle = (static_cast<float>(i - Table::kRange) + 0.5f) / 2;
      float least = 1e9f;
      for (const float value : Table::kValues) {
        const float distance = value < middle ? middle - value : value - middle;
        if (distance < least) {
          least = distance;
          nearest.value[i] = value;
        }
      }
    }
    return nearest;
  }();
};

// The scale, of either sign, with which n values are nearest to the grid's; 0 if they are zeros.
template <typename Grid, int kN>
float FitScale(const float* values, const float* weights) {
  float largest = 0;
  for (int i = 0; i < kN; ++i) {
    if (std::fabs(values[i]) > std::fabs(largest)) largest = values[i];
  }
  if (std::fabs(largest) < kNegligible) return 0;
  float best_scale = 0, best_error = INFINITY;
  for (int c = 0; c < Grid::kCandidates; c += kLanes) {
    Lanes inverse;
    for (int l = 0; l < kLanes; ++l) {
      const float factor = 1 + Grid::kStep * static_cast<float>(c + l - Grid::kCandidates / 2);
      inverse[l] = Grid::kLargest * factor / largest;
    }
    Lanes rr{}, rq{}, qq{};
    for (int i = 0; i < kN; ++i) {
      const Lanes t = inverse * values[i];
      const Lanes q = Grid::Nearest(t);
      const Lanes r = q - t;
      const Lanes wr = r * weights[i];
      rr += wr * r;
      rq += wr * q;
      qq += q * q * weights[i];
    }
    const Lanes f = rq / qq;
    const Lanes error = (rr - rq * f) / (inverse * inverse);
    for (int l = 0; l < kLanes; ++l) {
      if (error[l] < best_error) {
        best_error = error[l];
        best_scale = (1 - f[l]) / inverse[l];
      }
    }
  }
  return best_scale;
}

// Values are scale * code + min, codes from 0.
struct Line {
  float scale;
  float min;
};

// The line on which n values are nearest to the codes up to kMaxCode; with a `kMinBelowZero` its
// minimum is at most 0.
template <int kN, int kMaxCode, bool kMinBelowZero>
Line FitLine(const float* values, const float* weights) {
  constexpr int kCandidates = 20;
  constexpr int kBelow = kMaxCode == 3 ? 5 : 10;  // candidates whose largest code is below kMaxCode
  float low = values[0], high = values[0], all_weights = 0;
  for (int i = 0; i < kN; ++i) {
    low = std::min(low, values[i]);
    high = std::max(high, values[i]);
    all_weights += weights[i];
  }
  if (kMinBelowZero) low = std::min(low, 0.0f);
  if (high - low < kNegligible) return {0, low};
  Line best{0, low};
  float best_error = INFINITY;
  for (int c = 0; c < kCandidates; c += kLanes) {
    Lanes inverse;
    for (int l = 0; l < kLanes; ++l) {
      inverse[l] = (kMaxCode + 0.1f * static_cast<float>(c + l - kBelow)) / (high - low);
    }
    Lanes rr{}, rq{}, r1{}, qq{}, q1{};
    for (int i = 0; i < kN; ++i) {
      const Lanes t = inverse * (values[i] - low);
      const Lanes q = Rounded(Within(t, 0, kMaxCode));
      const Lanes r = q - t;
      const Lanes wr = r * weights[i];
      const Lanes wq = q * weights[i];
      rr += wr * r;
      rq += wr * q;
      r1 += wr;
      qq += wq * q;
      q1 += wq;
    }
    // Least squares of r + f q + m.
    const Lanes determinant = qq * all_weights - q1 * q1;
    Lanes f = (r1 * q1 - rq * all_weights) / determinant;
    Lanes m = -(r1 + f * q1) / all_weights;
    const Lanes zero = -low * inverse;  // the m that makes the minimum 0
    const IntLanes is_fixed = ~(determinant > 0.0f) | (kMinBelowZero ? m > zero : IntLanes{});
    m = is_fixed ? zero : m;
    f = is_fixed ? -(rq + m * q1) / qq : f;
    const Lanes error =
        (rr + f * f * qq + m * m * all_weights + 2.0f * (f * rq + m * r1 + f * m * q1)) /
        (inverse * inverse);
    for (int l = 0; l < kLanes; ++l) {
      if (error[l] < best_error) {
        best_error = error[l];
        best = {(1 + f[l]) / inverse[l], low + m[l] / inverse[l]};
      }
    }
  }
  if (kMinBelowZero) best.min = std::min(best.min, 0.0f);
  return best;
}

}  // namespace kvlathe::ggml_fits
