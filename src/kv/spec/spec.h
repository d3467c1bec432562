// The spec: one string that says what a cache is, for every verb, the server and the reports.
//
//   spec  := "none" | stage ("+" stage)*
//   stage := name [ "(" key "=" value ("," key "=" value)* ")" ]
//   name, key := [a-z][a-z0-9_-]*      value := number | word      no key twice
//
// At most one stage per axis; the residual axis takes lowrank and sparse, and needs a quantizer.
// The order of stages has no meaning. Presets expand before the checks. Stages, keys, ranges and
// defaults: spec_table.h.
//
// Keys that hold for the whole cache stand on a stage all the same:
//   sink         on every stage of basis, retention and quantizer; given more than once it must
//                be the same, and given once it holds for all
//   run, buffer  on the quantizer; on lathe where that splits bits
//   accuracy     in place of how far a stage compresses: what a tuned profile found that keeps this
//                share of the baseline's accuracy. One value per spec. Such a spec is a question;
//                no cache can be made of it before the profile's answer takes its place. A preset
//                that has it does not expand.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kv/spec/spec_table.h"

namespace kvlathe {

// One stage with every default filled in.
struct Stage {
  std::string_view name;
  Axis axis = Axis::kBasis;
  const StageInfo* info = nullptr;
  // As text, in the table's order; without those of rate | ratio | accuracy that do not hold.
  std::vector<StageValue> values;
  StageOptions options;  // the same as types

  std::string ToString() const;

  friend bool operator==(const Stage&, const Stage&) = default;
};

class Spec {
 public:
  static constexpr int kMaxTextBytes = 4096;

  Spec() = default;  // none
  // kInvalidArgument, one line with the 1-based byte position and what is allowed there, as in
  //   --kv 'fdc(rat=0.5)': position 5: unknown key 'rat'; fdc takes rate, ratio, accuracy, ...
  static StatusOr<Spec> Parse(std::string_view text);
  // The same, but every stage that could take `accuracy` and says nothing about how far it
  // compresses takes it, whatever its default: what `tune` is to decide.
  static StatusOr<Spec> ParseQuestion(std::string_view text, double accuracy);

  bool is_none() const { return stages_.empty(); }
  // Null where the spec has no such stage.
  const BasisStage* basis() const;
  const RetentionStage* retention() const;
  const QuantizerStage* quantizer() const;
  const LowrankOptions* lowrank() const { return Residual<LowrankOptions>(); }
  const SparseOptions* sparse() const { return Residual<SparseOptions>(); }
  // The options of one method, where it is the one of its axis.
  template <typename Options>
  const Options* basis_as() const {
    return basis() == nullptr ? nullptr : std::get_if<Options>(basis());
  }
  template <typename Options>
  const Options* retention_as() const {
    return retention() == nullptr ? nullptr : std::get_if<Options>(retention());
  }
  template <typename Options>
  const Options* quantizer_as() const {
    return quantizer() == nullptr ? nullptr : std::get_if<Options>(quantizer());
  }
  // What is sealed together: of the quantizer, or of a basis that splits bits. Null without either.
  const RunOptions* runs() const;
  // The stage of an axis that takes one, as it prints; null if there is none.
  const Stage* stage(Axis axis) const;
  std::string_view NameOf(Axis axis) const {
    return stage(axis) == nullptr ? "" : stage(axis)->name;
  }
  // Whether the basis gives channels bits of their own, in place of a quantizer.
  bool splits_bits() const;
  // Whether keys are stored as latents from before RoPE, and turn when they are read.
  bool has_latent_keys() const;
  // Whether each sequence finds the basis of its own rows where its prompt ends (svd-online,
  // zack(online=on)); before that rows are whole.
  bool finds_basis_online() const;
  const std::vector<Stage>& stages() const { return stages_; }  // in the order of axes

  // First positions kept whole in 16 bits; 0 for none, whose cache has nothing to spare them from.
  int n_sink() const;

  // The target that a profile must answer, if there is one.
  std::optional<double> accuracy() const;

  const std::string& text() const { return text_; }  // as typed: `kv` of the reports
  // The answer to a question shows what was typed.
  void set_text(std::string text) { text_ = std::move(text); }
  // Canonical: stages in the order of axes with all defaults (`kv_resolved`). Parses back to an
  // equal spec.
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

// Whether the stages of the spec run together, as the row of each says (StageInfo::check):
// kInvalidArgument, naming those that do not, and for a question.
Status CheckSupported(const Spec& spec);

}  // namespace kvlathe
