// A spec is one string that says what a cache is, for every verb, the server and the reports.
//
//   spec  := "none" | stage ("+" stage)*
//   stage := name [ "(" key "=" value ("," key "=" value)* ")" ]
//   name, key := [a-z][a-z0-9_-]*      value := number | word      no key twice
//
// A spec has at most one stage per axis, except that the residual axis takes both lowrank and
// sparse; it needs a quantizer. The order of stages has no meaning. Presets expand before the
// checks. spec_table.h has the stages, keys, ranges and defaults.
//
// Keys that hold for the whole cache stand on a stage all the same:
//   sink         stands on every stage of basis, retention and quantizer. Given once it holds for
//                all of them, and given more than once it must be the same.
//   run, buffer  stand on the quantizer, and on lathe where that splits bits.
//   accuracy     takes the place of how far a stage compresses: the stage goes as far as keeps this
//                share of the baseline's accuracy, as a tuned profile found or, for lathe alone, as
//                is predicted. A spec has one value of it and is then a question: no cache can be
//                made of it before an answer takes its place. A preset does not expand with it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "format/keys.h"
#include "kv/spec/spec_table.h"

namespace kvlathe {

// One stage with every default filled in.
struct Stage {
  std::string_view name;
  Axis axis = Axis::kBasis;
  const StageInfo* info = nullptr;
  // The values as text, in the table's order, without those of rate, ratio and accuracy that do not
  // hold.
  std::vector<StageValue> values;
  StageOptions options;  // the same values as types

  std::string ToString() const;

  friend bool operator==(const Stage&, const Stage&) = default;
};

// What the full blocks of a cache become. A spec names one of these, by its quantizer or by its
// basis; the pointers point into the spec.
struct SealNothing {};
struct SealByQuantizer {
  const QuantizerStage* quantizer;
};
// The basis gives channels bits of their own, in place of a quantizer.
struct SealBySplitBits {
  const LatheOptions* lathe;
};
// Each sequence finds the basis of its own rows where its prompt ends (svd-online,
// zack(online=on)); before that rows are whole.
struct SealByOwnBasis {
  double kept_share;     // the share of dimensions that stays; 0: ranks are chosen beforehand
  bool gathers_queries;  // heads keep Q^T Q until they have found their basis
};
using Sealing = std::variant<SealNothing, SealByQuantizer, SealBySplitBits, SealByOwnBasis>;

// What others ask of it.
struct SealingFacts {
  const RunOptions* runs;  // which positions are sealed together, where the spec says so; or null
  bool splits_bits;        // bits are chosen together with ranks
  bool has_classes;        // entries of the prompt have bits by what attends to them
  bool finds_bases;        // the basis depends on the sequence
};
SealingFacts FactsOf(const Sealing& sealing);

class Spec {
 public:
  static constexpr int kMaxTextBytes = 4096;

  Spec() = default;  // none
  // The error is kInvalidArgument with one line that has the 1-based byte position and says what is
  // allowed there, as in
  //   --kv 'fdc(rat=0.5)': position 5: unknown key 'rat'; fdc takes rate, ratio, accuracy, ...
  static StatusOr<Spec> Parse(std::string_view text);
  // Reads a spec that `tune` is to decide. Every stage that could take `accuracy` and says nothing
  // about how far it compresses takes this accuracy, whatever its default.
  static StatusOr<Spec> ParseQuestion(std::string_view text, double accuracy);

  bool is_none() const { return stages_.empty(); }
  // Null where the spec has no such stage.
  const BasisStage* basis() const;
  const RetentionStage* retention() const;
  const QuantizerStage* quantizer() const;
  const LowrankOptions* lowrank() const { return Residual<LowrankOptions>(); }
  const SparseOptions* sparse() const { return Residual<SparseOptions>(); }
  // The options of one method. Null where another method, or none, stands on its axis.
  template <typename Options>
  const Options* basis_as() const {
    return basis() == nullptr ? nullptr : std::get_if<Options>(basis());
  }
  template <typename Options>
  const Options* quantizer_as() const {
    return quantizer() == nullptr ? nullptr : std::get_if<Options>(quantizer());
  }
  // All false where the spec has no retention.
  RetentionFacts retention_facts() const {
    return retention() == nullptr ? RetentionFacts() : FactsOf(*retention());
  }
  Sealing sealing() const;
  const RunOptions* runs() const { return FactsOf(sealing()).runs; }
  // The stage on an axis that takes only one, as it prints. Null if there is none.
  const Stage* stage(Axis axis) const;
  std::string_view NameOf(Axis axis) const {
    return stage(axis) == nullptr ? "" : stage(axis)->name;
  }
  // How many channels the KV heads of a layer may have together that have one map and are one head
  // of the cache; 0: each has its own.
  int joint_channels() const;
  bool joins_heads() const { return joint_channels() > 0; }
  // What lathe stores of keys. kAfterRope where there is no lathe.
  KeyRows key_rows() const;
  // The form of keys that the basis makes. How many KV heads of the model a map joins depends on
  // the model (HeadsPerMap of analysis/bases/lathe.h): the caller says it where it matters.
  Keys keys(int heads_per_map = 1) const;
  const std::vector<Stage>& stages() const { return stages_; }  // in the order of axes

  // First positions kept whole in 16 bits; 0 for none, whose cache has nothing to spare them from.
  int n_sink() const;

  // The target that a profile must answer, if there is one.
  std::optional<double> accuracy() const;

  const std::string& text() const { return text_; }  // as typed: `kv` of the reports
  // Lets the answer to a question show what was typed.
  void set_text(std::string text) { text_ = std::move(text); }
  // The canonical text, with stages in the order of axes and all defaults (`kv_resolved`). It
  // parses back to an equal spec.
  std::string ToString() const;

  // Whether both describe the same cache, however they were typed.
  friend bool operator==(const Spec& a, const Spec& b) { return a.stages_ == b.stages_; }

 private:
  static StatusOr<Spec> ParseWith(std::string_view text, std::optional<double> question);
  template <typename Options>
  const Options* Residual() const {
    for (const Stage& s : stages_) {
      const auto* residual = std::get_if<ResidualStage>(&s.options);
      if (residual == nullptr) continue;
      if (const auto* options = std::get_if<Options>(residual)) return options;
    }
    return nullptr;
  }

  std::string text_ = "none";
  std::vector<Stage> stages_;
};

// Checks that the stages of the spec go together, as the row of each says (StageInfo::check). The
// error is kInvalidArgument, for a question too, and names the stages that do not.
Status CheckSupported(const Spec& spec);

}  // namespace kvlathe
