// Text -> stages as given -> presets expanded -> checked -> defaults filled in.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "kv/spec/spec.h"

namespace kvlathe {
namespace {

struct GivenKey {
  const KeyInfo* info;
  SpecValue value;
  size_t offset;  // of the key in the text
};

struct GivenStage {
  const StageInfo* info;
  size_t offset;  // of the name in the text; of the preset that it came from
  std::vector<GivenKey> keys;

  const GivenKey* Find(std::string_view key_name) const {
    const auto it =
        std::ranges::find_if(keys, [&](const GivenKey& key) { return key.info->name == key_name; });
    return it == keys.end() ? nullptr : &*it;
  }
  // Whether it says how far it compresses, or asks. A word (budget=prompt) says how to read another
  // key.
  bool HasAlternative() const {
    return std::ranges::any_of(keys, [](const GivenKey& key) {
      return key.info->excludes_others && key.value.word.empty();
    });
  }
};

bool IsLetter(char c) { return c >= 'a' && c <= 'z'; }
bool IsNameCharacter(char c) {
  return IsLetter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-';
}
bool IsValueCharacter(char c) { return IsNameCharacter(c) || c == '.' || c == '+'; }

// Printable and short, whatever the input was.
std::string Quote(std::string_view text) {
  constexpr size_t kMaxBytes = 120;
  std::string quoted = "'";
  for (char c : text.substr(0, kMaxBytes)) {
    if (c >= ' ' && c < 127) {
      quoted += c;
    } else {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return quoted + (text.size() > kMaxBytes ? "...'" : "'");
}

std::string StageNames() {
  std::string names;
  for (const StageInfo& stage : AllStages()) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", stage.name);
  }
  return names;
}

std::string KeyNames(const StageInfo& stage) {
  std::string names;
  for (const KeyInfo* key : stage.keys) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", key->name);
  }
  return names;
}

class SpecParser {
 public:
  SpecParser(std::string_view text, std::optional<double> question)
      : text_(text), question_(question) {}

  StatusOr<std::vector<Stage>> Parse() {
    if (text_ == "none") return std::vector<Stage>();
    KVL_RETURN_IF_ERROR(ParseText());
    if (question_.has_value()) AskForAccuracy(*question_);
    ExpandPresets();
    KVL_RETURN_IF_ERROR(CheckAxes());
    KVL_RETURN_IF_ERROR(CheckBits());
    KVL_RETURN_IF_ERROR(CheckAlternatives());
    KVL_RETURN_IF_ERROR(CheckOneAccuracy());
    KVL_RETURN_IF_ERROR(ShareSink());
    Resolve();
    KVL_RETURN_IF_ERROR(CheckGroups());
    return std::move(resolved_);
  }

 private:
  template <typename... Args>
  Status ErrorAt(size_t offset, fmt::format_string<Args...> format, Args&&... args) const {
    return Error(StatusCode::kInvalidArgument, "--kv {}: position {}: {}", Quote(text_), offset + 1,
                 fmt::format(format, std::forward<Args>(args)...));
  }

  bool AtEnd() const { return pos_ == text_.size(); }
  bool Accept(char c) {
    if (AtEnd() || text_[pos_] != c) return false;
    ++pos_;
    return true;
  }
  // What stands here, for "expected ..., not ...".
  std::string Here() const { return AtEnd() ? "the end" : Quote(text_.substr(pos_, 1)); }
  std::string_view TakeWhile(bool (*is_wanted)(char)) {
    const size_t begin = pos_;
    while (!AtEnd() && is_wanted(text_[pos_])) ++pos_;
    return text_.substr(begin, pos_ - begin);
  }

  Status ParseText();
  Status ParseStage();
  Status ParseKeys(GivenStage* stage);
  Status ParseKey(GivenStage* stage);
  void AskForAccuracy(double accuracy);
  void ExpandPresets();
  Status CheckAxes() const;
  Status CheckAlternatives() const;
  Status CheckOneAccuracy() const;
  Status ShareSink();
  void Resolve();
  Status CheckGroups() const;
  Status CheckBits() const;

  std::string_view text_;
  std::optional<double> question_;
  size_t pos_ = 0;
  std::vector<GivenStage> given_;
  std::vector<Stage> resolved_;
};

Status SpecParser::ParseText() {
  if (text_.size() > Spec::kMaxTextBytes) {
    return ErrorAt(Spec::kMaxTextBytes, "a spec has at most {} bytes", Spec::kMaxTextBytes);
  }
  do {
    KVL_RETURN_IF_ERROR(ParseStage());
  } while (Accept('+'));
  if (AtEnd()) return OkStatus();
  const bool has_keys = text_[pos_ - 1] == ')';
  return ErrorAt(pos_, "expected {}'+' or the end, not {}", has_keys ? "" : "'(', ", Here());
}

Status SpecParser::ParseStage() {
  const size_t offset = pos_;
  if (AtEnd() || !IsLetter(text_[pos_])) {
    return ErrorAt(offset, "expected a stage, not {}; none, or stages of {}", Here(), StageNames());
  }
  const std::string_view name = TakeWhile(IsNameCharacter);
  if (name == "none") return ErrorAt(offset, "none stands alone, without keys or other stages");
  const StageInfo* info = FindStage(name);
  if (info == nullptr) {
    return ErrorAt(offset, "unknown stage {}; none, or stages of {}", Quote(name), StageNames());
  }
  GivenStage stage{info, offset, {}};
  if (Accept('(')) KVL_RETURN_IF_ERROR(ParseKeys(&stage));
  given_.push_back(std::move(stage));
  return OkStatus();
}

Status SpecParser::ParseKeys(GivenStage* stage) {
  do {
    KVL_RETURN_IF_ERROR(ParseKey(stage));
  } while (Accept(','));
  if (Accept(')')) return OkStatus();
  return ErrorAt(pos_, "expected ',' or ')', not {}", Here());
}

Status SpecParser::ParseKey(GivenStage* stage) {
  const StageInfo& info = *stage->info;
  const size_t key_offset = pos_;
  if (AtEnd() || !IsLetter(text_[pos_])) {
    return ErrorAt(pos_, "expected a key, not {}; {} takes {}", Here(), info.name, KeyNames(info));
  }
  const std::string_view name = TakeWhile(IsNameCharacter);
  const KeyInfo* key = info.FindKey(name);
  if (key == nullptr) {
    return ErrorAt(key_offset, "unknown key {}; {} takes {}", Quote(name), info.name,
                   KeyNames(info));
  }
  if (stage->Find(name) != nullptr) return ErrorAt(key_offset, "key '{}' given twice", name);
  if (!Accept('=')) return ErrorAt(pos_, "expected '=', not {}", Here());
  const size_t value_offset = pos_;
  const std::string_view text = TakeWhile(IsValueCharacter);
  if (text.empty()) {
    return ErrorAt(pos_, "expected a value, not {}; {} is {}", Here(), name, AllowedValues(*key));
  }
  const std::optional<SpecValue> value = ParseValue(*key, text);
  if (!value) {
    return ErrorAt(value_offset, "{} is not allowed; {} is {}", Quote(text), name,
                   AllowedValues(*key));
  }
  stage->keys.push_back({key, *value, key_offset});
  return OkStatus();
}

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

void SpecParser::AskForAccuracy(double accuracy) {
  for (GivenStage& stage : given_) {
    const KeyInfo* key = stage.info->FindKey("accuracy");
    if (key == nullptr || stage.HasAlternative()) continue;
    stage.keys.push_back({key, {accuracy, {}}, stage.offset});
  }
}

// What a preset becomes may hang on what accuracy stands for: then it waits for the answer.
void SpecParser::ExpandPresets() {
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

Status SpecParser::CheckAxes() const {
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

Status SpecParser::CheckAlternatives() const {
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
Status SpecParser::CheckOneAccuracy() const {
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
Status SpecParser::ShareSink() {
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

void SpecParser::Resolve() {
  for (const GivenStage& given : given_) {
    Stage stage{given.info->name, given.info->axis, given.info, {}};
    const bool has_alternative = given.HasAlternative();
    for (const KeyInfo* key : given.info->keys) {
      if (const GivenKey* found = given.Find(key->name)) {
        stage.values.emplace_back(key, found->value);
      } else if (!key->default_text.empty() && !(key->excludes_others && has_alternative)) {
        stage.values.emplace_back(key, *ParseValue(*key, key->default_text));
      }
    }
    resolved_.push_back(std::move(stage));
  }
  std::ranges::sort(resolved_, {}, &Stage::info);  // the table is in the order of axes
}

// Groups of tokens must end where runs and buffers end.
Status SpecParser::CheckGroups() const {
  for (const Stage& stage : resolved_) {
    if (stage.name != "kivi") continue;
    const auto given = std::ranges::find(given_, stage.info, &GivenStage::info);
    for (std::string_view key : {"run", "buffer"}) {
      if (std::fmod(stage.Number(key), stage.Number("group")) == 0) continue;
      const GivenKey* where = given->Find("group") ? given->Find("group") : given->Find(key);
      return ErrorAt(where != nullptr ? where->offset : given->offset,
                     "group={} does not divide {}={}", stage.Integer("group"), key,
                     stage.Integer(key));
    }
  }
  return OkStatus();
}

// Bits of every channel need their bytes, and no second opinion.
Status SpecParser::CheckBits() const {
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

}  // namespace

StatusOr<Spec> Spec::Parse(std::string_view text) {
  Spec spec;
  KVL_ASSIGN_OR_RETURN(spec.stages_, SpecParser(text, std::nullopt).Parse());
  spec.text_ = std::string(text);
  return spec;
}

StatusOr<Spec> Spec::ParseQuestion(std::string_view text, double accuracy) {
  Spec spec;
  KVL_ASSIGN_OR_RETURN(spec.stages_, SpecParser(text, accuracy).Parse());
  spec.text_ = std::string(text);
  return spec;
}

}  // namespace kvlathe
