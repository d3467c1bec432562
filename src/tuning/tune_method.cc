#include "tuning/tune_method.h"

#include <algorithm>
#include <map>
#include <optional>

namespace kvlathe {
namespace {

// What the search may choose for a stage that leaves it open: the key of each ladder, with values.
std::vector<Ladder> LaddersOf(const Spec& question, size_t stage_idx) {
  std::vector<Ladder> ladders;
  const StageInfo& info = *question.stages()[stage_idx].info;
  for (const TuningLadder& ladder : info.ladders) {
    if (ladder.without_quantizer && question.quantizer() != nullptr) continue;
    const KeyInfo* const key = info.FindKey(ladder.key);
    ladders.push_back({stage_idx, key, ladder.values(*key)});
  }
  return ladders;
}

bool AsksForAccuracy(const Stage& stage) {
  return std::ranges::any_of(
      stage.values, [](const StageValue& value) { return value.first->name == "accuracy"; });
}

std::string KeyText(const KeyInfo& key, const SpecValue& value) {
  return fmt::format("{}={}", key.name, ValueText(value));
}

// `open` replaces accuracy; null leaves it out.
std::string StageText(const Stage& stage, const std::string* open, bool shows_accuracy) {
  std::string keys;
  const auto add = [&](const std::string& text) { keys += (keys.empty() ? "" : ",") + text; };
  if (open != nullptr) add(*open);
  for (const auto& [key, value] : stage.values) {
    if (key->name == "accuracy") {
      if (shows_accuracy) add(KeyText(*key, value));
      continue;
    }
    const bool is_default = !key->excludes_others && !key->default_text.empty() &&
                            ParseValue(*key, key->default_text) == value;
    if (!is_default) add(KeyText(*key, value));
  }
  return std::string(stage.name) + (keys.empty() ? "" : "(" + keys + ")");
}

}  // namespace

StatusOr<TuneMethod> ParseMethod(std::string_view text, double accuracy) {
  TuneMethod method;
  KVL_ASSIGN_OR_RETURN(method.question, Spec::ParseQuestion(text, accuracy));
  if (method.question.accuracy().value_or(accuracy) != accuracy) {
    return Error(StatusCode::kInvalidArgument,
                 "--kv '{}': tune takes its target from --accuracy, which is {}; leave it out here",
                 text, accuracy);
  }
  method.name = ShortText(method.question, /*names_method=*/true);
  method.alternatives = {{}};
  const std::vector<Stage>& stages = method.question.stages();
  for (size_t s = 0; s < stages.size(); ++s) {
    if (!AsksForAccuracy(stages[s])) continue;
    std::vector<std::vector<Ladder>> longer;
    for (const std::vector<Ladder>& ladders : method.alternatives) {
      for (const Ladder& ladder : LaddersOf(method.question, s)) {
        longer.push_back(ladders);
        longer.back().push_back(ladder);
      }
    }
    method.alternatives = std::move(longer);
  }
  for (std::vector<Ladder>& ladders : method.alternatives) {
    std::ranges::stable_sort(ladders, {}, [](const Ladder& l) { return l.values.size(); });
  }
  return method;
}

std::string FillIn(const TuneMethod& method, std::span<const Ladder> ladders,
                   std::span<const double> values) {
  if (method.question.is_none()) return "none";
  std::string text;
  const std::vector<Stage>& stages = method.question.stages();
  for (size_t s = 0; s < stages.size(); ++s) {
    std::optional<std::string> open;
    for (size_t i = 0; i < ladders.size(); ++i) {
      if (ladders[i].stage_idx == s) open = KeyText(*ladders[i].key, {values[i], {}});
    }
    text += (s > 0 ? "+" : "") + StageText(stages[s], open.has_value() ? &*open : nullptr, false);
  }
  return text;
}

Status CheckMethodSupported(const TuneMethod& method) {
  Status refused;
  for (const std::vector<Ladder>& ladders : method.alternatives) {
    std::vector<double> weakest;
    for (const Ladder& ladder : ladders) weakest.push_back(ladder.values.front());
    const StatusOr<Spec> spec = Spec::Parse(FillIn(method, ladders, weakest));
    refused = spec.ok() ? CheckSupported(*spec) : spec.status();
    if (refused.ok()) return OkStatus();
  }
  return refused;
}

std::string ShortText(const Spec& spec, bool names_method) {
  if (spec.is_none()) return "none";
  std::string text;
  for (const Stage& stage : spec.stages()) {
    text += (text.empty() ? "" : "+") + StageText(stage, nullptr, !names_method);
  }
  return text;
}

std::vector<std::pair<std::string_view, Axis>> DefaultMethods() {
  std::map<int, std::pair<std::string_view, Axis>> by_place;
  for (const StageInfo& stage : AllStages()) {
    for (const TunedForm& form : stage.tuned) {
      by_place[form.place] = {form.text, stage.tuned_axis};
    }
  }
  std::vector<std::pair<std::string_view, Axis>> methods;
  for (const auto& [place, method] : by_place) methods.push_back(method);
  return methods;
}

}  // namespace kvlathe
