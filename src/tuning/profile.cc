#include "tuning/profile.h"

#include <algorithm>
#include <cmath>

#include "io/files.h"
#include "io/json_checksum.h"
#include "tuning/tune_method.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "kvlathe-profile";
constexpr int kVersion = 1;

Json ScoresJson(const TunePoint& point) {
  Json list = Json::array();
  for (const GoalScore& s : point.scores) {
    list.push_back(
        {{"value", s.value}, {"standard_error", s.standard_error}, {"kv_fraction", s.kv_fraction}});
  }
  return list;
}

Json MethodJson(const Profile& profile, const TunedMethod& method) {
  Json json = {{"name", method.name}, {"question", method.question}, {"kv", nullptr}};
  if (method.kv.empty()) return json;
  json["kv"] = method.kv;
  const auto point = std::ranges::find(profile.points, method.kv, &TunePoint::kv);
  if (point == profile.points.end()) return json;
  json["kv_fraction"] = point->kv_fraction;
  json["accuracy"] = profile.AccuracyOf(*point);
  json["tbt_ms"] = point->tbt_ms;
  return json;
}

TunePoint PointFromJson(const nlohmann::json& json, size_t n_goals) {
  TunePoint point;
  point.kv = json.at("kv").get<std::string>();
  point.kv_resolved = json.at("kv_resolved").get<std::string>();
  point.kv_fraction = json.at("kv_fraction").get<double>();
  point.is_cut_short = json.value("cut_short", false);
  if (!point.is_cut_short) point.tbt_ms = json.at("tbt_ms").get<double>();
  for (const auto& score : json.at("scores")) {
    point.scores.push_back({score.at("value").get<double>(),
                            score.at("standard_error").get<double>(),
                            score.at("kv_fraction").get<double>()});
  }
  const size_t n_least = point.is_cut_short ? 1 : n_goals;
  if (point.scores.size() < n_least || point.scores.size() > n_goals) {
    throw std::runtime_error("a point without all scores");
  }
  return point;
}

TunedTarget TargetFromJson(const nlohmann::json& json) {
  TunedTarget target{json.at("accuracy").get<double>(), {}};
  for (const auto& method : json.at("methods")) {
    const auto& kv = method.at("kv");
    target.methods.push_back({method.at("name").get<std::string>(),
                              method.at("question").get<std::string>(),
                              kv.is_null() ? "" : kv.get<std::string>()});
  }
  return target;
}

Profile ParseFields(const nlohmann::json& json) {
  if (json.at("format") != kFormat) throw std::runtime_error("not a profile");
  if (json.at("version") != kVersion) throw std::runtime_error("of another version");
  Profile profile;
  profile.model_hash = json.at("model_hash").get<std::string>();
  profile.settings = json.at("settings").get<std::string>();
  for (const auto& goal : json.at("goals")) {
    profile.goals.push_back({goal.at("name").get<std::string>(),
                             goal.at("metric").get<std::string>(),
                             goal.at("settings").get<std::string>()});
  }
  for (const auto& point : json.at("points")) {
    profile.points.push_back(PointFromJson(point, profile.goals.size()));
  }
  if (!profile.points.empty() &&
      (profile.points.front().kv_resolved != "none" || profile.points.front().is_cut_short)) {
    throw std::runtime_error("its first point is not the baseline");
  }
  for (const auto& target : json.at("targets")) profile.targets.push_back(TargetFromJson(target));
  return profile;
}

bool Beats(const Profile& profile, const TunePoint& a, const TunePoint& b) {
  const double accuracy_a = profile.AccuracyOf(a), accuracy_b = profile.AccuracyOf(b);
  if (a.kv_fraction > b.kv_fraction || accuracy_a < accuracy_b) return false;
  if (a.tbt_ms > b.tbt_ms * (1 + kEqualTimes)) return false;
  return a.kv_fraction < b.kv_fraction || accuracy_a > accuracy_b ||
         a.tbt_ms * (1 + kEqualTimes) < b.tbt_ms;
}

}  // namespace

double Profile::AccuracyOf(const TunePoint& point) const {
  double least = INFINITY;
  for (size_t g = 0; g < point.scores.size(); ++g) {
    const double baseline = points.front().scores[g].value, value = point.scores[g].value;
    if (!(baseline > 0)) return 0;
    least = std::min(least, goals[g].is_perplexity() ? baseline / value : value / baseline);
  }
  return least;
}

std::vector<int> ParetoFront(const Profile& profile) {
  std::vector<int> front;
  for (size_t i = 0; i < profile.points.size(); ++i) {
    if (profile.points[i].is_cut_short) continue;
    const bool is_beaten = std::ranges::any_of(profile.points, [&](const TunePoint& other) {
      return !other.is_cut_short && Beats(profile, other, profile.points[i]);
    });
    if (!is_beaten) front.push_back(static_cast<int>(i));
  }
  std::ranges::stable_sort(front, {}, [&](int i) { return profile.points[i].kv_fraction; });
  return front;
}

nlohmann::ordered_json ToJson(const Profile& profile) {
  Json json = {{"format", kFormat},
               {"version", kVersion},
               {"model_hash", profile.model_hash},
               {"settings", profile.settings},
               {"goals", Json::array()},
               {"targets", Json::array()},
               {"front", Json::array()},
               {"points", Json::array()}};
  for (size_t g = 0; g < profile.goals.size(); ++g) {
    const TuneGoal& goal = profile.goals[g];
    Json& item = json["goals"].emplace_back(
        Json{{"name", goal.name}, {"metric", goal.metric}, {"settings", goal.settings}});
    if (!profile.points.empty()) item["baseline"] = profile.points.front().scores[g].value;
  }
  for (const TunedTarget& target : profile.targets) {
    Json methods = Json::array();
    for (const TunedMethod& method : target.methods) methods.push_back(MethodJson(profile, method));
    json["targets"].push_back({{"accuracy", target.accuracy}, {"methods", std::move(methods)}});
  }
  for (int i : ParetoFront(profile)) json["front"].push_back(profile.points[i].kv);
  for (const TunePoint& point : profile.points) {
    Json& item = json["points"].emplace_back(Json{{"kv", point.kv},
                                                  {"kv_resolved", point.kv_resolved},
                                                  {"kv_fraction", point.kv_fraction},
                                                  {"accuracy", profile.AccuracyOf(point)}});
    if (point.is_cut_short) {
      item["cut_short"] = true;
    } else {
      item["tbt_ms"] = point.tbt_ms;
    }
    item["scores"] = ScoresJson(point);
  }
  return json;
}

StatusOr<Profile> ProfileFromJson(const nlohmann::json& json, const std::string& path) {
  try {
    return ParseFields(json);
  } catch (const std::exception& error) {  // nlohmann says which field, and how it differs
    return Error(StatusCode::kDataLoss, "{}: not a profile that kvlathe tune wrote: {}", path,
                 error.what());
  }
}

StatusOr<Profile> ReadProfile(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(path));
  if (!FitsItsChecksum(json)) {
    return Error(StatusCode::kDataLoss,
                 "{}: damaged, or changed by hand: its checksum does not fit what it holds; run "
                 "kvlathe tune again, or take the entry crc32c out to use it as it is",
                 path);
  }
  return ProfileFromJson(json, path);
}

Status WriteProfile(const Profile& profile, const std::string& path) {
  Json json = ToJson(profile);
  AddChecksum(&json);
  return WriteFileAtomically(path, json.dump(1) + "\n");
}

std::string TuneCommand(const Spec& question, const std::string& model_directory) {
  return fmt::format("kvlathe tune -m {} --accuracy {} --kv '{}'", model_directory,
                     *question.accuracy(), ShortText(question, /*names_method=*/true));
}

bool HasSearchedFor(const Profile& profile, const Spec& question) {
  return std::ranges::any_of(profile.targets, [&](const TunedTarget& target) {
    return std::ranges::any_of(target.methods, [&](const TunedMethod& method) {
      const StatusOr<Spec> asked = Spec::Parse(method.question);
      return asked.ok() && *asked == question;
    });
  });
}

StatusOr<Spec> Answer(const Profile& profile, const std::string& path, const Spec& question,
                      const std::string& model_directory, std::string_view model_hash) {
  if (profile.model_hash != model_hash) {
    return Error(StatusCode::kInvalidArgument,
                 "--kv '{}': the profile {} belongs to another model; run {} --out FILE and give "
                 "--profile FILE",
                 question.text(), path, TuneCommand(question, model_directory));
  }
  std::string known;
  for (const TunedTarget& target : profile.targets) {
    for (const TunedMethod& method : target.methods) {
      const StatusOr<Spec> asked = Spec::Parse(method.question);
      if (!asked.ok() || !(*asked == question)) {  // of a build that knows more stages
        if (!method.kv.empty()) {
          known +=
              fmt::format("{}{} at {}", known.empty() ? "" : ", ", method.name, target.accuracy);
        }
        continue;
      }
      if (method.kv.empty()) {
        return Error(StatusCode::kInvalidArgument,
                     "--kv '{}': {} found no setting of {} that keeps {} of the baseline's "
                     "accuracy; ask for less or take another method",
                     question.text(), path, method.name, target.accuracy);
      }
      KVL_ASSIGN_OR_RETURN(Spec answer, Spec::Parse(method.kv));
      answer.set_text(question.text());
      return answer;
    }
  }
  return Error(StatusCode::kInvalidArgument, "--kv '{}': the profile {} holds {}; run {}",
               question.text(), path, known.empty() ? "no results" : known,
               TuneCommand(question, model_directory));
}

std::string ToTable(const Profile& profile, const TunedTarget& target) {
  size_t name_width = 6, kv_width = 2;
  for (const TunedMethod& method : target.methods) {
    name_width = std::max(name_width, method.name.size());
    kv_width = std::max(kv_width, method.kv.size());
  }
  std::string table =
      fmt::format("{:<{}}  {:<{}}  {:>9}  {:>6}  {:>8}  {:>7}\n", "method", name_width, "kv",
                  kv_width, "KV size %", "ratio", "accuracy", "TBT ms");
  for (const TunedMethod& method : target.methods) {
    const auto point = std::ranges::find(profile.points, method.kv, &TunePoint::kv);
    if (point == profile.points.end()) {
      table += fmt::format("{:<{}}  none keeps {}\n", method.name, name_width, target.accuracy);
      continue;
    }
    table += fmt::format("{:<{}}  {:<{}}  {:>9.2f}  {:>6.2f}  {:>8.4f}  {:>7.3f}\n", method.name,
                         name_width, method.kv, kv_width, 100 * point->kv_fraction,
                         1 / point->kv_fraction, profile.AccuracyOf(*point), point->tbt_ms);
  }
  return table;
}

}  // namespace kvlathe
