#include "references/reference_sphere.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "format/sphere_codes/sphere_codes.h"

namespace kvlathe::testing {
namespace {

constexpr double kStepsOfScale = 64;

double RoundToF16(double x) {
  if (x == 0) return 0;
  const double step = std::ldexp(1.0, std::max(std::ilogb(x), -14) - 10);
  return std::nearbyint(x / step) * step;
}

double Norm(const std::vector<double>& x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  return std::sqrt(squares);
}

// Entry (i, j) of the rotation of residuals: the Hadamard matrix over the root of its size, times
// the sign of channel j.
double Rotation(size_t n, size_t i, size_t j) {
  const double sign = SignOfChannel(SphereRotation::kOfResiduals, static_cast<int>(j));
  return (__builtin_popcountll(i & j) % 2 == 1 ? -sign : sign) / std::sqrt(double(n));
}

}  // namespace

void CodeBySphere(const ReferenceLevels& levels, bool corrects_norms, std::vector<double>* row) {
  const double norm = Norm(*row);
  if (norm == 0) return;
  const double deviation = norm / std::sqrt(double(row->size()));
  const double scale = RoundToF16(deviation * levels.step * kStepsOfScale);
  std::vector<double> numbers;
  for (const double x : *row) {
    int nearest = levels.positive[0];
    for (const int level : levels.positive) {
      const double steps = std::abs(x) / scale * kStepsOfScale;
      if (std::abs(steps - level) < std::abs(steps - nearest)) nearest = level;
    }
    numbers.push_back(x > 0 ? nearest : -nearest);
  }
  const double stored = corrects_norms ? RoundToF16(norm / Norm(numbers) * kStepsOfScale) : scale;
  for (size_t i = 0; i < numbers.size(); ++i) (*row)[i] = numbers[i] * stored / kStepsOfScale;
}

void AddSignsOfResidual(const std::vector<double>& row, std::vector<double>* coded) {
  const size_t n = row.size();
  std::vector<double> residual;
  for (size_t i = 0; i < n; ++i) residual.push_back(row[i] - (*coded)[i]);
  const double length = RoundToF16(Norm(residual) * std::sqrt(std::acos(-1.0) / 2 / double(n)));
  for (size_t i = 0; i < n; ++i) {
    double turned = 0;
    for (size_t j = 0; j < n; ++j) turned += Rotation(n, i, j) * residual[j];
    for (size_t j = 0; j < n; ++j) {
      (*coded)[j] += length * Rotation(n, i, j) * (turned < 0 ? -1 : 1);
    }
  }
}

}  // namespace kvlathe::testing
