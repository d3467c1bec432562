#include "kvlathe/manual/spec_candidates.h"

#include <fmt/format.h>

#include <algorithm>

#include "kv/spec/spec_table.h"

namespace kvlathe {
namespace {

std::vector<std::string_view> SplitAt(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t end; (end = text.find(separator)) != std::string_view::npos;) {
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.push_back(text);
  return parts;
}

// The name of a stage and what stands in its parentheses.
struct TypedStage {
  explicit TypedStage(std::string_view text) {
    const size_t open = text.find('(');
    name = text.substr(0, open);
    has_keys = open != std::string_view::npos;
    if (!has_keys) return;
    text.remove_prefix(open + 1);
    is_closed = text.ends_with(')');
    if (is_closed) text.remove_suffix(1);
    settings = SplitAt(text, ',');
  }
  std::string_view name;
  std::vector<std::string_view> settings;
  bool has_keys = false;
  bool is_closed = false;
};

std::string_view KeyOf(std::string_view setting) { return setting.substr(0, setting.find('=')); }

// The keys of a stage that may stand behind those of `settings`.
std::vector<const KeyInfo*> OpenKeys(const StageInfo& stage,
                                     const std::vector<std::string_view>& settings) {
  std::vector<const KeyInfo*> open;
  const bool has_exclusive = std::ranges::any_of(settings, [&](std::string_view setting) {
    const KeyInfo* key = stage.FindKey(KeyOf(setting));
    return key != nullptr && key->excludes_others;
  });
  for (const KeyInfo* key : stage.keys) {
    const bool is_given = std::ranges::any_of(
        settings, [&](std::string_view setting) { return KeyOf(setting) == key->name; });
    if (!is_given && !(has_exclusive && key->excludes_others)) open.push_back(key);
  }
  return open;
}

// `before` and each key whose name begins with `begun`.
void AddKeys(const std::vector<const KeyInfo*>& keys, std::string_view before,
             std::string_view begun, std::vector<Candidate>* candidates) {
  for (const KeyInfo* key : keys) {
    if (!key->name.starts_with(begun)) continue;
    candidates->push_back({fmt::format("{}{}=", before, key->name),
                           fmt::format("{} ({})", key->doc, AllowedValues(*key))});
  }
}

// `before` and what the key may be that begins with `begun`: its words, and its default.
void AddValues(const KeyInfo& key, std::string_view before, std::string_view begun, bool more_keys,
               std::vector<Candidate>* candidates) {
  if (ParseValue(key, begun)) {
    candidates->push_back({fmt::format("{}{})", before, begun), std::string(key.doc)});
    if (more_keys) candidates->push_back({fmt::format("{}{},", before, begun), "and another key"});
  }
  std::vector<std::string_view> values;
  if (!key.choices.empty()) values = SplitAt(key.choices, '|');
  if (!key.default_text.empty() && std::ranges::count(values, key.default_text) == 0) {
    values.push_back(key.default_text);
  }
  for (const std::string_view value : values) {
    if (!value.starts_with(begun) || value == begun) continue;
    candidates->push_back({fmt::format("{}{})", before, value),
                           value == key.default_text ? "the default" : std::string(key.doc)});
  }
}

// Whether a stage may stand beside those before it: the axes are free, but for the residual axis,
// which takes two stages, and presets, which are several.
bool IsFree(const StageInfo& stage, const std::vector<std::string_view>& stages_before) {
  return std::ranges::none_of(stages_before, [&](std::string_view text) {
    const StageInfo* other = FindStage(TypedStage(text).name);
    if (other == nullptr) return false;
    if (stage.axis == Axis::kResidual) return other->name == stage.name;
    return stage.axis == other->axis;
  });
}

// `before` and the free stages that begin with `begun`; of the only one, or the one that is typed
// out, its keys too.
void AddStages(const std::vector<std::string_view>& stages_before, std::string_view before,
               std::string_view begun, std::vector<Candidate>* candidates) {
  const StageInfo* chosen = nullptr;
  size_t n_found = 0;
  for (const StageInfo& stage : AllStages()) {
    if (!stage.name.starts_with(begun) || !IsFree(stage, stages_before)) continue;
    candidates->push_back({fmt::format("{}{}", before, stage.name), std::string(stage.doc)});
    if (++n_found == 1 || stage.name == begun) chosen = &stage;
  }
  if (chosen == nullptr || (n_found > 1 && chosen->name != begun)) return;
  AddKeys(OpenKeys(*chosen, {}), fmt::format("{}{}(", before, chosen->name), {}, candidates);
}

}  // namespace

std::vector<Candidate> SpecCandidates(std::string_view text) {
  std::vector<Candidate> candidates;
  std::vector<std::string_view> stages = SplitAt(text, '+');
  const std::string_view last = stages.back();
  stages.pop_back();
  const std::string_view before = text.substr(0, text.size() - last.size());
  const TypedStage typed(last);
  if (!typed.has_keys) {
    if (stages.empty() && std::string_view("none").starts_with(last)) {
      candidates.push_back({"none", "all rows in 16 bits"});
    }
    AddStages(stages, before, last, &candidates);
    return candidates;
  }
  const StageInfo* stage = FindStage(typed.name);
  if (stage == nullptr) return candidates;
  if (typed.is_closed) {
    candidates.push_back({std::string(text), "this cache"});
    stages.push_back(last);
    AddStages(stages, fmt::format("{}+", text), {}, &candidates);
    return candidates;
  }
  const std::string_view setting = typed.settings.back();
  const std::string_view before_setting = text.substr(0, text.size() - setting.size());
  const size_t equals = setting.find('=');
  if (equals == std::string_view::npos) {
    const std::vector<std::string_view> given(typed.settings.begin(), typed.settings.end() - 1);
    AddKeys(OpenKeys(*stage, given), before_setting, setting, &candidates);
  } else if (const KeyInfo* key = stage->FindKey(setting.substr(0, equals))) {
    AddValues(*key, fmt::format("{}{}", before_setting, setting.substr(0, equals + 1)),
              setting.substr(equals + 1), !OpenKeys(*stage, typed.settings).empty(), &candidates);
  }
  return candidates;
}

}  // namespace kvlathe
