#include "drawn_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace kvlathe {
namespace {

std::string DrawValue(const KeyInfo& key, Random* random) {
  const size_t n_choices = key.choices.empty() ? 0 : 1 + std::ranges::count(key.choices, '|');
  const bool has_range = key.min <= key.max;
  uint64_t draw = random->Below(n_choices + (has_range ? 2 : 0));
  if (draw < n_choices) {
    std::string_view rest = key.choices;
    while (draw-- > 0) rest.remove_prefix(rest.find('|') + 1);
    return std::string(rest.substr(0, rest.find('|')));
  }
  // Most draws are small: ranges reach far beyond what a small model can tell apart.
  double x = random->Uniform();
  if (random->Below(4) != 0) x = std::pow(x, 6);
  x = key.min + x * (key.max - key.min);
  if (key.multiple_of == 0) return fmt::format("{:.3f}", x);
  const auto step = static_cast<int64_t>(key.multiple_of);
  const auto least = static_cast<int64_t>(key.min);
  return fmt::format("{}", std::max(least, static_cast<int64_t>(x) / step * step));
}

DrawnStage DrawStage(const StageInfo& info, Random* random) {
  DrawnStage stage{&info, {}};
  bool has_alternative = false;
  for (const KeyInfo* key : info.keys) {
    if (key->name == "accuracy" || random->Below(3) != 0) continue;
    std::string value = DrawValue(*key, random);
    const std::optional<SpecValue> parsed = ParseValue(*key, value);
    if (!parsed.has_value()) continue;  // a bound that is excluded
    // A word beside a number of the same stage, such as budget=prompt, is no alternative to it.
    const bool is_alternative = key->excludes_others && parsed->word.empty();
    if (is_alternative && std::exchange(has_alternative, true)) continue;
    stage.values.emplace_back(key->name, std::move(value));
  }
  return stage;
}

const StageInfo& DrawStageOf(Axis axis, Random* random) {
  std::vector<const StageInfo*> stages;
  for (const StageInfo& stage : AllStages()) {
    if (stage.axis == axis) stages.push_back(&stage);
  }
  return *stages[random->Below(stages.size())];
}

}  // namespace

std::string DrawnSpec::ToString() const {
  std::string text;
  for (const DrawnStage& stage : stages) {
    text += fmt::format("{}{}", text.empty() ? "" : "+", stage.info->name);
    char separator = '(';
    for (const auto& [key, value] : stage.values) {
      text += fmt::format("{}{}={}", separator, key, value);
      separator = ',';
    }
    if (separator == ',') text += ')';
  }
  return text.empty() ? "none" : text;
}

DrawnSpec DrawSpec(Random* random) {
  DrawnSpec spec;
  const bool has_preset = random->Below(6) == 0;
  const auto add = [&](Axis axis) {
    spec.stages.push_back(DrawStage(DrawStageOf(axis, random), random));
  };
  if (has_preset) add(Axis::kPreset);
  if (random->Below(has_preset ? 4 : 2) == 0) add(Axis::kBasis);
  if (random->Below(has_preset ? 4 : 2) == 0) add(Axis::kRetention);
  if (!has_preset && random->Below(3) != 0) add(Axis::kQuantizer);
  // Of a quantizer, of a basis that splits bits, or of nothing, which the parser refuses.
  while (!spec.stages.empty() && random->Below(3) == 0) add(Axis::kResidual);
  return spec;
}

DrawnSpec Shrink(DrawnSpec spec, const std::function<bool(const std::string& text)>& fails) {
  for (bool is_smaller = true; is_smaller;) {
    is_smaller = false;
    const auto accept = [&](DrawnSpec candidate) {
      if (!fails(candidate.ToString())) return false;
      spec = std::move(candidate);
      is_smaller = true;
      return true;
    };
    for (size_t s = 0; s < spec.stages.size();) {
      DrawnSpec candidate = spec;
      candidate.stages.erase(candidate.stages.begin() + static_cast<ptrdiff_t>(s));
      if (!accept(std::move(candidate))) ++s;
    }
    for (size_t s = 0; s < spec.stages.size(); ++s) {
      for (size_t k = 0; k < spec.stages[s].values.size();) {
        DrawnSpec candidate = spec;
        auto& values = candidate.stages[s].values;
        values.erase(values.begin() + static_cast<ptrdiff_t>(k));
        if (!accept(std::move(candidate))) ++k;
      }
    }
  }
  return spec;
}

}  // namespace kvlathe
