// Every method is registered in a table. The row of a method has its keys with defaults and ranges,
// and says how they become typed options, what the method does not go with, how its bases are
// found, how `tune` tries it, and which paper describes it. The parser, the resolved text, `kvlathe
// specs` and `tune` read these rows and nothing else.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kv/spec/options.h"

namespace kvlathe {

// The axes, in the order in which a resolved spec prints them.
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
  // With "" the key is absent unless it is given. On a preset, the default of the stage to which it
  // passes the key holds then.
  std::string_view default_text = {};
  // Numbers from min to max are allowed, and none when min > max.
  double min = 1;
  double max = 0;
  bool excludes_min = false;
  bool excludes_max = false;
  int multiple_of = 0;            // 0: any real number
  std::string_view choices = {};  // "a|b": these words or numbers are allowed as well
  // Marks the keys that say how far the stage compresses, or which accuracy decides that. At most
  // one of them may be given, and their defaults hold only when none is.
  bool excludes_others = false;
};

// A stage that a preset becomes, and the keys that the preset fixes. The preset passes on the keys
// that it shares with the stage if they were given or have a default on the preset.
struct ExpandedStage {
  std::string_view stage = {};
  std::vector<std::pair<std::string_view, double>> fixed = {};
};
// The numbers of a preset's keys while it expands, defaults among them.
class PresetKeys {
 public:
  virtual ~PresetKeys() = default;
  virtual double Number(std::string_view key_name) const = 0;
};

using StageValue = std::pair<const KeyInfo*, SpecValue>;

// The values of one stage by key, for the function that makes its typed options of them.
class KeyValues {
 public:
  explicit KeyValues(std::span<const StageValue> values) : values_(values) {}
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  // The number of a key. It is 0 where the value is a word and where the key is absent.
  double Number(std::string_view key) const;
  int Integer(std::string_view key) const { return static_cast<int>(Number(key)); }
  // Whether the key has this word.
  bool Is(std::string_view key, std::string_view word) const;

 private:
  const SpecValue* Find(std::string_view key) const;
  std::span<const StageValue> values_;
};

// What `tune` may choose for a stage: the values of one key, from the weakest compression to the
// strongest.
struct TuningLadder {
  std::string_view key = {};
  std::vector<double> (*values)(const KeyInfo& key) = nullptr;
  bool without_quantizer = false;  // is tried only where no quantizer follows
};

// A form in which `tune` tries a method unless it is told what to try.
struct TunedForm {
  std::string_view text = {};
  int place = 0;  // in the order in which forms are tried
};

class Spec;
struct BasisMethod;

struct StageInfo {
  std::string_view name = {};
  Axis axis = Axis::kPreset;
  std::string_view doc = {};
  std::string_view paper = {};
  std::span<const KeyInfo* const> keys = {};
  std::vector<ExpandedStage> (*expand)(const PresetKeys& keys) = nullptr;  // presets only
  StageOptions (*read)(const KeyValues& values) = nullptr;                 // not presets
  // Refuses specs in which the method stands beside something that it does not go with. Null if it
  // goes with everything.
  Status (*check)(const Spec& spec) = nullptr;
  // The method by which its bases are found, where they are found before a prompt.
  const BasisMethod* analysis = nullptr;
  // `tune` searches the values of each ladder, and the first one goes furthest. Empty if the method
  // leaves nothing open.
  std::span<const TuningLadder> ladders = {};
  std::span<const TunedForm> tuned = {};
  Axis tuned_axis = axis;  // where `tune` composes it; for a preset, the axis of its main stage

  const KeyInfo* FindKey(std::string_view key_name) const;
};

// All stages in the order of axes, and behind them the presets.
std::span<const StageInfo> AllStages();
const StageInfo* FindStage(std::string_view name);

// The value that `text` (a number or word of the grammar) has for this key, if it is allowed.
std::optional<SpecValue> ParseValue(const KeyInfo& key, std::string_view text);
// What the key takes, in words: "0 <= x < 1", "a multiple of 64 from 64 to 1048576, or prompt",
// "2, 4 or 8".
std::string AllowedValues(const KeyInfo& key);
// The shortest text that reads back as the same value.
std::string ValueText(const SpecValue& value);

// Every stage, key, default and paper, as text for `kvlathe specs`.
std::string DescribeStages();

}  // namespace kvlathe
