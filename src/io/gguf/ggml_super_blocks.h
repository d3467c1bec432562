// Blocks of 256 values in groups whose scales (and minima) are integers times one F16 number.
//
// Every group gets the best scale for itself. The largest of them decides the F16 number; then each
// group tries the integers around its scale, with codes chosen anew for each, and the F16 numbers
// become the best ones, by least squares, for all codes together.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "io/gguf/ggml_block_values.h"
#include "io/gguf/ggml_fits.h"

namespace kvlathe::ggml_fits {

constexpr int kSuperBlock = 256;
constexpr int kRefits = 2;  // more of them change next to nothing

// Encodes a block, and again with the scales that refit(block) finds for its codes as long as that
// leaves less: encode(block) chooses codes and returns what they leave, refit is false where
// nothing can be found.
template <typename Stored, typename Encode, typename Refit>
void RefitWhileBetter(Stored* stored, const Encode& encode, const Refit& refit) {
  float error = encode(stored);
  for (int i = 0; i < kRefits; ++i) {
    Stored refitted = *stored;
    if (!refit(&refitted)) break;
    const float refitted_error = encode(&refitted);
    if (!(refitted_error < error)) break;
    *stored = refitted;
    error = refitted_error;
  }
}

// A value is scale * scales[group] * code - min * mins[group].
template <int kGroups, int kMaxCode, int kMaxScale>
class LineSuperBlock {
 public:
  static constexpr int kGroup = kSuperBlock / kGroups;
  struct Stored {
    Half scale, min;
    uint8_t scales[kGroups] = {};
    uint8_t mins[kGroups] = {};
    uint8_t codes[kSuperBlock] = {};
  };

  explicit LineSuperBlock(const float* from) : block_(from) {
    if (block_.is_below_halves()) return;
    float largest_scale = 0, least_min = 0;
    for (int g = 0; g < kGroups; ++g) {
      lines_[g] = FitLine<kGroup, kMaxCode, true>(Values(g), Weights(g));
      largest_scale = std::max(largest_scale, lines_[g].scale);
      least_min = std::min(least_min, lines_[g].min);
    }
    stored_.scale = block_.ToHalf(largest_scale / kMaxScale);
    stored_.min = block_.ToHalf(-least_min / kMaxScale);
    for (int g = 0; g < kGroups; ++g) ChooseScaleAndMin(g);
    RefitWhileBetter(
        &stored_, [this](Stored* stored) { return Encode(stored); },
        [this](Stored* stored) { return Refit(stored); });
  }

  const Stored& stored() const { return stored_; }

 private:
  const float* Values(int group) const { return block_.value + group * kGroup; }
  const float* Weights(int group) const { return block_.weight + group * kGroup; }

  // The first of four integers around x / unit.
  static int FirstTried(float x, float unit) {
    const float at = std::min(x * Inverse(unit), static_cast<float>(kMaxScale));
    return std::clamp(static_cast<int>(at) - 1, 0, kMaxScale - kLanes + 1);
  }

  // Of four scales with four minima each, in the lanes, those that leave least.
  void ChooseScaleAndMin(int group) {
    const float* values = Values(group);
    const float* weights = Weights(group);
    const int first_scale = FirstTried(lines_[group].scale, stored_.scale.value);
    const int first_min = FirstTried(-lines_[group].min, stored_.min.value);
    Lanes min;
    for (int l = 0; l < kLanes; ++l) {
      min[l] = -stored_.min.value * static_cast<float>(first_min + l);
    }
    float best_error = INFINITY;
    for (int s = first_scale; s < first_scale + kLanes; ++s) {
      const float scale = stored_.scale.value * static_cast<float>(s);
      const float inverse = Inverse(scale);
      Lanes error{};
      for (int i = 0; i < kGroup; ++i) {
        const Lanes q = Rounded(Within((values[i] - min) * inverse, 0, kMaxCode));
        const Lanes e = q * scale + (min - values[i]);
        error += e * e * weights[i];
      }
      for (int l = 0; l < kLanes; ++l) {
        if (error[l] < best_error) {
          best_error = error[l];
          stored_.scales[group] = static_cast<uint8_t>(s);
          stored_.mins[group] = static_cast<uint8_t>(first_min + l);
        }
      }
    }
  }

  float Encode(Stored* stored) const {
    float error = 0;
    for (int g = 0; g < kGroups; ++g) {
      const Line line = {stored->scale.value * static_cast<float>(stored->scales[g]),
                         -stored->min.value * static_cast<float>(stored->mins[g])};
      error +=
          EncodeOnLine<kMaxCode>(Values(g), Weights(g), kGroup, line, stored->codes + g * kGroup);
    }
    return error;
  }

  // The F16 numbers that leave least with these integers; false if they stay.
  bool Refit(Stored* stored) const {
    // Least squares of x = scale * a - min * b.
    double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
    for (int g = 0; g < kGroups; ++g) {
      double w1 = 0, wq = 0, wqq = 0, wx = 0, wqx = 0;
      for (int i = 0; i < kGroup; ++i) {
        const double q = stored->codes[g * kGroup + i], w = Weights(g)[i], x = Values(g)[i];
        w1 += w;
        wq += w * q;
        wqq += w * q * q;
        wx += w * x;
        wqx += w * q * x;
      }
      const double s = stored->scales[g], m = stored->mins[g];
      aa += s * s * wqq;
      ab += s * m * wq;
      bb += m * m * w1;
      ax += s * wqx;
      bx += m * wx;
    }
    const double determinant = aa * bb - ab * ab;
    double scale = aa > 0 ? ax / aa : 0, min = 0;
    if (determinant > 1e-9 * aa * bb) {
      scale = (ax * bb - ab * bx) / determinant;
      min = (ab * ax - aa * bx) / determinant;
    }
    if (!(scale > 0) || min < 0) return false;
    const Half old_scale = stored->scale, old_min = stored->min;
    stored->scale = block_.ToHalf(static_cast<float>(scale));
    if (min > 0) stored->min = block_.ToHalf(static_cast<float>(min));
    return stored->scale.bits != old_scale.bits || stored->min.bits != old_min.bits;
  }

  BlockValues<kSuperBlock> block_;
  Line lines_[kGroups];
  Stored stored_;
};

// A value is scale * scales[group] * (a value of the grid).
template <typename Grid, int kGroups, int kLowScale, int kHighScale>
class GridSuperBlock {
 public:
  static constexpr int kGroup = kSuperBlock / kGroups;
  struct Stored {
    Half scale;
    int8_t scales[kGroups] = {};
    uint8_t codes[kSuperBlock] = {};
  };

  explicit GridSuperBlock(const float* from) : block_(from) {
    float largest = 0;
    if (!block_.is_below_halves()) {
      for (int g = 0; g < kGroups; ++g) {
        scales_[g] = FitScale<Grid, kGroup>(Values(g), Weights(g));
        if (std::fabs(scales_[g]) > std::fabs(largest)) largest = scales_[g];
      }
    }
    stored_.scale = block_.ToHalf(largest / kLowScale);
    for (int g = 0; g < kGroups; ++g) ChooseScale(g);
    RefitWhileBetter(
        &stored_, [this](Stored* stored) { return Encode(stored); },
        [this](Stored* stored) { return Refit(stored); });
  }

  const Stored& stored() const { return stored_; }

 private:
  const float* Values(int group) const { return block_.value + group * kGroup; }
  const float* Weights(int group) const { return block_.weight + group * kGroup; }

  // Of eight integers around the group's scale, that which leaves least.
  void ChooseScale(int group) {
    if (stored_.scale.value == 0) return;
    constexpr int kTried = 2 * kLanes;
    const float at = std::clamp(scales_[group] / stored_.scale.value, static_cast<float>(kLowScale),
                                static_cast<float>(kHighScale));
    const int first = std::clamp(static_cast<int>(std::floor(at)) - kTried / 2 + 1, kLowScale,
                                 kHighScale - kTried + 1);
    float best_error = INFINITY;
    for (int s = first; s < first + kTried; s += kLanes) {
      Lanes scale, inverse;
      for (int l = 0; l < kLanes; ++l) {
        scale[l] = stored_.scale.value * static_cast<float>(s + l);
        inverse[l] = Inverse(scale[l]);
      }
      Lanes error{};
      for (int i = 0; i < kGroup; ++i) {
        const Lanes e = Grid::Nearest(Values(group)[i] * inverse) * scale - Values(group)[i];
        error += e * e * Weights(group)[i];
      }
      for (int l = 0; l < kLanes; ++l) {
        if (error[l] < best_error) {
          best_error = error[l];
          stored_.scales[group] = static_cast<int8_t>(s + l);
        }
      }
    }
  }

  float Encode(Stored* stored) const {
    float error = 0;
    for (int g = 0; g < kGroups; ++g) {
      const float scale = stored->scale.value * static_cast<float>(stored->scales[g]);
      error += EncodeOnGrid<Grid>(Values(g), Weights(g), kGroup, scale, stored->codes + g * kGroup);
    }
    return error;
  }

  // The F16 number that leaves least with these integers; false if it stays.
  bool Refit(Stored* stored) const {
    double aa = 0, ax = 0;
    for (int g = 0; g < kGroups; ++g) {
      for (int i = 0; i < kGroup; ++i) {
        const double q = Grid::ValueOf(stored->codes[g * kGroup + i]);
        const double a = q * stored->scales[g], w = Weights(g)[i];
        aa += w * a * a;
        ax += w * a * Values(g)[i];
      }
    }
    if (!(aa > 0)) return false;
    const Half old = stored->scale;
    stored->scale = block_.ToHalf(static_cast<float>(ax / aa));
    return stored->scale.bits != old.bits;
  }

  BlockValues<kSuperBlock> block_;
  float scales_[kGroups] = {};
  Stored stored_;
};

}  // namespace kvlathe::ggml_fits
