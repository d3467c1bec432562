// The level of requests that name none, where the audit may choose it.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "evaluation/audit/answer_replay.h"

namespace kvlathe::server {

// The smallest cache whose mean KL over the newest audited positions is within a bound. The first
// level counts as within until enough of its positions were audited; an uncompressed one always is.
class LevelChoice {
 public:
  static constexpr int64_t kEnoughPositions = 512;
  // A mean is of the newest so many positions, at most twice as many.
  static constexpr int64_t kNewestPositions = 8192;

  struct Level {
    int64_t n_bytes = 0;  // of a sequence as long as the context
    bool is_none = false;
  };
  // At least one level.
  LevelChoice(std::vector<Level> levels, double bound);

  // Another choice than before, where the audited answer changes it.
  std::optional<int> Add(int level_idx, const ReplayScore& score);
  double mean_kl(int level_idx) const;
  int64_t n_positions(int level_idx) const;
  double bound() const { return bound_; }

  // Any thread may read it.
  const std::atomic<int>& chosen() const { return chosen_; }

 private:
  struct Newest {
    int64_t n_positions = 0;
    double kl_sum = 0;
  };

  bool IsWithin(int level_idx) const;

  std::vector<Level> levels_;
  std::vector<Newest> newest_;
  double bound_;
  std::atomic<int> chosen_ = 0;
};

}  // namespace kvlathe::server
