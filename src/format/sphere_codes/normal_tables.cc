#include "format/sphere_codes/normal_tables.h"

namespace kvlathe {
namespace {

// The compiler has no std::exp and std::erf to evaluate, so what is needed of them follows here, to
// about 1e-12.

constexpr double kInverseRootOfTwoPi = 0.3989422804014327;  // 1 / sqrt(2 pi)

// exp(-x), 0 <= x.
constexpr double ExpOfMinus(double x) {
  int n_halvings = 0;
  for (; x > 0.5; x /= 2) ++n_halvings;
  double sum = 1, term = 1;
  for (int i = 1; i < 20; ++i) {
    term *= -x / i;
    sum += term;
  }
  for (int i = 0; i < n_halvings; ++i) sum *= sum;
  return sum;
}

constexpr double Density(double x) { return kInverseRootOfTwoPi * ExpOfMinus(x * x / 2); }

// The probability of [0, x], x >= 0: the density times x + x^3 / 3 + x^5 / 15 + ...
constexpr double ProbabilityUpTo(double x) {
  double sum = x, term = x;
  for (int i = 3; i < 200 && term > 1e-14; i += 2) {
    term *= x * x / i;
    sum += term;
  }
  return Density(x) * sum;
}

constexpr int kMostLevels = 8;  // of the positive half
constexpr double kFarOut = 8;   // nothing lies beyond

struct Levels {
  int n;
  std::array<double, kMostLevels> at{};
};

constexpr double LowerEnd(const Levels& levels, int i) {
  return i == 0 ? 0 : (levels.at[i - 1] + levels.at[i]) / 2;
}
constexpr double UpperEnd(const Levels& levels, int i) {
  return i + 1 == levels.n ? kFarOut : (levels.at[i] + levels.at[i + 1]) / 2;
}

// Lloyd's iteration: every level becomes the mean of its cell, until none moves.
constexpr Levels FitLevels(int bits) {
  Levels levels = {.n = 1 << (bits - 1)};
  for (int i = 0; i < levels.n; ++i) levels.at[i] = 3.0 * (i + 0.5) / levels.n;
  for (int round = 0; round < 3000; ++round) {
    double moved = 0;
    Levels next = levels;
    for (int i = 0; i < levels.n; ++i) {
      const double low = LowerEnd(levels, i), high = UpperEnd(levels, i);
      next.at[i] = (Density(low) - Density(high)) / (ProbabilityUpTo(high) - ProbabilityUpTo(low));
      const double by = next.at[i] - levels.at[i];
      moved += by < 0 ? -by : by;
    }
    levels = next;
    if (moved < 1e-7) break;
  }
  return levels;
}

constexpr int NearestWhole(double x) { return static_cast<int>(x + 0.5); }

// The step with which rounding the levels adds least to the squared error.
constexpr double BestStep(const Levels& levels) {
  constexpr int kFewest = 64, kMost = 127;
  double best = 0, least = 1;
  for (int largest = kFewest; largest <= kMost; ++largest) {
    const double step = levels.at[levels.n - 1] / largest;
    double added = 0;
    for (int i = 0; i < levels.n; ++i) {
      const double off = levels.at[i] - step * NearestWhole(levels.at[i] / step);
      const double low = ProbabilityUpTo(LowerEnd(levels, i));
      added += off * off * (ProbabilityUpTo(UpperEnd(levels, i)) - low);
    }
    if (added < least) best = step, least = added;
  }
  return best;
}

// Codes ascend with their numbers. They repeat where there are fewer than 16.
constexpr NormalTable MakeNormalTable(int bits) {
  constexpr float kUnit = 0x1p-6f;
  const Levels levels = FitLevels(bits);
  const double step = BestStep(levels);
  std::array<int8_t, kTableCodes> numbers{};
  for (int code = 0; code < kTableCodes; ++code) {
    const int of_half = code % (2 * levels.n) - levels.n;
    const int level = of_half < 0 ? -1 - of_half : of_half;
    const int number = NearestWhole(levels.at[level] / step);
    numbers[code] = static_cast<int8_t>(of_half < 0 ? -number : number);
  }
  NamedTable table(numbers, kUnit, bits);
  // 0 lies between two levels and has the code of the one below: the float before 0 is too small
  // for machines that take such numbers for 0.
  table.steps.boundaries[levels.n] = 0;
  return {table, static_cast<float>(step)};
}

}  // namespace

constexpr std::array<NormalTable, kMostNormalBits> kNormalTables = {
    MakeNormalTable(1), MakeNormalTable(2), MakeNormalTable(3), MakeNormalTable(4)};

}  // namespace kvlathe
