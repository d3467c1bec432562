// A position shift decides where in the context a calibration sequence is taken to stand. Attention
// with RoPE depends on distances alone (Su et al. 2021, equation 16), so a sequence that starts at
// position s has the same scores as one from 0 and the same rows, each turned on by s.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvlathe {

// Turns rows after RoPE on by a number of positions. Slow pairs of channels go around once in more
// positions than a calibration sequence has: without shifts, statistics of keys after RoPE would
// hold for the first positions of a context alone.
class PositionShift {
 public:
  PositionShift() = default;  // none
  // `frequencies`: radians per position of the pairs of channels (i, i + their number); channels
  // behind them do not turn. RoPE multiplies what it turns by `amplitude`.
  PositionShift(int n_positions, std::span<const double> frequencies, double amplitude = 1);

  // rows: [n_rows, row_dim], in place.
  void Apply(int64_t n_rows, int64_t row_dim, float* rows) const;

  // Takes a mean from before RoPE, turned to their positions, off rows [n_rows, row_dim] that have
  // been shifted; row i is of position positions[i / rows_per_token] of the sequence. Its mean is
  // mean[i % rows_per_token * row_dim], of which only the first n_pairs pairs count.
  struct TurningMean {
    const float* values;  // [rows_per_token, row_dim]
    int64_t rows_per_token;
    int n_pairs;
  };
  void TakeOff(const TurningMean& mean, std::span<const int> positions, int64_t row_dim,
               float* rows) const;

 private:
  int n_positions_ = 0;
  double amplitude_ = 1;
  std::vector<double> frequencies_;
  std::vector<float> cos_, sin_;  // of every pair; empty: no shift
};

// Starts of n_sequences sequences of n_tokens tokens or fewer in a context of n_positions, each in
// [0, n_positions - n_tokens]: the first is 0, the rest spread evenly whatever their number, and
// neighbours lie far apart, for neighbours in a text are alike. All 0 if the context is no longer.
std::vector<int> SpreadStarts(int64_t n_sequences, int n_tokens, int n_positions);

}  // namespace kvlathe
