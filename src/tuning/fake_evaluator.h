// Tests of the search use a model that is a formula: what a stage loses depends on how far it
// compresses, and losses add up.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tuning/search.h"

namespace kvlathe {

class FakeEvaluator : public TuneEvaluator {
 public:
  // The share of the cache that a stage leaves, in [0, 1], and what it loses of the accuracy.
  std::function<double(const Stage&)> loss = [](const Stage& stage) {
    const double removed = 1 - Left(stage);
    return 0.05 * removed * removed;
  };
  double size_of_none = 1.05;
  double baseline = 0.8;
  bool cuts_short = false;    // gives up on what is too low, at a score that is still above it
  int fails_after = 1 << 30;  // measurements until the process "is killed"
  std::function<std::optional<double>(const Spec&)> expected;  // null: nothing is
  std::vector<std::string> measured;

  static double Left(const Stage& stage) {
    for (const char* key : {"rate", "ratio", "keep", "bits", "size"}) {
      const KeyValues values(stage.values);
      if (!values.Has(key)) continue;
      const double x = values.Number(key);
      if (std::string(key) == "rate") return 1 - x;
      if (std::string(key) == "ratio") return 1 / x;
      if (std::string(key) == "bits") return x / 16;
      if (std::string(key) == "size") return std::min(1.0, x / 1024);
      return x;
    }
    return stage.name == "int8" ? 0.53 : 1;
  }

  StatusOr<double> Size(const std::string& kv) override {
    KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(kv));
    double size = size_of_none;
    for (const Stage& stage : spec.stages()) {
      if (KeyValues(stage.values).Number("ratio") > 12) {
        return Error(StatusCode::kInvalidArgument, "out of reach");
      }
      size *= Left(stage);
    }
    return size;
  }

  StatusOr<std::optional<double>> Expect(const std::string& kv) override {
    if (!expected) return std::optional<double>();
    KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(kv));
    return expected(spec);
  }

  StatusOr<Measurement> Measure(const std::string& kv, std::span<const double> limits) override {
    if (static_cast<int>(measured.size()) >= fails_after) {
      return Error(StatusCode::kInternal, "killed");
    }
    measured.push_back(kv);
    KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(kv));
    double lost = 0;
    for (const Stage& stage : spec.stages()) lost += loss(stage);
    KVL_ASSIGN_OR_RETURN(const double size, Size(kv));
    const double score = baseline * (1 - lost);
    if (cuts_short && !limits.empty() && score < limits[0]) {
      return Measurement{{{(score + 2 * limits[0]) / 3, 0, 0}}, 0, true};
    }
    return Measurement{{{score, 0.01, size}}, 10 * size};
  }
};

inline Profile OneGoalProfile() {
  Profile profile;
  profile.model_hash = "m";
  profile.goals = {{"passkey", "exact_match", "100 examples"}};
  return profile;
}

}  // namespace kvlathe
