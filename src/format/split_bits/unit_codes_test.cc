#include "format/split_bits/unit_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tensor/dtype.h"

namespace kvlathe {
namespace {

constexpr StoredUnit kUnits[] = {StoredUnit::kChannel, StoredUnit::kToken};

// Student's t of unit variance, on a fine grid.
struct Density {
  explicit Density(double nu) {
    const double unit = std::sqrt((nu - 2) / nu);
    const double height = std::tgamma((nu + 1) / 2) / (std::sqrt(nu * M_PI) * std::tgamma(nu / 2));
    constexpr double kStep = 1e-3;
    for (double at = -80 + kStep / 2; at < 80; at += kStep) {
      const double t = at / unit;
      x.push_back(at);
      weight.push_back(height / unit * std::pow(1 + t * t / nu, -(nu + 1) / 2) * kStep);
    }
  }
  std::vector<double> x, weight;
};

void ExpectBestOfDensity(int bits, StoredUnit unit) {
  const Density density(TailDegrees(unit));
  const auto centroids = UnitCentroids(bits, unit), boundaries = UnitBoundaries(bits, unit);
  ASSERT_EQ(std::ssize(centroids), 1 << bits);
  ASSERT_EQ(std::ssize(boundaries), (1 << bits) - 1);
  std::vector<double> mass(centroids.size()), first(centroids.size());
  double loss = 0;
  size_t code = 0;
  for (size_t i = 0; i < density.x.size(); ++i) {
    const double x = density.x[i], w = density.weight[i];
    while (code < boundaries.size() && boundaries[code] < x) ++code;
    mass[code] += w;
    first[code] += w * x;
    loss += w * (x - centroids[code]) * (x - centroids[code]);
  }
  for (size_t i = 0; i < centroids.size(); ++i) {
    // Lloyd's condition: a centroid is the mean of what has its code, but for its rounding.
    const double rounding = std::max(0.005 * std::abs(centroids[i]), kUnitNumberStep / 2.0);
    EXPECT_NEAR(centroids[i], first[i] / mass[i], rounding) << bits;
    EXPECT_EQ(ToFloat(ToBf16(centroids[i])), centroids[i]);
    if (i > 0) {
      EXPECT_EQ(boundaries[i - 1], (centroids[i - 1] + centroids[i]) / 2);
    }
  }
  if (!HasTrellis(bits, unit)) {
    EXPECT_NEAR(UnitLoss(bits, unit), loss, 1e-3 * loss) << bits;
  }
}

TEST(UnitCodes, AreTheBestOfTheDensity) {
  for (const StoredUnit unit : kUnits) {
    for (int bits = 1; bits <= 5; ++bits) ExpectBestOfDensity(bits, unit);
  }
}

TEST(UnitCodes, CodesThatStandForThemselvesRepeat) {
  for (const StoredUnit unit : kUnits) {
    for (int bits = 1; bits <= 5; ++bits) {
      if (HasTrellis(bits, unit)) continue;
      const int n_low = bits == 3 ? 4 : bits == 5 ? 16 : 1 << bits;
      for (int window = 0; window < kCodeWindows; ++window) {
        const int high = bits == 3 || bits == 5 ? window / 16 * n_low : 0;
        EXPECT_EQ(SoughtUnitValues(bits, unit)[window],
                  UnitCentroids(bits, unit)[window % n_low + high]);
      }
    }
  }
}

// What is read is sought values times the factor that loses least where the part of an error that
// goes with the number costs four times the rest.
TEST(UnitCodes, ValuesThatAreReadCostLeast) {
  for (const StoredUnit unit : kUnits) {
    for (int bits = 1; bits <= 5; ++bits) {
      const double loss = UnitLoss(bits, unit), kept = 1 - loss;
      const auto cost = [&](double factor) {
        return factor * factor * loss * kept + 4 * std::pow(factor * kept - 1, 2);
      };
      double best = 1;
      for (double factor = 1; factor < 2; factor += 1e-4) {
        if (cost(factor) < cost(best)) best = factor;
      }
      EXPECT_NEAR(UnitCost(bits, unit), cost(best), 1e-6);
      for (int window = 0; window < kCodeWindows; ++window) {
        const float sought = SoughtUnitValues(bits, unit)[window];
        const double step = std::max(1 / 512.0, std::abs(best * sought) / 128);
        EXPECT_NEAR(UnitValues(bits, unit)[window], best * sought, 0.51 * step);
      }
    }
    EXPECT_EQ(UnitCost(0, unit), 4);
  }
}

TEST(UnitCodes, TablesHoldTheValuesByWindow) {
  for (const StoredUnit unit : kUnits) {
    for (int bits = 1; bits <= 5; ++bits) {
      const float* values = UnitValues(bits, unit);
      const uint16_t* table = UnitTable(bits, unit);
      for (int i = 0; i < 32; ++i) {
        if (bits == 3 || bits == 5) {
          EXPECT_EQ(table[i], ToBf16(values[i % 16]).bits);
          EXPECT_EQ(table[32 + i], ToBf16(values[16 + i % 16]).bits);
        } else {
          EXPECT_EQ(table[i], ToBf16(values[i]).bits);
        }
        EXPECT_EQ(ToFloat(ToBf16(values[i])), values[i]);
      }
    }
  }
}

// Words of numbers of the density: the best path of each by trying all states that it may begin in.
class Paths {
 public:
  explicit Paths(int bits)
      : bits_(bits),
        low_bits_(LowBits(bits)),
        n_states_(1 << (LowWindowBits(bits) - low_bits_)),
        n_lines_(LinesPerGroup(bits)) {}

  void Add(const std::vector<double>& word) {
    double least = INFINITY;
    std::vector<int> best;
    for (int start = 0; start < n_states_; ++start) {
      const auto [cost, windows] = BestFrom(start, word);
      if (cost < least) least = cost, best = windows;
    }
    loss_ += least;
    for (int i = 0; i < n_lines_; ++i) {
      sums_[best[i]] += word[i];
      counts_[best[i]] += 1;
    }
  }

  int n_lines() const { return n_lines_; }
  double loss() const { return loss_; }
  double count(int window) const { return counts_[window]; }
  double mean(int window) const { return sums_[window] / counts_[window]; }

 private:
  std::pair<double, std::vector<int>> BestFrom(int start, const std::vector<double>& word) const {
    std::vector<double> costs(n_states_, INFINITY);
    costs[start] = 0;
    std::vector<std::vector<int>> came_by(n_lines_, std::vector<int>(n_states_));
    for (int line = n_lines_ - 1; line >= 0; --line) {
      std::vector<double> next(n_states_, INFINITY);
      for (int window = 0; window < kCodeWindows; ++window) {
        const int low = window % (1 << LowWindowBits(bits_)), state = low % n_states_;
        const double error = word[line] - SoughtUnitValues(bits_, StoredUnit::kToken)[window];
        const double cost = costs[low >> low_bits_] + error * error;
        if (cost < next[state]) next[state] = cost, came_by[line][state] = window;
      }
      costs = next;
    }
    std::vector<int> windows;
    for (int line = 0, state = start; line < n_lines_; ++line) {
      windows.push_back(came_by[line][state]);
      state = windows.back() % (1 << LowWindowBits(bits_)) >> low_bits_;
    }
    return {costs[start], windows};
  }

  int bits_, low_bits_, n_states_, n_lines_;
  double loss_ = 0;
  std::array<double, kCodeWindows> sums_{}, counts_{};
};

// UnitLoss is what sealing loses, which does not try all paths (split_bits_test).
TEST(UnitCodes, PathsLoseWhatIsSaidOfThem) {
  constexpr double kDegrees = TailDegrees(StoredUnit::kToken);
  Random random(11);
  const auto draw = [&] {
    double squares = 0;
    for (int i = 0; i < static_cast<int>(kDegrees); ++i) squares += std::pow(random.Normal(), 2);
    return random.Normal() * std::sqrt((kDegrees - 2) / squares);
  };
  for (int bits = 1; bits <= 4; ++bits) {
    Paths paths(bits);
    constexpr int kNumbers = 60'000;
    for (int i = 0; i < kNumbers; i += paths.n_lines()) {
      std::vector<double> word(paths.n_lines());
      for (double& x : word) x = draw();
      paths.Add(word);
    }
    const double loss = paths.loss() / kNumbers;
    EXPECT_GT(UnitLoss(bits, StoredUnit::kToken), 0.98 * loss) << bits;
    EXPECT_LT(UnitLoss(bits, StoredUnit::kToken), 1.06 * loss) << bits;
    // Lloyd's condition.
    double moved = 0;
    for (int window = 0; window < kCodeWindows; ++window) {
      const double difference =
          paths.mean(window) - SoughtUnitValues(bits, StoredUnit::kToken)[window];
      moved += paths.count(window) * difference * difference / kNumbers;
    }
    EXPECT_LT(moved, 0.01 * loss) << bits;
  }
}

TEST(UnitCodes, EveryBitLosesLess) {
  for (const StoredUnit unit : kUnits) {
    EXPECT_EQ(UnitLoss(0, unit), 1);
    EXPECT_DOUBLE_EQ(UnitLoss(8, unit), kUnitStep * kUnitStep / 12.0);
    // What the next bit gains falls: greedy choices of bits are the best.
    const int bits[] = {0, 1, 2, 3, 4, 5, 8};
    double before = INFINITY;
    for (int i = 1; i < 7; ++i) {
      const double gain =
          (UnitLoss(bits[i - 1], unit) - UnitLoss(bits[i], unit)) / (bits[i] - bits[i - 1]);
      EXPECT_GT(gain, 0);
      EXPECT_LT(gain, before);
      before = gain;
    }
  }
}

TEST(UnitCodes, NumbersAreTheValues) {
  for (const StoredUnit unit : kUnits) {
    for (int bits = 1; bits <= 5; ++bits) {
      const int8_t* numbers = UnitNumbers(bits, unit);
      for (int window = 0; window < kCodeWindows; ++window) {
        const int lower = window / 16 * 32 + window % 16;
        const int number = numbers[lower + 16] * 256 + static_cast<uint8_t>(numbers[lower]);
        EXPECT_EQ(static_cast<float>(number) * kUnitNumberStep, UnitValues(bits, unit)[window])
            << bits << " bits, window " << window;
      }
    }
  }
}

TEST(UnitCodes, BytesAreNearTheValues) {
  for (const StoredUnit unit : kUnits) {
    EXPECT_EQ(ByteStep(ByteStepOf(8), unit), kUnitStep);
    for (int bits = 1; bits <= 5; ++bits) {
      const float step = ByteStep(ByteStepOf(bits), unit);
      double added = 0;
      for (int window = 0; window < kCodeWindows; ++window) {
        const float read = static_cast<float>(UnitBytes(bits, unit)[window] - 128) * step;
        const double error = read - UnitValues(bits, unit)[window];
        EXPECT_LE(std::abs(error), 0.5001 * step) << bits;
        added += error * error / kCodeWindows;
      }
      // Beside what the codes lose.
      EXPECT_LT(added, (bits == 5 ? 0.06 : 0.01) * UnitLoss(bits, unit)) << bits;
    }
    for (int bits = 1; bits <= kSmallBits; ++bits) {
      double added = 0;
      for (int window = 0; window < kCodeWindows; ++window) {
        const int byte = SmallUnitBytes(bits, unit)[window];
        EXPECT_LE(std::abs(byte), kLargestSmall);
        const double error = byte * SmallStep(unit) - UnitValues(bits, unit)[window];
        EXPECT_LE(std::abs(error), 0.5001 * SmallStep(unit)) << bits;
        added += error * error / kCodeWindows;
      }
      EXPECT_LT(added, 0.01 * UnitLoss(bits, unit)) << bits;
    }
  }
}

}  // namespace
}  // namespace kvlathe
