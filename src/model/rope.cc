#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

#include "base/check.h"

namespace kvlathe {
namespace {

// Llama 3.1: wavelengths longer than original / low_freq_factor are stretched by `factor`, those
// shorter than original / high_freq_factor stay, and between them the two blend linearly.
double Llama3Frequency(const RopeConfig& config, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double turns = config.original_max_position / wavelength;
  if (turns > config.high_freq_factor) return frequency;
  if (turns < config.low_freq_factor) return frequency / config.factor;
  const double blend =
      (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
  return (1 - blend) * frequency / config.factor + blend * frequency;
}

// The number of the pair that turns n_turns times in the original context, which need not be whole.
double PairThatTurns(const RopeConfig& config, int rope_dim, double n_turns) {
  const double wavelength = config.original_max_position / n_turns;
  return rope_dim * std::log(wavelength / (2 * std::numbers::pi)) / (2 * std::log(config.theta));
}

// YaRN: pairs in front of the ramp stay, those behind it are stretched by `factor`, and on it the
// two blend linearly.
double YarnFrequency(const RopeConfig& config, int rope_dim, int pair, double frequency) {
  double begin = PairThatTurns(config, rope_dim, config.beta_fast);
  double end = PairThatTurns(config, rope_dim, config.beta_slow);
  if (config.has_whole_ramp) {
    begin = std::floor(begin);
    end = std::ceil(end);
  }
  begin = std::max(begin, 0.0);
  end = std::min(end, rope_dim - 1.0);
  if (begin == end) end += 0.001;
  const double stretched = std::clamp((pair - begin) / (end - begin), 0.0, 1.0);
  return frequency / config.factor * stretched + frequency * (1 - stretched);
}

// NTK-aware scaling: theta grows with the context that will be used.
double DynamicTheta(const RopeConfig& config, int rope_dim) {
  const double stretch =
      std::max(config.chosen_context, config.original_max_position) / config.original_max_position;
  const double growth = config.factor * stretch - (config.factor - 1);
  return config.theta * std::pow(growth, rope_dim / (rope_dim - 2.0));
}

// The mean of exp(i frequency p) over the positions p in [0, n), as cosine and sine: a geometric
// sum, which is sin(n f / 2) / (n sin(f / 2)) at the angle of the middle position.
struct MeanTurn {
  double cos, sin;
};
MeanTurn MeanTurnOf(double frequency, int n) {
  const double half = frequency / 2, divisor = n * std::sin(half);
  const double length = std::abs(divisor) < 1e-300 ? 1 : std::sin(n * half) / divisor;
  const double middle = half * (n - 1);
  return {length * std::cos(middle), length * std::sin(middle)};
}

}  // namespace

std::vector<double> RopeFrequencies(const RopeConfig& config, int rope_dim) {
  std::vector<double> frequencies(rope_dim / 2);
  for (int i = 0; i < rope_dim / 2; ++i) {
    const double frequency = std::pow(config.theta, -2.0 * i / rope_dim);
    switch (config.scaling) {
      case RopeConfig::Scaling::kNone:
        frequencies[i] = frequency;
        break;
      case RopeConfig::Scaling::kLinear:
        frequencies[i] = frequency / config.factor;
        break;
      case RopeConfig::Scaling::kLlama3:
        frequencies[i] = Llama3Frequency(config, frequency);
        break;
      case RopeConfig::Scaling::kLongRope:
        frequencies[i] =
            frequency / (config.uses_long_factors ? config.long_factors : config.short_factors)[i];
        break;
      case RopeConfig::Scaling::kYarn:
        frequencies[i] = YarnFrequency(config, rope_dim, i, frequency);
        break;
      case RopeConfig::Scaling::kDynamic:
        frequencies[i] = std::pow(DynamicTheta(config, rope_dim), -2.0 * i / rope_dim);
        break;
      case RopeConfig::Scaling::kStill:
        frequencies[i] = 0;
        break;
    }
  }
  return frequencies;
}

std::vector<float> MeanTurned(std::span<const float> row, const RopeConfig& rope, int rope_dim,
                              int n_positions) {
  std::vector<float> mean(row.begin(), row.end());
  const std::vector<double> frequencies = RopeFrequencies(rope, rope_dim);
  const int half = rope_dim / 2;
  for (int i = 0; i < half; ++i) {
    const MeanTurn turn = MeanTurnOf(frequencies[i], n_positions);
    const double a = row[i], b = row[i + half];
    mean[i] = static_cast<float>(rope.amplitude * (a * turn.cos - b * turn.sin));
    mean[i + half] = static_cast<float>(rope.amplitude * (b * turn.cos + a * turn.sin));
  }
  return mean;
}

RopeTable::RopeTable(const RopeConfig& config, int rope_dim)
    : n_pairs_(rope_dim / 2),
      amplitude_(config.amplitude),
      frequencies_(RopeFrequencies(config, rope_dim)) {}

void RopeTable::Extend(int n_positions) {
  if (n_pairs_ == 0) return;
  const int64_t n_old = std::ssize(cos_) / n_pairs_;
  if (n_old >= n_positions) return;
  const int64_t n_new = std::max<int64_t>(n_positions, n_old * 2);
  cos_.resize(n_new * n_pairs_);
  sin_.resize(n_new * n_pairs_);
  for (int64_t p = n_old; p < n_new; ++p) {
    for (int64_t i = 0; i < n_pairs_; ++i) {
      const double angle = static_cast<double>(p) * frequencies_[i];
      cos_[p * n_pairs_ + i] = static_cast<float>(amplitude_ * std::cos(angle));
      sin_[p * n_pairs_ + i] = static_cast<float>(amplitude_ * std::sin(angle));
    }
  }
}

void RopeTable::Release() {
  cos_ = {};
  sin_ = {};
}

LayerRopes::LayerRopes(const AttentionLayers& attention, int rope_dim)
    : table_of_layer_(attention.kind_of_layer) {
  for (const AttentionKind& kind : attention.kinds) tables_.emplace_back(kind.rope, rope_dim);
}

void LayerRopes::Extend(int n_positions) {
  for (RopeTable& table : tables_) table.Extend(n_positions);
}

BlockRotations::BlockRotations(const RopeConfig& config, int rope_dim, int n_before)
    : half_(rope_dim / 2),
      n_before_(n_before),
      way_back_(static_cast<float>(1 / (config.amplitude * config.amplitude))) {
  KVL_CHECK_EQ(half_ % 2, 0);
}

void BlockRotations::Write(int64_t first, int64_t n, RopeTable* table, float* cos,
                           float* sin) const {
  table->Extend(n_before_ + static_cast<int>(first + n) * kBlockSize);
  for (int64_t b = 0; b < n; ++b) {
    for (int t = 0; t < kBlockSize; ++t) {
      const int position = n_before_ + static_cast<int>(first + b) * kBlockSize + t;
      for (int i = 0; i < half_; ++i) {
        const int64_t at = b * block_size() + KeyOffset(t, i);
        cos[at] = table->cos(position)[i];
        sin[at] = table->sin(position)[i];
      }
    }
  }
}

}  // namespace kvlathe
