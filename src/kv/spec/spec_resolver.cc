// Stages as they were typed -> presets expanded -> checked -> defaults filled in.
#include <algorithm>
#include <optional>

#include "kv/spec/given_stages.h"

namespace kvlathe {
namespace {

class GivenPresetKeys : public PresetKeys {
 public:
  explicit GivenPresetKeys(const GivenStage& preset) : preset_(preset) {}
  double Number(std::string_view key_name) const override {
    if (const GivenKey* given = preset_.Find(key_name)) return given->value.number;
    const KeyInfo* key = preset_.info->FindKey(key_name);
    return ParseValue(*key, key->default_text)->number;
  }

 private:
  const GivenStage& preset_;
};

// One stage of a preset: what the preset fixes, else what the user gave, else the preset's default.
GivenStage MakeStage(const GivenStage& preset, const ExpandedStage& expanded) {
  GivenStage stage{FindStage(expanded.stage), preset.offset, {}};
  for (const KeyInfo* key : stage.info->keys) {
    const auto fixed =
        std::ranges::find(expanded.fixed, key->name, &std::pair<std::string_view, double>::first);
    const KeyInfo* preset_key = preset.info->FindKey(key->name);
    if (fixed != expanded.fixed.end()) {
      stage.keys.push_back({key, {fixed->second, {}}, preset.offset});
    } else if (const GivenKey* given = preset.Find(key->name)) {
      stage.keys.push_back({key, given->value, given->offset});
    } else if (preset_key != nullptr && !preset_key->default_text.empty()) {
      stage.keys.push_back({key, *ParseValue(*key, preset_key->default_text), preset.offset});
    }
  }
  return stage;
}

class SpecResolver {
 public:
  SpecResolver(std::string_view text, std::vector<GivenStage> given)
      : text_(text), given_(std::move(given)) {}

  StatusOr<std::vector<Stage>> Resolve(std::optional<double> question) {
    if (question.has_value()) AskForAccuracy(*question);
    ExpandPresets();
    KVL_RETURN_IF_ERROR(CheckAxes());
    KVL_RETURN_IF_ERROR(CheckBits());
    KVL_RETURN_IF_ERROR(CheckPressure());
    KVL_RETURN_IF_ERROR(CheckAlternatives());
    KVL_RETURN_IF_ERROR(CheckOneAccuracy());
    KVL_RETURN_IF_ERROR(ShareSink());
    FillIn();
    KVL_RETURN_IF_ERROR(CheckGroups());
    KVL_RETURN_IF_ERROR(CheckBudgets());
    return std::move(resolved_);
  }

 private:
  template <typename... Args>
  Status ErrorAt(size_t offset, fmt::format_string<Args...> format, Args&&... args) const {
    return SpecErrorAt(text_, offset, format, std::forward<Args>(args)...);
  }

  void AskForAccuracy(double accuracy);
  void ExpandPresets();
  Status CheckAxes() const;
  Status CheckAlternatives() const;
  Status CheckOneAccuracy() const;
  Status ShareSink();
  void FillIn();
  Status CheckGroups() const;
  Status CheckBudgets() const;
  Status CheckBits() const;
  Status CheckPressure() const;

  std::string_view text_;
  std::vector<GivenStage> given_;
  std::vector<Stage> resolved_;
};

void SpecResolver::AskForAccuracy(double accuracy) {
  for (GivenStage& stage : given_) {
    const KeyInfo* key = stage.info->FindKey("accuracy");
    if (key == nullptr || stage.HasAlternative()) continue;
    stage.keys.push_back({key, {accuracy, {}}, stage.offset});
  }
}

// What a preset becomes may hang on what accuracy stands for: then it waits for the answer.
void SpecResolver::ExpandPresets() {
  std::vector<GivenStage> stages;
  for (GivenStage& stage : given_) {
    if (stage.info->axis != Axis::kPreset || stage.Find("accuracy") != nullptr) {
      stages.push_back(std::move(stage));
      continue;
    }
    for (const ExpandedStage& expanded : stage.info->expand(GivenPresetKeys(stage))) {
      stages.push_back(MakeStage(stage, expanded));
    }
  }
  given_ = std::move(stages);
}

// Whether a stage of another axis quantises as well, if no quantizer follows.
bool SplitsBits(const GivenStage& stage) {
  const GivenKey* bits = stage.Find("bits");
  if (stage.info->axis != Axis::kBasis || stage.info->FindKey("bits") == nullptr) return false;
  const bool may_have_ratio = stage.Find("ratio") != nullptr || stage.Find("accuracy") != nullptr;
  return bits == nullptr || bits->value.word == "auto" ? may_have_ratio
                                                       : bits->value.word == "mixed";
}

Status SpecResolver::CheckAxes() const {
  bool has_quantizer = false;
  for (size_t i = 0; i < given_.size(); ++i) {
    const StageInfo& stage = *given_[i].info;
    has_quantizer |=
        stage.axis == Axis::kQuantizer || stage.axis == Axis::kPreset || SplitsBits(given_[i]);
    for (size_t j = 0; j < i; ++j) {
      const StageInfo& other = *given_[j].info;
      if (&other == &stage) {
        return ErrorAt(given_[i].offset, "{} stands in the spec twice", stage.name);
      }
      if (other.axis != stage.axis || stage.axis == Axis::kResidual) continue;
      return ErrorAt(given_[i].offset, "{} and {} are both of the {} axis, which takes one",
                     other.name, stage.name, AxisName(stage.axis));
    }
  }
  for (const GivenStage& stage : given_) {
    if (stage.info->axis != Axis::kResidual || has_quantizer) continue;
    return ErrorAt(stage.offset,
                   "{} repairs a quantizer and there is none; add token, kcvt, kivi, "
                   "kvquant or int8",
                   stage.info->name);
  }
  return OkStatus();
}

Status SpecResolver::CheckAlternatives() const {
  for (const GivenStage& stage : given_) {
    const GivenKey* first = nullptr;
    for (const GivenKey& key : stage.keys) {
      // A word says how to read another key (budget=prompt).
      if (!key.info->excludes_others || !key.value.word.empty()) continue;
      if (first != nullptr) {
        return ErrorAt(std::max(key.offset, first->offset), "{} takes either {} or {}, not both",
                       stage.info->name, first->info->name, key.info->name);
      }
      first = &key;
    }
  }
  return OkStatus();
}

// It is the accuracy of the whole cache.
Status SpecResolver::CheckOneAccuracy() const {
  const GivenKey* first = nullptr;
  for (const GivenStage& stage : given_) {
    const GivenKey* key = stage.Find("accuracy");
    if (key == nullptr) continue;
    if (first != nullptr && first->value != key->value) {
      return ErrorAt(std::max(key->offset, first->offset),
                     "accuracy is {} on one stage and {} on another; the cache has one value",
                     ValueText(first->value), ValueText(key->value));
    }
    first = key;
  }
  return OkStatus();
}

// The sink belongs to the cache, not to a stage: what one stage says holds for all. Presets that
// wait for an answer are left as they are; the answer is parsed again.
Status SpecResolver::ShareSink() {
  std::optional<GivenKey> sink;
  for (const GivenStage& stage : given_) {
    const GivenKey* key = stage.Find("sink");
    if (key == nullptr) continue;
    if (sink && sink->value != key->value) {
      return ErrorAt(std::max(key->offset, sink->offset),
                     "sink is {} on one stage and {} on another; the cache has one value",
                     ValueText(sink->value), ValueText(key->value));
    }
    sink = *key;
  }
  if (!sink) return OkStatus();
  for (GivenStage& stage : given_) {
    const KeyInfo* key = stage.info->FindKey("sink");
    if (stage.info->axis == Axis::kPreset) continue;
    if (key != nullptr && stage.Find("sink") == nullptr) {
      stage.keys.push_back({key, sink->value, sink->offset});
    }
  }
  return OkStatus();
}

void SpecResolver::FillIn() {
  for (const GivenStage& given : given_) {
    Stage stage{given.info->name, given.info->axis, given.info, {}, {}};
    const bool has_alternative = given.HasAlternative();
    for (const KeyInfo* key : given.info->keys) {
      if (const GivenKey* found = given.Find(key->name)) {
        stage.values.emplace_back(key, found->value);
      } else if (!key->default_text.empty() && !(key->excludes_others && has_alternative)) {
        stage.values.emplace_back(key, *ParseValue(*key, key->default_text));
      }
    }
    if (given.info->read != nullptr) stage.options = given.info->read(KeyValues(stage.values));
    resolved_.push_back(std::move(stage));
  }
  std::ranges::sort(resolved_, {}, &Stage::info);  // the table is in the order of axes
}

// Groups of tokens must end where runs and buffers end.
Status SpecResolver::CheckGroups() const {
  for (const Stage& stage : resolved_) {
    const auto* quantizer = std::get_if<QuantizerStage>(&stage.options);
    if (quantizer == nullptr) continue;
    const auto* kivi = std::get_if<KiviOptions>(quantizer);
    const auto* kvarn = std::get_if<KvarnOptions>(quantizer);
    if (kivi == nullptr && kvarn == nullptr) continue;
    const int group = kivi != nullptr ? kivi->group : kvarn->group;
    const RunOptions& runs = RunsOf(*quantizer);
    const auto given = std::ranges::find(given_, stage.info, &GivenStage::info);
    const std::pair<std::string_view, int> lengths[] = {{"run", runs.prompt_run},
                                                        {"buffer", runs.buffer}};
    for (const auto& [key, length] : lengths) {
      if (length % group == 0) continue;
      const GivenKey* where = given->Find("group") ? given->Find("group") : given->Find(key);
      return ErrorAt(where != nullptr ? where->offset : given->offset,
                     "group={} does not divide {}={}", group, key, length);
    }
  }
  return OkStatus();
}

// A budget of the prompt is a share of it: where a method keeps a number of positions unless told
// otherwise, the share must be given, or be what a profile answers.
Status SpecResolver::CheckBudgets() const {
  for (const Stage& stage : resolved_) {
    const auto* retention = std::get_if<RetentionStage>(&stage.options);
    const BudgetOptions* budget = retention != nullptr ? BudgetOf(*retention) : nullptr;
    if (budget == nullptr || !budget->of_prompt || budget->keep > 0) continue;
    const auto given = std::ranges::find(given_, stage.info, &GivenStage::info);
    if (given->Find("accuracy") != nullptr) continue;
    return ErrorAt(given->Find("budget")->offset,
                   "budget=prompt makes keep a share of the prompt, and {} has none by default; "
                   "give keep too",
                   stage.name);
  }
  return OkStatus();
}

// Bits of every channel need their bytes, and no second opinion.
Status SpecResolver::CheckBits() const {
  for (const GivenStage& stage : given_) {
    const GivenKey* bits = stage.info->axis == Axis::kBasis ? stage.Find("bits") : nullptr;
    if (bits == nullptr || bits->value.word != "mixed") continue;
    if (stage.Find("ratio") == nullptr && stage.Find("accuracy") == nullptr) {
      return ErrorAt(bits->offset, "bits=mixed shares out the bytes that ratio leaves; give ratio");
    }
    for (const GivenStage& other : given_) {
      if (other.info->axis != Axis::kQuantizer) continue;
      return ErrorAt(other.offset, "{}(bits=mixed) and {} both choose bits; leave one out",
                     stage.info->name, other.info->name);
    }
  }
  return OkStatus();
}

// The step under pressure is one from a ratio to a higher one.
Status SpecResolver::CheckPressure() const {
  for (const GivenStage& stage : given_) {
    const GivenKey* const pressure = stage.Find("under_pressure");
    if (pressure == nullptr) continue;
    const GivenKey* const ratio = stage.Find("ratio");
    if (ratio == nullptr) {
      return ErrorAt(pressure->offset,
                     "under_pressure is the ratio of what is sealed again, and nothing says the "
                     "first; give ratio");
    }
    if (pressure->value.number > ratio->value.number) continue;
    return ErrorAt(pressure->offset,
                   "under_pressure={} makes nothing smaller than ratio={} does; give more than {}",
                   ValueText(pressure->value), ValueText(ratio->value), ValueText(ratio->value));
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::vector<Stage>> ResolveStages(std::string_view text, std::vector<GivenStage> given,
                                           std::optional<double> question) {
  return SpecResolver(text, std::move(given)).Resolve(question);
}

}  // namespace kvlathe
