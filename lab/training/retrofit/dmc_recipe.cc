#include "training/retrofit/dmc_recipe.h"

#include <algorithm>
#include <cmath>

#include "training/retrofit/object_reader.h"

namespace kvlathe {

int64_t DmcRecipe::n_steps(DmcStage stage) const {
  switch (stage) {
    case DmcStage::kZeroOut:
      return zero_out_steps;
    case DmcStage::kRamp:
      return static_cast<int64_t>(std::ceil((compression - 1) * static_cast<double>(ramp_steps)));
    case DmcStage::kSolidify:
      return solidify_steps;
  }
  return 0;
}

double DmcRecipe::TargetAt(DmcStage stage, int64_t step) const {
  if (stage == DmcStage::kZeroOut) return 1;
  if (stage == DmcStage::kSolidify || is_immediate) return compression;
  return std::min(compression, 1 + static_cast<double>(step + 1) / static_cast<double>(ramp_steps));
}

double DmcRecipe::ChannelScaleAt(DmcStage stage, int64_t step) const {
  if (stage != DmcStage::kZeroOut) return 0;
  const auto n = static_cast<double>(zero_out_steps);
  return std::max(0.0, 1 - static_cast<double>(step + 1) / n);
}

std::string NameOf(DmcStage stage) {
  switch (stage) {
    case DmcStage::kZeroOut:
      return "zero-out";
    case DmcStage::kRamp:
      return "ramp";
    case DmcStage::kSolidify:
      return "solidify";
  }
  return "";
}

StatusOr<DmcRecipe> ParseDmcRecipe(const nlohmann::json& json, const std::string& where) {
  DmcRecipe recipe;
  ObjectReader reader(json, where);
  std::string channel = "last", hinge = "global";
  reader.Text("channel", &channel);
  if (channel != "first" && channel != "last") reader.Fail("channel", "first or last");
  recipe.config = DmcConfig{.is_last = channel != "first"};
  recipe.config.zeroes_after_rope = recipe.config.is_last;
  double offset = 5, epsilon = recipe.config.is_last ? 0.0078125 : 0;
  reader.Number("offset", -100, 100, &offset);
  double weight_offset = recipe.config.is_last ? offset : 0;
  reader.Number("weight_offset", -100, 100, &weight_offset);
  reader.Number("epsilon", 0, 1, &epsilon);
  reader.Flag("zero_after_rope", &recipe.config.zeroes_after_rope);
  recipe.config.offset = static_cast<float>(offset);
  recipe.config.weight_offset = static_cast<float>(weight_offset);
  recipe.config.epsilon = static_cast<float>(epsilon);
  reader.Text("hinge", &hinge);
  if (hinge == "layer") recipe.hinge = DmcHinge::kLayer;
  if (hinge == "sequence") recipe.hinge = DmcHinge::kSequence;
  if (hinge != "global" && hinge != "layer" && hinge != "sequence") {
    reader.Fail("hinge", "global, layer or sequence");
  }
  reader.Number("hinge_weight", 1e-3, 1e6, &recipe.hinge_weight);
  reader.Number("hinge_growth", 0, 1e3, &recipe.hinge_growth);
  reader.Flag("shared_decisions", &recipe.variant.shares_decisions);
  reader.Flag("uniform_weights", &recipe.variant.uniform_weights);
  reader.Flag("consistent", &recipe.is_consistent);
  reader.Flag("immediate", &recipe.is_immediate);
  reader.Number("deciding_rate", 0, 1000, &recipe.deciding_rate);
  reader.Number("temperature", 1e-3, 100, &recipe.temperature);
  reader.Integer("window", 1, 256, &recipe.window);
  reader.Number("compression", 1.01, 1000, &recipe.compression);
  if (const nlohmann::json* list = reader.Array("save_at")) {
    for (const nlohmann::json& cr : *list) {
      const bool fits = cr.is_number() && cr.get<double>() > 1 && cr.get<double>() <= 1000;
      if (!fits) {
        reader.Fail("save_at", "a list of numbers above 1");
        break;
      }
      recipe.save_at.push_back(cr.get<double>());
    }
  }
  reader.Integer("zero_out_steps", 1, 1 << 26, &recipe.zero_out_steps);
  reader.Integer("ramp_steps", 1, 1 << 26, &recipe.ramp_steps);
  reader.Integer("solidify_steps", 1, 1 << 26, &recipe.solidify_steps);
  KVL_RETURN_IF_ERROR(reader.Finish());
  return recipe;
}

}  // namespace kvlathe
