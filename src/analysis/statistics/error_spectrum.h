// An error spectrum says how much of an error a few directions hold: what a low-rank repair could
// remove (GEAR, Kang et al., arXiv 2403.05527, Figure 2b), beside what it would remove of an error
// that has no directions.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace kvlathe {

// White noise is a matrix of independent standard normal numbers. Drawn, so that no law of large
// matrices has to hold; the same on every machine.
class WhiteNoise {
 public:
  explicit WhiteNoise(int n_channels) : n_channels_(n_channels) {}

  // [n_channels]: of [n_rows, n_channels] noise, the share of the squares in its first r + 1
  // singular values, as the mean of 8 matrices. Drawn once for a number of rows.
  const std::vector<double>& Shares(int64_t n_rows);

 private:
  int n_channels_;
  std::map<int64_t, std::vector<double>> by_rows_;
};

// Error matrices of one width, each decomposed by itself and their squares added up.
class ErrorSpectrum {
 public:
  explicit ErrorSpectrum(int n_channels);

  // A matrix begins, has its rows added and ends.
  void Begin();
  void Add(std::span<const double> row);  // [n_channels]
  void End();

  double squares() const { return squares_; }
  // [n_channels]: the share of all squares in the first r + 1 singular values of the matrices: what
  // factors of rank r + 1 for each of them remove at best. 1 where there are no errors.
  std::vector<double> Shares() const;
  // The same of noise in matrices of the same shapes and squares.
  std::vector<double> WhiteShares(WhiteNoise* noise) const;

 private:
  int n_channels_;
  int64_t n_rows_ = 0;         // of the matrix that is being added
  std::vector<double> gram_;   // [n_channels, n_channels] of it
  double squares_ = 0;         // of all matrices that ended, as are those below
  std::vector<double> first_;  // [n_channels]: squares in the first r + 1 singular values
  std::map<int64_t, double> squares_by_rows_;
};

}  // namespace kvlathe
