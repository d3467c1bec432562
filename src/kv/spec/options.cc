#include "kv/spec/options.h"

namespace kvlathe {
namespace {

// Of methods that drop entries by votes.
constexpr RetentionFacts kVotingFacts = {
    .moves_rows = true, .acts_on_later = true, .differs_by_head = true, .ends_prompt_as_run = true};

RetentionFacts OwnFactsOf(const H2oOptions& /*h2o*/) { return kVotingFacts; }
RetentionFacts OwnFactsOf(const MasOptions& /*mas*/) { return kVotingFacts; }
RetentionFacts OwnFactsOf(const KeyformerOptions& /*keyformer*/) { return kVotingFacts; }
RetentionFacts OwnFactsOf(const TovaOptions& tova) {
  RetentionFacts facts = kVotingFacts;
  facts.differs_by_head = !tova.shares_heads;
  return facts;
}
RetentionFacts OwnFactsOf(const SnapkvOptions& /*snapkv*/) {
  RetentionFacts facts = kVotingFacts;
  facts.acts_on_later = false;
  return facts;
}
RetentionFacts OwnFactsOf(const KvzipOptions& kvzip) {
  RetentionFacts facts = OwnFactsOf(SnapkvOptions());
  facts.counts_by_head = kvzip.joins_heads;
  return facts;
}
// Whole blocks go once all of their entries have left the window; the others stay where they are.
RetentionFacts OwnFactsOf(const WindowOptions& window) {
  return {.acts_on_later = true, .window = window.size};
}
RetentionFacts OwnFactsOf(const PoolOptions& /*pool*/) {
  return {.moves_rows = true, .merges = true, .acts_on_later = true};
}
RetentionFacts OwnFactsOf(const DmcOptions& /*dmc*/) {
  return {.moves_rows = true,
          .merges = true,
          .acts_on_later = true,
          .differs_by_head = true,
          .counts_by_head = true,
          .ends_prompt_as_run = true};
}
RetentionFacts OwnFactsOf(const DmsOptions& /*dms*/) {
  return {.moves_rows = true,
          .acts_on_later = true,
          .differs_by_head = true,
          .model_decides = true,
          .counts_by_head = true,
          .ends_prompt_as_run = true};
}

}  // namespace

RetentionFacts FactsOf(const RetentionStage& retention) {
  return std::visit([](const auto& options) { return OwnFactsOf(options); }, retention);
}

const RankOptions* RanksOf(const BasisStage& basis) {
  return std::visit(
      [](const auto& options) -> const RankOptions* {
        if constexpr (requires { options.ranks; }) return &options.ranks;
        return nullptr;
      },
      basis);
}

bool IsResident(const BasisStage& basis) {
  return std::visit(
      [](const auto& options) {
        if constexpr (requires { options.is_resident; }) return options.is_resident;
        return false;
      },
      basis);
}

const BudgetOptions* BudgetOf(const RetentionStage& retention) {
  return std::visit(
      [](const auto& options) -> const BudgetOptions* {
        if constexpr (requires { options.budget; }) return &options.budget;
        return nullptr;
      },
      retention);
}

const RunOptions& RunsOf(const QuantizerStage& quantizer) {
  return std::visit([](const auto& options) -> const RunOptions& { return options.runs; },
                    quantizer);
}

bool MixesChannels(const QuantizerStage& quantizer) {
  return std::visit(
      [](const auto& options) {
        if constexpr (requires { options.mixes_channels; }) return options.mixes_channels;
        return false;
      },
      quantizer);
}

MixingRule MixingRuleOf(const QuantizerStage& quantizer) {
  return std::visit(
      [](const auto& options) {
        if constexpr (requires { options.mixing_rule; }) return options.mixing_rule;
        return MixingRule::kWhole;
      },
      quantizer);
}

}  // namespace kvlathe
