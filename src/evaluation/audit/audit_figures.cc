#include "evaluation/audit/audit_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvlathe {
namespace {

// Below it a divergence is the rounding of logits.
constexpr double kLeastKl = 1e-9;
constexpr size_t kClasses = 960;  // up to 1e3 and more

size_t ClassOf(double kl) {
  if (!(kl > kLeastKl)) return 0;
  const double place = std::log(kl / kLeastKl) / std::log(AuditFigures::kClassRatio);
  return std::min(kClasses - 1, 1 + static_cast<size_t>(place));
}

double EndOfClass(size_t i) {
  return i == 0 ? 0 : kLeastKl * std::pow(AuditFigures::kClassRatio, static_cast<double>(i));
}

}  // namespace

void AuditFigures::Add(const ReplayScore& score) {
  classes_.resize(kClasses);
  ++n_answers_;
  n_positions_ += static_cast<int64_t>(score.kl.size());
  n_agree_ += score.n_agree;
  if (score.first_parted.has_value()) {
    ++n_parted_;
    parted_sum_ += *score.first_parted;
  }
  for (const double kl : score.kl) {
    kl_sum_ += kl;
    most_kl_ = std::max(most_kl_, kl);
    ++classes_[ClassOf(kl)];
  }
}

double AuditFigures::KlQuantile(double share) const {
  if (n_positions_ == 0) return 0;
  const auto wanted = std::max<int64_t>(
      1, static_cast<int64_t>(std::ceil(share * static_cast<double>(n_positions_))));
  int64_t n = 0;
  for (size_t i = 0; i < classes_.size(); ++i) {
    n += classes_[i];
    if (n >= wanted) return std::min(EndOfClass(i), most_kl_);
  }
  return most_kl_;
}

nlohmann::ordered_json ToJson(const AuditFigures& figures) {
  nlohmann::ordered_json json = {{"answers", figures.n_answers()},
                                 {"positions", figures.n_positions()},
                                 {"kl", figures.mean_kl()},
                                 {"kl_median", figures.KlQuantile(0.5)},
                                 {"kl_p999", figures.KlQuantile(0.999)},
                                 {"top1_agreement", figures.top1_agreement()},
                                 {"parted", figures.n_parted()},
                                 {"parted_at", nullptr}};
  if (figures.n_parted() > 0) json["parted_at"] = figures.mean_parted_at();
  return json;
}

std::string AuditLabel(const std::string& kv, const std::optional<double>& rate) {
  return rate.has_value() ? fmt::format("{} at {}", kv, *rate) : kv;
}

}  // namespace kvlathe
