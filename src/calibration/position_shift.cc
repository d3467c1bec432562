#include "calibration/position_shift.h"

#include <algorithm>
#include <cmath>

namespace kvlathe {

PositionShift::PositionShift(int n_positions, std::span<const double> frequencies, double amplitude)
    : n_positions_(n_positions),
      amplitude_(amplitude),
      frequencies_(frequencies.begin(), frequencies.end()) {
  if (n_positions == 0) return;
  for (const double frequency : frequencies) {
    cos_.push_back(static_cast<float>(std::cos(n_positions * frequency)));
    sin_.push_back(static_cast<float>(std::sin(n_positions * frequency)));
  }
}

void PositionShift::Apply(int64_t n_rows, int64_t row_dim, float* rows) const {
  const auto half = std::ssize(cos_);
  for (int64_t t = 0; t < n_rows; ++t) {
    float* const row = rows + t * row_dim;
    for (int64_t i = 0; i < half; ++i) {
      const float a = row[i], b = row[i + half];
      row[i] = a * cos_[i] - b * sin_[i];
      row[i + half] = b * cos_[i] + a * sin_[i];
    }
  }
}

void PositionShift::TakeOff(const TurningMean& mean, std::span<const int> positions,
                            int64_t row_dim, float* rows) const {
  const auto half = std::ssize(frequencies_);
  const int64_t n_pairs = std::min<int64_t>(mean.n_pairs, half);
  for (const int position : positions) {
    for (int64_t i = 0; i < n_pairs; ++i) {
      const double angle = (n_positions_ + position) * frequencies_[i];
      const auto cos = static_cast<float>(amplitude_ * std::cos(angle));
      const auto sin = static_cast<float>(amplitude_ * std::sin(angle));
      for (int64_t r = 0; r < mean.rows_per_token; ++r) {
        const float a = mean.values[r * row_dim + i], b = mean.values[r * row_dim + i + half];
        rows[r * row_dim + i] -= a * cos - b * sin;
        rows[r * row_dim + i + half] -= b * cos + a * sin;
      }
    }
    rows += mean.rows_per_token * row_dim;
  }
}

std::vector<int> SpreadStarts(int64_t n_sequences, int n_tokens, int n_positions) {
  constexpr double kGoldenRatio = 0.6180339887498949;  // its multiples fill [0, 1) evenly
  const int last = std::max(0, n_positions - n_tokens);
  std::vector<int> starts;
  for (int64_t i = 0; i < n_sequences; ++i) {
    const double at = static_cast<double>(i) * kGoldenRatio;
    starts.push_back(static_cast<int>((at - std::floor(at)) * (last + 1)));
  }
  return starts;
}

}  // namespace kvlathe
