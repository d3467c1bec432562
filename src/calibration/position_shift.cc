#include "calibration/position_shift.h"

#include <algorithm>
#include <cmath>

#include "analysis/statistics/statistics.h"
#include "format/keys.h"

namespace kvlathe {

PositionShift::PositionShift(int n_positions, std::span<const double> frequencies, double amplitude)
    : n_positions_(n_positions),
      amplitude_(amplitude),
      n_absolute_(AbsolutePairs(frequencies)),
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

void PositionShift::AnglesAt(Frames frames, int in_sequence, double amplitude, std::span<float> cos,
                             std::span<float> sin) const {
  const int position = n_positions_ + in_sequence;
  const int place = std::max(0, position - kCalibrationSinks) % kFramePositions;
  for (int64_t i = 0; i < std::ssize(cos); ++i) {
    const bool is_absolute = frames == Frames::kNone || i < n_absolute_;
    const double angle = (is_absolute ? position : place) * frequencies_[i];
    cos[i] = static_cast<float>(amplitude * std::cos(angle));
    sin[i] = static_cast<float>(amplitude * std::sin(angle));
  }
}

void PositionShift::WriteAngles(Frames frames, std::span<const int> positions, int64_t n_pairs,
                                float* to) const {
  const int64_t n = std::min(n_pairs, std::ssize(frequencies_));  // others do not turn
  for (const int position : positions) {
    std::fill_n(to, n_pairs, 1.0f);
    std::fill_n(to + n_pairs, n_pairs, 0.0f);
    AnglesAt(frames, position, amplitude_, {to, static_cast<size_t>(n)},
             {to + n_pairs, static_cast<size_t>(n)});
    to += 2 * n_pairs;
  }
}

void PositionShift::Turn(const RowsInFrames& in, double amplitude, float* to) const {
  const auto half = std::ssize(frequencies_);
  const int64_t width = in.rows_per_token * in.row_dim;
  const float* from = in.rows;
  std::vector<float> cos(half), sin(half);
  for (const int in_sequence : in.positions) {
    AnglesAt(Frames::kOfSlowPairs, in_sequence, amplitude, cos, sin);
    for (int64_t c = 0; c < width; ++c) {
      to[c] = in.mean == nullptr ? from[c] : from[c] - in.mean[c];
    }
    for (int64_t first = 0; first < width; first += in.row_dim) {
      for (int64_t i = 0; i < half; ++i) {
        const float a = to[first + i], b = to[first + i + half];
        to[first + i] = a * cos[i] - b * sin[i];
        to[first + i + half] = b * cos[i] + a * sin[i];
      }
    }
    from += width;
    to += width;
  }
}

void PositionShift::TurnInFrames(const RowsInFrames& rows, float* to) const {
  Turn(rows, amplitude_, to);
}

void PositionShift::TurnGradientsInFrames(const RowsInFrames& gradients, float* to) const {
  Turn(gradients, 1 / amplitude_, to);
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
