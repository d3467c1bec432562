// In a profile `tune` keeps what it measured and found, and from it `accuracy` in a spec is
// answered. It is complete after every measured point, so an interrupted run goes on from it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kv/spec/spec.h"

namespace kvlathe {

// What must not get worse: a task or the perplexity of a text.
struct TuneGoal {
  std::string name;      // "passkey", "perplexity novel.txt"
  std::string metric;    // "perplexity": lower is better; otherwise a score in [0, 1]
  std::string settings;  // what else decides the examples, as text
  bool is_perplexity() const { return metric == "perplexity"; }
  friend bool operator==(const TuneGoal&, const TuneGoal&) = default;
};

struct GoalScore {
  double value = 0;           // of the last one of a point that was cut short: at best
  double standard_error = 0;  // 0 where none is known
  double kv_fraction = 0;     // as measured on this goal, which may be shorter than the context
};

// A cache that was measured.
struct TunePoint {
  std::string kv;           // as short as it can be typed
  std::string kv_resolved;  // with all defaults: the identity of the point
  double kv_fraction = 0;   // at the model's full context, by the closed formula (what ratio means)
  std::vector<GoalScore> scores;  // of every goal
  double tbt_ms = 0;              // between tokens, at half of the context
  // Measured no further than to the goal on which it fails: later scores and the time are missing,
  // and no accuracy above that of the last score is possible.
  bool is_cut_short = false;
};

// The best of one method: the smallest measured point that keeps the accuracy.
struct TunedMethod {
  std::string name;      // as typed for tune
  std::string question;  // the resolved spec with `accuracy`
  std::string kv;        // of the point; empty: no point of the method keeps the accuracy
};

struct TunedTarget {
  double accuracy = 0;
  std::vector<TunedMethod> methods;
};

struct Profile {
  std::string model_hash;
  std::string settings;  // what else decides the measurements, as text
  std::vector<TuneGoal> goals;
  std::vector<TunePoint> points;  // in the order of measuring; the first is `none`
  std::vector<TunedTarget> targets;

  // The share of the baseline's accuracy that a point keeps: the least over the goals of score /
  // baseline, or baseline / perplexity. 1 for the baseline. Of a point that was cut short, what it
  // keeps at best.
  // 0 where the baseline scores 0, of which nothing is a share.
  double AccuracyOf(const TunePoint& point) const;
};

// Indices of the whole points that no other one beats: not larger, not less accurate and not
// slower, and better in one of them. Times count as equal within kEqualTimes, because they are
// measured.
inline constexpr double kEqualTimes = 0.05;
std::vector<int> ParetoFront(const Profile& profile);

// {"format":"kvlathe-profile","version":1,"model_hash","settings","goals":[{"name","metric",
// "settings","baseline"}],"targets":[{"accuracy","methods":[{"name","question","kv","kv_fraction",
// "accuracy","tbt_ms"}]}],"front":["kv"...],"points":[{"kv","kv_resolved","kv_fraction","accuracy",
// "tbt_ms","scores":[{"value","standard_error","kv_fraction"}]}]}; a point that was cut short has
// "cut_short":true instead of a time. What follows from the points
// (front, baselines, accuracies) stands there for readers and is not read back.
nlohmann::ordered_json ToJson(const Profile& profile);
// kDataLoss, naming `path`, for anything that ToJson does not write.
StatusOr<Profile> ProfileFromJson(const nlohmann::json& json, const std::string& path);

StatusOr<Profile> ReadProfile(const std::string& path);
Status WriteProfile(const Profile& profile, const std::string& path);

// Returns the command that finds the answer to a question.
std::string TuneCommand(const Spec& question, const std::string& model_directory);

// Whether `tune` has searched for what the question asks, found or not.
bool HasSearchedFor(const Profile& profile, const Spec& question);

// The spec that answers a question (Spec::accuracy()), with the question's text. kInvalidArgument,
// saying how to run tune, if the profile belongs to another model or holds no answer.
StatusOr<Spec> Answer(const Profile& profile, const std::string& path, const Spec& question,
                      const std::string& model_directory, std::string_view model_hash);

// Returns a table for people: the best cache of every method for a target, and the front.
std::string ToTable(const Profile& profile, const TunedTarget& target);

}  // namespace kvlathe
