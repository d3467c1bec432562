#include "tuning/search.h"

#include <algorithm>
#include <cmath>

namespace kvlathe {
namespace {

// Scores are means of a few hundred examples: 0.99 of 0.8 must not fail by the last bit.
constexpr double kRounding = 1e-12;
bool Fails(double kept, double accuracy) { return kept < accuracy - kRounding; }

bool CannotBe(StatusCode code) {
  return code == StatusCode::kInvalidArgument || code == StatusCode::kUnimplemented;
}

class MethodSearch {
 public:
  MethodSearch(const TuneMethod& method, const std::vector<Ladder>& ladders, double accuracy,
               PointRecorder* recorder, std::optional<TunePoint>* best)
      : method_(method), ladders_(ladders), accuracy_(accuracy), recorder_(recorder), best_(best) {}

  Status Run() {
    for (const Ladder& ladder : ladders_) values_.push_back(ladder.values.front());
    if (ladders_.empty()) return Try().status();
    return SearchFrom(0);
  }

 private:
  Status SearchFrom(size_t d);
  // Measures the chosen values; whether they keep the accuracy.
  StatusOr<bool> Try();
  // Those values of ladder d that make the cache smaller than all before them and than `bound`.
  StatusOr<std::vector<double>> SmallerValues(size_t d, double bound);
  // Index of the last value that is expected to keep the accuracy, -1 for none; nothing where
  // nothing is expected.
  StatusOr<std::optional<int>> ExpectedLast(size_t d, const std::vector<double>& values);
  // Index of the last value that keeps the accuracy as far as a bisection can tell; -1: none.
  StatusOr<int> Bisect(size_t d, const std::vector<double>& values);

  const TuneMethod& method_;
  const std::vector<Ladder>& ladders_;
  double accuracy_;
  PointRecorder* recorder_;
  std::optional<TunePoint>* best_;
  std::vector<double> values_;  // of every ladder
};

StatusOr<bool> MethodSearch::Try() {
  KVL_ASSIGN_OR_RETURN(TunePoint point,
                       recorder_->PointOf(FillIn(method_, ladders_, values_), accuracy_));
  if (Fails(recorder_->profile().AccuracyOf(point), accuracy_)) return false;
  if (!best_->has_value() || point.kv_fraction < (*best_)->kv_fraction) *best_ = std::move(point);
  return true;
}

StatusOr<std::vector<double>> MethodSearch::SmallerValues(size_t d, double bound) {
  std::vector<double> smaller;
  const double chosen = values_[d];
  for (double value : ladders_[d].values) {
    values_[d] = value;
    const StatusOr<double> size = recorder_->SizeOf(FillIn(method_, ladders_, values_));
    if (CannotBe(size.status().code())) continue;
    KVL_RETURN_IF_ERROR(size.status());
    if (*size >= bound) continue;
    bound = *size;
    smaller.push_back(value);
  }
  values_[d] = chosen;
  return smaller;
}

StatusOr<std::optional<int>> MethodSearch::ExpectedLast(size_t d,
                                                        const std::vector<double>& values) {
  int keeps = -1, fails = static_cast<int>(values.size());
  while (fails - keeps > 1) {
    const int middle = (keeps + fails) / 2;
    values_[d] = values[middle];
    KVL_ASSIGN_OR_RETURN(const std::optional<double> expected,
                         recorder_->Expect(FillIn(method_, ladders_, values_)));
    if (!expected.has_value()) return std::optional<int>();
    (*expected >= accuracy_ ? keeps : fails) = middle;
  }
  return std::optional<int>(keeps);
}

StatusOr<int> MethodSearch::Bisect(size_t d, const std::vector<double>& values) {
  KVL_ASSIGN_OR_RETURN(std::optional<int> expected, ExpectedLast(d, values));
  const int n = static_cast<int>(values.size());
  int passes = -1, fails = n;
  for (int step = 1; fails - passes > 1; step *= 2) {
    const bool is_between = passes >= 0 && fails < n;
    const int middle = is_between || !expected.has_value()
                           ? (passes + fails) / 2
                           : std::clamp(*expected, passes + 1, fails - 1);
    values_[d] = values[middle];
    KVL_ASSIGN_OR_RETURN(const bool keeps, Try());
    (keeps ? passes : fails) = middle;
    if (expected.has_value() && !is_between) *expected = middle + (keeps ? step : -step);
  }
  return passes;
}

Status MethodSearch::SearchFrom(size_t d) {
  const bool is_last = d + 1 == ladders_.size();
  const double bound = !is_last             ? INFINITY
                       : best_->has_value() ? (*best_)->kv_fraction
                                            : recorder_->profile().points.front().kv_fraction;
  KVL_ASSIGN_OR_RETURN(const std::vector<double> values, SmallerValues(d, bound));
  KVL_ASSIGN_OR_RETURN(const int last, Bisect(d, values));
  if (!is_last && last >= 0) {
    std::vector<int> rows;
    for (int i = kRows; i > 0; --i) {
      const int row = static_cast<int>(std::lround(double(last) * i / kRows));
      if (rows.empty() || rows.back() != row) rows.push_back(row);
    }
    for (int row : rows) {
      values_[d] = values[row];
      KVL_RETURN_IF_ERROR(SearchFrom(d + 1));
    }
  }
  values_[d] = ladders_[d].values.front();
  return OkStatus();
}

}  // namespace

std::vector<double> PointRecorder::LimitsFor(double accuracy) const {
  std::vector<double> limits;
  if (profile_->points.empty()) return limits;
  const TunePoint& baseline = profile_->points.front();
  for (size_t g = 0; g < profile_->goals.size(); ++g) {
    const double least = accuracy - 2 * kRounding;  // what misses it fails for certain
    limits.push_back(profile_->goals[g].is_perplexity() ? baseline.scores[g].value / least
                                                        : baseline.scores[g].value * least);
  }
  return limits;
}

StatusOr<TunePoint> PointRecorder::PointOf(const std::string& kv, double accuracy) {
  KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(kv));
  TunePoint point{kv, spec.ToString()};
  const auto known =
      std::ranges::find(profile_->points, point.kv_resolved, &TunePoint::kv_resolved);
  const bool is_known = known != profile_->points.end();
  if (is_known && (!known->is_cut_short || Fails(profile_->AccuracyOf(*known), accuracy))) {
    return *known;
  }
  KVL_ASSIGN_OR_RETURN(point.kv_fraction, evaluator_->Size(kv));
  KVL_ASSIGN_OR_RETURN(TuneEvaluator::Measurement measured,
                       evaluator_->Measure(kv, LimitsFor(accuracy)));
  point.scores = std::move(measured.scores);
  point.tbt_ms = measured.tbt_ms;
  point.is_cut_short = measured.is_cut_short;
  if (is_known) {
    *known = point;
  } else {
    profile_->points.push_back(point);
  }
  KVL_RETURN_IF_ERROR(save_(*profile_));
  return point;
}

StatusOr<std::optional<TunePoint>> SearchMethod(const TuneMethod& method, double accuracy,
                                                PointRecorder* recorder) {
  std::optional<TunePoint> best;
  for (const std::vector<Ladder>& ladders : method.alternatives) {
    KVL_RETURN_IF_ERROR(MethodSearch(method, ladders, accuracy, recorder, &best).Run());
  }
  return best;
}

}  // namespace kvlathe
