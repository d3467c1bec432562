#include "training/retrofit/dms/dms_recipe.h"

#include <algorithm>

#include "training/retrofit/object_reader.h"

namespace kvlathe {

double DmsRecipe::KeptShare(int context) const {
  const double always = std::min(context, window + n_sink);
  const double may_leave = context - always;
  if (may_leave <= 0) return 1;
  return std::clamp((context / compression - always) / may_leave, 0.0, 1.0);
}

StatusOr<DmsRecipe> ParseDmsRecipe(const nlohmann::json& json, const std::string& where) {
  DmsRecipe recipe;
  ObjectReader reader(json, where);
  reader.Integer("window", 1, 1 << 20, &recipe.window);
  reader.Integer("sink", 0, 1 << 20, &recipe.n_sink);
  reader.Number("scale", 1e-3, 1e6, &recipe.scale);
  reader.Number("offset", -1e6, 1e6, &recipe.offset);
  reader.Number("compression", 1.01, 1000, &recipe.compression);
  reader.Number("temperature", 1e-3, 100, &recipe.temperature);
  reader.Number("hinge_weight", 1e-3, 1e6, &recipe.hinge_weight);
  reader.Number("hinge_growth", 0, 1e3, &recipe.hinge_growth);
  reader.Integer("fit_tokens", 0, int64_t{1} << 40, &recipe.fit_tokens);
  reader.Number("fit_ridge", 0, 1e9, &recipe.fit_ridge);
  reader.Integer("fit_steps", 0, 1000, &recipe.fit_steps);
  reader.Number("fit_slope", 1e-3, 1e3, &recipe.fit_slope);
  reader.Integer("every", 1, 1 << 20, &recipe.every);
  KVL_RETURN_IF_ERROR(reader.Finish());
  return recipe;
}

}  // namespace kvlathe
