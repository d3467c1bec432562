#include "kv/spec/options.h"

namespace kvlathe {

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

}  // namespace kvlathe
