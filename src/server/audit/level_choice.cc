#include "server/audit/level_choice.h"

#include <iterator>
#include <numeric>
#include <utility>

namespace kvlathe::server {

LevelChoice::LevelChoice(std::vector<Level> levels, double bound)
    : levels_(std::move(levels)), newest_(levels_.size()), bound_(bound) {}

double LevelChoice::mean_kl(int level_idx) const {
  const Newest& newest = newest_[level_idx];
  return newest.n_positions == 0 ? 0 : newest.kl_sum / static_cast<double>(newest.n_positions);
}

int64_t LevelChoice::n_positions(int level_idx) const { return newest_[level_idx].n_positions; }

bool LevelChoice::IsWithin(int level_idx) const {
  if (levels_[level_idx].is_none) return true;
  if (newest_[level_idx].n_positions < kEnoughPositions) return level_idx == 0;
  return mean_kl(level_idx) <= bound_;
}

std::optional<int> LevelChoice::Add(int level_idx, const ReplayScore& score) {
  Newest& newest = newest_[level_idx];
  newest.n_positions += std::ssize(score.kl);
  newest.kl_sum += std::accumulate(score.kl.begin(), score.kl.end(), 0.0);
  while (newest.n_positions > 2 * kNewestPositions) {  // as if the older half were as the whole
    newest.n_positions /= 2;
    newest.kl_sum /= 2;
  }
  int best = -1;
  for (int i = 0; i < std::ssize(levels_); ++i) {
    if (!IsWithin(i)) continue;
    if (best < 0 || levels_[i].n_bytes < levels_[best].n_bytes) best = i;
  }
  if (best < 0) best = 0;  // none is: what the operator named first
  if (chosen_.exchange(best) == best) return std::nullopt;
  return best;
}

}  // namespace kvlathe::server
