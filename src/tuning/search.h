// The search finds the strongest compression that keeps an accuracy. It knows nothing of models:
// whoever measures is behind an interface.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "tuning/profile.h"
#include "tuning/tune_method.h"

namespace kvlathe {

class TuneEvaluator {
 public:
  virtual ~TuneEvaluator() = default;

  // kv_fraction at the model's full context, without running anything. kInvalidArgument
  // or kUnimplemented: the model cannot have this cache (a ratio out of reach, an alternative that
  // does not go with the other stages), and the search goes without it.
  virtual StatusOr<double> Size(const std::string& kv) = 0;

  // The accuracy that is expected of a cache without running anything, if any is. It falls along a
  // ladder; the search measures first where it meets the accuracy asked for.
  virtual StatusOr<std::optional<double>> Expect(const std::string&) {
    return std::optional<double>();
  }

  struct Measurement {
    std::vector<GoalScore> scores;  // of every goal, or up to the one that fails
    double tbt_ms = 0;
    bool is_cut_short = false;
  };
  // `limits` has the least score, or the largest perplexity, of every goal: a cache that cannot
  // keep one of them need not be measured further. Empty: everything is measured.
  virtual StatusOr<Measurement> Measure(const std::string& kv, std::span<const double> limits) = 0;
};

// Measures each cache once: points of the profile are not measured again, new ones are added to it
// and saved before anything else happens. A point that was cut short counts only as far as it fails
// the accuracy asked for.
class PointRecorder {
 public:
  using Save = std::function<Status(const Profile&)>;
  PointRecorder(TuneEvaluator* evaluator, Profile* profile, Save save)
      : evaluator_(evaluator), profile_(profile), save_(std::move(save)) {}

  // The uncompressed cache, the first point of a profile.
  StatusOr<TunePoint> Baseline() { return PointOf("none", 0); }
  // A copy: the profile's points move. Needs the baseline.
  StatusOr<TunePoint> PointOf(const std::string& kv, double accuracy);
  StatusOr<double> SizeOf(const std::string& kv) { return evaluator_->Size(kv); }
  StatusOr<std::optional<double>> Expect(const std::string& kv) { return evaluator_->Expect(kv); }
  const Profile& profile() const { return *profile_; }

 private:
  std::vector<double> LimitsFor(double accuracy) const;

  TuneEvaluator* evaluator_;
  Profile* profile_;
  Save save_;
};

// Returns the smallest measured point of the method whose accuracy is at least `accuracy`, or
// nothing if no point that was tried keeps it.
//
// With one ladder, the values count that make the cache smaller than all weaker ones and than the
// uncompressed cache. A bisection, which starts where it is expected to end, finds two neighbours
// of which the weaker keeps the accuracy and the stronger does not. So the result was measured, and
// so was its failing neighbour. Where accuracy does not fall steadily there may be stronger values
// that would pass; the bisection does not look for them.
//
// With several ladders, a bisection finds how far the shortest goes with all others at their
// weakest. Then, for at most kRows of its values, evenly spread up to there and the strongest
// first, the other ladders are searched in the same way. Values that would not make the cache
// smaller than the best one so far are left out.
inline constexpr int kRows = 3;
StatusOr<std::optional<TunePoint>> SearchMethod(const TuneMethod& method, double accuracy,
                                                PointRecorder* recorder);

}  // namespace kvlathe
