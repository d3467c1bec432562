// The figures of an audit: what the replays of many answers with one cache have found.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "evaluation/audit/answer_replay.h"

namespace kvlathe {

// Takes the same memory whatever it has counted. Means are exact; quantiles are read off classes
// of values and are up to kClassRatio off.
class AuditFigures {
 public:
  static constexpr double kClassRatio = 1.03;

  void Add(const ReplayScore& score);

  int64_t n_answers() const { return n_answers_; }
  int64_t n_positions() const { return n_positions_; }
  int64_t n_agree() const { return n_agree_; }
  int64_t n_parted() const { return n_parted_; }  // answers with another likeliest token somewhere
  // All below are 0 where nothing was counted.
  double mean_kl() const { return Mean(kl_sum_, n_positions_); }
  double top1_agreement() const { return Mean(static_cast<double>(n_agree_), n_positions_); }
  // Of the answers that parted: tokens before the likeliest was another.
  double mean_parted_at() const { return Mean(static_cast<double>(parted_sum_), n_parted_); }
  // The smallest value that is no less than this share of all, in (0, 1].
  double KlQuantile(double share) const;

 private:
  static double Mean(double sum, int64_t n) { return n == 0 ? 0 : sum / static_cast<double>(n); }

  int64_t n_answers_ = 0;
  int64_t n_positions_ = 0;
  int64_t n_agree_ = 0;
  int64_t n_parted_ = 0;
  int64_t parted_sum_ = 0;
  double kl_sum_ = 0;
  double most_kl_ = 0;
  std::vector<int64_t> classes_;  // of values, from the smallest on; [0]: what counts as zero
};

// {"answers", "positions", "kl", "kl_median", "kl_p999", "top1_agreement", "parted", "parted_at"};
// parted_at is null where no answer parted.
nlohmann::ordered_json ToJson(const AuditFigures& figures);

// "lathe(ratio=8)", or "lathe(ratio=8,resident=full) at 0.5" of a request with a rate.
std::string AuditLabel(const std::string& kv, const std::optional<double>& rate);

}  // namespace kvlathe
