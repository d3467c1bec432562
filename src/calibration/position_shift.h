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

  // What turns by the place in a frame: no pair of channels, or those that are slow enough
  // (format/keys.h).
  enum class Frames { kNone, kOfSlowPairs };
  // Rows before RoPE, [positions, rows_per_token, row_dim], as a cache with frames turns them:
  // that of position 0 of the sequence stands at the shift.
  struct RowsInFrames {
    std::span<const int> positions;
    int64_t rows_per_token;
    int64_t row_dim;
    const float* rows;
    const float* mean = nullptr;  // [rows_per_token, row_dim], taken off first; null: none
  };
  // to: A R (row - mean), A the amplitude.
  void TurnInFrames(const RowsInFrames& rows, float* to) const;
  // to: [positions, 2 n_pairs], A times the cosines of the first pairs, then their sines.
  void WriteAngles(Frames frames, std::span<const int> positions, int64_t n_pairs, float* to) const;
  // to: R gradient / A, the gradient with respect to what TurnInFrames makes, of that with respect
  // to the rows.
  void TurnGradientsInFrames(const RowsInFrames& gradients, float* to) const;

 private:
  // Those of the pairs, amplitude times, at a position of the sequence.
  void AnglesAt(Frames frames, int in_sequence, double amplitude, std::span<float> cos,
                std::span<float> sin) const;
  void Turn(const RowsInFrames& rows, double amplitude, float* to) const;

  int n_positions_ = 0;
  double amplitude_ = 1;
  int64_t n_absolute_ = 0;  // AbsolutePairs
  std::vector<double> frequencies_;
  std::vector<float> cos_, sin_;  // of every pair; empty: no shift
};

// Starts of n_sequences sequences of n_tokens tokens or fewer in a context of n_positions, each in
// [0, n_positions - n_tokens]: the first is 0, the rest spread evenly whatever their number, and
// neighbours lie far apart, for neighbours in a text are alike. All 0 if the context is no longer.
std::vector<int> SpreadStarts(int64_t n_sequences, int n_tokens, int n_positions);

}  // namespace kvlathe
