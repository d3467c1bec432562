#include "tuning/method.h"

#include <algorithm>
#include <array>
#include <optional>

namespace kvlathe {
namespace {

// Keys that say how far a stage compresses; a stage has one of them that matters here.
constexpr std::string_view kOpenKeys[] = {"rate", "keep", "size", "n", "bits"};

template <typename F>
std::vector<double> Series(int n, const F& value) {
  std::vector<double> values(n);
  for (int i = 0; i < n; ++i) values[i] = value(i);
  return values;
}

std::vector<double> ValuesOf(const KeyInfo& key) {
  if (key.name == "rate") return Series(96, [](int i) { return i / 100.0; });
  if (key.name == "keep") return Series(50, [](int i) { return (50 - i) / 50.0; });
  if (key.name == "ratio")
    return Series(96, [](int i) { return (105 + 5 * i + i * i / 5) / 100.0; });
  // 65536, 49152, 32768, 24576, ... 64: two to an octave.
  if (key.name == "size") {
    return Series(21, [](int i) { return double((i % 2 == 0 ? 65536 : 49152) >> i / 2); });
  }
  if (key.name == "n") return {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
  std::vector<double> bits;
  for (int b = 16; b > 0; --b) {
    if (ParseValue(key, fmt::format("{}", b)).has_value()) bits.push_back(b);
  }
  return bits;
}

std::vector<const KeyInfo*> OpenKeysOf(const Spec& question, const Stage& stage) {
  std::vector<const KeyInfo*> keys;
  // A ratio is of the whole cache; lathe reaches it by its own bits, which a quantizer would
  // replace. First, because it goes further: of the rates only those that are smaller still are
  // tried then.
  if (stage.name == "lathe" && question.quantizer() == nullptr) {
    keys.push_back(stage.info->FindKey("ratio"));
  }
  for (std::string_view name : kOpenKeys) {
    const KeyInfo* key = stage.info->FindKey(name);
    if (key == nullptr || !key->excludes_others) continue;
    keys.push_back(key);
    break;
  }
  return keys;
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

constexpr std::array<std::pair<std::string_view, Axis>, 13> kDefaultMethods = {{
    {"lathe", Axis::kBasis},
    {"lathe(keys=before)", Axis::kBasis},
    {"fdc", Axis::kBasis},
    {"zack", Axis::kBasis},
    {"palu", Axis::kBasis},
    {"h2o", Axis::kRetention},
    {"tova", Axis::kRetention},
    {"keyformer", Axis::kRetention},
    {"kivi", Axis::kQuantizer},
    {"kcvt", Axis::kQuantizer},
    {"kvquant", Axis::kQuantizer},
    {"gear", Axis::kQuantizer},
    {"int8", Axis::kQuantizer},
}};

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
    if (!stages[s].Has("accuracy")) continue;
    std::vector<std::vector<Ladder>> longer;
    for (const std::vector<Ladder>& ladders : method.alternatives) {
      for (const KeyInfo* key : OpenKeysOf(method.question, stages[s])) {
        longer.push_back(ladders);
        longer.back().push_back({s, key, ValuesOf(*key)});
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

std::span<const std::pair<std::string_view, Axis>> DefaultMethods() { return kDefaultMethods; }

}  // namespace kvlathe
