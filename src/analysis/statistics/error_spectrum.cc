#include "analysis/statistics/error_spectrum.h"

#include <algorithm>

#include "analysis/statistics/spectrum.h"
#include "base/check.h"
#include "base/random.h"

namespace kvlathe {
namespace {

constexpr int kDrawnMatrices = 8;
constexpr uint64_t kNoiseSeed = 1;

}  // namespace

const std::vector<double>& WhiteNoise::Shares(int64_t n_rows) {
  std::vector<double>& shares = by_rows_[n_rows];
  if (!shares.empty()) return shares;
  ErrorSpectrum spectrum(n_channels_);
  std::vector<double> row(n_channels_);
  for (int i = 0; i < kDrawnMatrices; ++i) {
    Random random(kNoiseSeed, i);
    spectrum.Begin();
    for (int64_t t = 0; t < n_rows; ++t) {
      for (double& x : row) x = random.Normal();
      spectrum.Add(row);
    }
    spectrum.End();
  }
  return shares = spectrum.Shares();
}

ErrorSpectrum::ErrorSpectrum(int n_channels) : n_channels_(n_channels), first_(n_channels) {
  Begin();
}

void ErrorSpectrum::Begin() {
  n_rows_ = 0;
  gram_.assign(int64_t{n_channels_} * n_channels_, 0.0);
}

void ErrorSpectrum::Add(std::span<const double> row) {
  KVL_CHECK(std::ssize(row) == n_channels_);
  for (int i = 0; i < n_channels_; ++i) {
    for (int j = 0; j <= i; ++j) gram_[i * n_channels_ + j] += row[i] * row[j];
  }
  ++n_rows_;
}

void ErrorSpectrum::End() {
  double squares = 0;
  for (int i = 0; i < n_channels_; ++i) {
    squares += gram_[i * n_channels_ + i];
    for (int j = 0; j < i; ++j) gram_[j * n_channels_ + i] = gram_[i * n_channels_ + j];
  }
  const Spectrum spectrum = DecomposeGram(gram_, n_channels_);
  double sum = 0;
  for (int r = 0; r < n_channels_; ++r) {
    sum += spectrum.singular_values[r] * spectrum.singular_values[r];
    first_[r] += sum;
  }
  squares_ += squares;
  squares_by_rows_[n_rows_] += squares;
}

std::vector<double> ErrorSpectrum::Shares() const {
  std::vector<double> shares = first_;
  for (double& share : shares) share = squares_ > 0 ? std::min(share / squares_, 1.0) : 1;
  return shares;
}

std::vector<double> ErrorSpectrum::WhiteShares(WhiteNoise* noise) const {
  if (squares_ == 0) return std::vector<double>(n_channels_, 1.0);
  std::vector<double> shares(n_channels_);
  for (const auto& [n_rows, squares] : squares_by_rows_) {
    const std::vector<double>& white = noise->Shares(n_rows);
    for (int r = 0; r < n_channels_; ++r) shares[r] += squares / squares_ * white[r];
  }
  return shares;
}

}  // namespace kvlathe
