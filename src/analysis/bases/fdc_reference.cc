#include "analysis/bases/fdc_reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace kvlathe::reference {

Svd DecomposeStacked(Matrix m) {
  const size_t n = m.size(), d = m[0].size();
  Matrix right(d, std::vector<double>(d, 0.0));  // columns while turning
  for (size_t i = 0; i < d; ++i) right[i][i] = 1;
  for (int sweep = 0; sweep < 60; ++sweep) {
    double worst = 0;
    for (size_t i = 0; i < d; ++i) {
      for (size_t j = i + 1; j < d; ++j) {
        double ii = 0, jj = 0, ij = 0;
        for (size_t t = 0; t < n; ++t) {
          ii += m[t][i] * m[t][i];
          jj += m[t][j] * m[t][j];
          ij += m[t][i] * m[t][j];
        }
        if (ij == 0) continue;
        worst = std::max(worst, std::abs(ij) / std::sqrt(ii * jj));
        const double zeta = (jj - ii) / (2 * ij);
        const double tangent = (zeta >= 0 ? 1 : -1) / (std::abs(zeta) + std::sqrt(1 + zeta * zeta));
        const double c = 1 / std::sqrt(1 + tangent * tangent), s = c * tangent;
        for (size_t t = 0; t < n; ++t) {
          const double x = m[t][i], y = m[t][j];
          m[t][i] = c * x - s * y;
          m[t][j] = s * x + c * y;
        }
        for (size_t k = 0; k < d; ++k) {
          const double x = right[k][i], y = right[k][j];
          right[k][i] = c * x - s * y;
          right[k][j] = s * x + c * y;
        }
      }
    }
    if (worst < 1e-14) break;
  }
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < d; ++i) {
    double squares = 0;
    for (size_t t = 0; t < n; ++t) squares += m[t][i] * m[t][i];
    order.push_back({std::sqrt(squares), i});
  }
  std::sort(order.rbegin(), order.rend());
  Svd svd;
  for (const auto& [sigma, column] : order) {
    svd.singular_values.push_back(sigma);
    std::vector<double> vector(d);
    for (size_t k = 0; k < d; ++k) vector[k] = right[k][column];
    svd.right.push_back(vector);
  }
  return svd;
}

static double RemovedShare(const std::vector<double>& sigma, int rank) {
  double removed = 0, total = 0;
  for (int i = static_cast<int>(sigma.size()) - 1; i >= 0; --i) {
    total += sigma[i];
    if (i >= rank) removed += sigma[i];
  }
  return removed / total;
}

int RankOf(const std::vector<double>& sigma, double eta, int multiple) {
  const int d = static_cast<int>(sigma.size());
  int rank = 0;
  while (RemovedShare(sigma, rank) > eta) ++rank;
  while (rank % multiple != 0) ++rank;
  return std::min(std::max(rank, multiple), d);
}

Choice ChooseRanks(const std::vector<std::vector<double>>& pairs, double target, int multiple) {
  std::vector<double> etas;
  for (const auto& sigma : pairs) {
    for (int rank = 0; rank <= static_cast<int>(sigma.size()); ++rank) {
      etas.push_back(RemovedShare(sigma, rank));
    }
  }
  Choice best;
  best.rate = -1;
  for (const double eta : etas) {
    if (eta >= 1) continue;
    Choice choice;
    double kept = 0, full = 0;
    for (const auto& sigma : pairs) {
      choice.ranks.push_back(RankOf(sigma, eta, multiple));
      kept += choice.ranks.back();
      full += static_cast<double>(sigma.size());
    }
    choice.rate = 1 - kept / full;
    if (choice.rate <= target + 1e-12 && choice.rate > best.rate) best = choice;
  }
  return best;
}

}  // namespace kvlathe::reference
