// Every stage of the spec grammar and its keys, in one table: the parser, its checks, the resolved
// text and `kvlathe specs` read nothing else.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvlathe {

// In the order in which a resolved spec prints them.
enum class Axis {
  kBasis,      // head_dim -> rank_k, rank_v per layer and KV head
  kRetention,  // positions -> kept entries, per layer and KV head
  kQuantizer,  // 16 bits -> fewer
  kResidual,   // puts back what the quantizer lost
  kPreset,     // a name for a composition; expands before the checks
};
std::string_view AxisName(Axis axis);  // "basis", "retention", ...

// A value of a key: a number, or one of the key's words (`word` points into the table).
struct SpecValue {
  double number = 0;
  std::string_view word;
  friend bool operator==(const SpecValue&, const SpecValue&) = default;
};

struct KeyInfo {
  std::string_view name = {};
  std::string_view doc = {};
  // "" : the key is absent unless given (and on a preset: the default of the stage it goes to).
  std::string_view default_text = {};
  // Numbers from min to max; none are allowed when min > max.
  double min = 1;
  double max = 0;
  bool excludes_min = false;
  bool excludes_max = false;
  int multiple_of = 0;            // 0: any real number
  std::string_view choices = {};  // "a|b": these words or numbers as well
  bool excludes_others = false;   // at most one key of a stage with this mark may be given, and its
                                  // default holds only when none is: how far the stage compresses,
                                  // or the accuracy that decides it
};

// What a preset becomes: a stage and the keys that the preset fixes. Keys that both have and that
// the user gave (or that have a default on the preset) are passed on.
struct ExpandedStage {
  std::string_view stage = {};
  std::vector<std::pair<std::string_view, double>> fixed = {};
};
// The numbers of a preset while it expands, with its defaults.
class PresetKeys {
 public:
  virtual ~PresetKeys() = default;
  virtual double Number(std::string_view key_name) const = 0;
};

struct StageInfo {
  std::string_view name = {};
  Axis axis = Axis::kPreset;
  std::string_view doc = {};
  std::string_view paper = {};
  std::span<const KeyInfo* const> keys = {};
  std::vector<ExpandedStage> (*expand)(const PresetKeys& keys) = nullptr;  // presets only

  const KeyInfo* FindKey(std::string_view key_name) const;
};

// Stages in the order of axes, then presets.
std::span<const StageInfo> AllStages();
const StageInfo* FindStage(std::string_view name);

// The value that `text` (a number or word of the grammar) has for this key, if it is allowed.
std::optional<SpecValue> ParseValue(const KeyInfo& key, std::string_view text);
// "0 <= x < 1", "a multiple of 64 from 64 to 1048576, or prompt", "2, 4 or 8".
std::string AllowedValues(const KeyInfo& key);
// The shortest text that reads back as the same value.
std::string ValueText(const SpecValue& value);

// Every stage, key, default and paper, as text for `kvlathe specs`.
std::string DescribeStages();

}  // namespace kvlathe
