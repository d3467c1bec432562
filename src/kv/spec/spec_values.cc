// Values of keys: reading, checking, printing; and the description of the whole table.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "kv/spec/spec_table.h"

namespace kvlathe {
namespace {

// The parts of "a|b|c".
std::vector<std::string_view> SplitChoices(std::string_view choices) {
  std::vector<std::string_view> parts;
  while (!choices.empty()) {
    const size_t bar = choices.find('|');
    parts.push_back(choices.substr(0, bar));
    choices.remove_prefix(bar == std::string_view::npos ? choices.size() : bar + 1);
  }
  return parts;
}

bool IsNumber(std::string_view text) { return text[0] < 'a' || text[0] > 'z'; }

std::optional<double> ParseNumber(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(value)) return std::nullopt;
  return value == 0 ? 0.0 : value;  // -0 is 0
}

bool IsInRange(const KeyInfo& key, double x) {
  if (!(x >= key.min && x <= key.max)) return false;
  if ((key.excludes_min && x == key.min) || (key.excludes_max && x == key.max)) return false;
  return key.multiple_of == 0 || std::fmod(x, key.multiple_of) == 0;
}

}  // namespace

std::string_view AxisName(Axis axis) {
  static constexpr std::array<std::string_view, 5> kNames = {"basis", "retention", "quantizer",
                                                             "residual", "preset"};
  return kNames[static_cast<size_t>(axis)];
}

std::optional<SpecValue> ParseValue(const KeyInfo& key, std::string_view text) {
  if (text.empty()) return std::nullopt;
  std::optional<double> number;
  if (IsNumber(text)) {
    number = ParseNumber(text);
    if (!number) return std::nullopt;
    if (IsInRange(key, *number)) return SpecValue{*number, {}};
  }
  for (std::string_view choice : SplitChoices(key.choices)) {
    if (IsNumber(choice)) {
      if (number && ParseNumber(choice) == number) return SpecValue{*number, {}};
    } else if (choice == text) {
      return SpecValue{0, choice};
    }
  }
  return std::nullopt;
}

std::string AllowedValues(const KeyInfo& key) {
  std::string text;
  if (key.min <= key.max && key.multiple_of == 0) {
    text = fmt::format("{} {} x {} {}", key.min,
                       key.excludes_min ? "<" : "<=", key.excludes_max ? "<" : "<=", key.max);
  } else if (key.min <= key.max) {
    text = key.multiple_of == 1 ? "an integer" : fmt::format("a multiple of {}", key.multiple_of);
    text += fmt::format(" from {:.0f} to {:.0f}", key.min, key.max);
  }
  const std::vector<std::string_view> choices = SplitChoices(key.choices);
  for (size_t i = 0; i < choices.size(); ++i) {
    if (!text.empty()) text += i + 1 == choices.size() ? " or " : ", ";
    text += choices[i];
  }
  return text;
}

std::string ValueText(const SpecValue& value) {
  return value.word.empty() ? fmt::format("{}", value.number) : std::string(value.word);
}

std::string DescribeStages() {
  std::string text =
      "A spec is `none`, or stages joined by +, at most one per axis (the residual axis takes\n"
      "lowrank and sparse, and needs a quantizer). Of rate, ratio, keep, budget, size, n or bits "
      "and\n"
      "accuracy a stage takes one (presets with rate take bits beside it). Keys stand with their\n"
      "defaults; without one a key is absent unless given, or (on a preset) has the default of "
      "its\n"
      "stage.\n";
  for (const StageInfo& stage : AllStages()) {
    text += fmt::format("\n{} [{}]: {}\n    {}\n", stage.name, AxisName(stage.axis), stage.doc,
                        stage.paper);
    for (const KeyInfo* key : stage.keys) {
      const std::string setting = fmt::format("{}={}", key->name, key->default_text);
      text += fmt::format("    {:<15} {} ({})\n", setting, key->doc, AllowedValues(*key));
    }
  }
  return text;
}

}  // namespace kvlathe
