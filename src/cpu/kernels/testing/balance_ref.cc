#include "cpu/kernels/testing/balance_ref.h"

#include <algorithm>
#include <cmath>

namespace kvlathe {
namespace {

using Tile = std::vector<std::vector<double>>;

Tile Divided(const Tile& tile, const std::vector<double>& log_elements,
             const std::vector<double>& log_members) {
  Tile divided = tile;
  for (size_t i = 0; i < tile.size(); ++i) {
    for (size_t j = 0; j < tile[i].size(); ++j) {
      divided[i][j] /= std::exp(log_members[i]) * std::exp(log_elements[j]);
    }
  }
  return divided;
}

Tile Transposed(const Tile& tile) {
  Tile turned(tile[0].size(), std::vector<double>(tile.size()));
  for (size_t i = 0; i < tile.size(); ++i) {
    for (size_t j = 0; j < tile[i].size(); ++j) turned[j][i] = tile[i][j];
  }
  return turned;
}

// Of each row of a tile.
std::vector<double> Deviations(const Tile& tile) {
  std::vector<double> deviations;
  for (const std::vector<double>& row : tile) deviations.push_back(DeviationRef(row));
  return deviations;
}

double SpreadOf(const std::vector<double>& deviations) {
  const auto [low, high] = std::minmax_element(deviations.begin(), deviations.end());
  return *high / std::max(*low, 1e-8);
}

double ImbalanceOf(const Tile& tile) {
  return SpreadOf(Deviations(Transposed(tile))) + SpreadOf(Deviations(tile));
}

void AddLogs(const std::vector<double>& deviations, std::vector<double>* logs) {
  for (size_t i = 0; i < logs->size(); ++i) {
    (*logs)[i] += std::log(std::clamp(deviations[i], 1e-3, 1e3));
    (*logs)[i] = std::clamp((*logs)[i], -0.3, 10.0);
  }
}

}  // namespace

double DeviationRef(const std::vector<double>& x) {
  double mean = 0, squares = 0;
  for (const double v : x) mean += v / static_cast<double>(x.size());
  for (const double v : x) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / static_cast<double>(x.size() - 1));
}

RefBalanced BalanceRef(const Tile& tile) {
  std::vector<double> elements(tile[0].size()), members(tile.size());
  std::vector<double> best_elements = elements, best_members = members;
  Tile divided = tile;
  double least = ImbalanceOf(divided);
  for (int round = 0; round < 16; ++round) {
    AddLogs(Deviations(Transposed(divided)), &elements);
    divided = Divided(tile, elements, members);
    AddLogs(Deviations(divided), &members);
    divided = Divided(tile, elements, members);
    const double imbalance = ImbalanceOf(divided);
    if (imbalance > least) continue;
    least = imbalance, best_elements = elements, best_members = members;
  }
  for (double& x : best_elements) x = std::exp(x);
  for (double& x : best_members) x = std::exp(x);
  return {best_elements, best_members};
}

}  // namespace kvlathe
