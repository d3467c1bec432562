// The object "dms" of a recipe says how heads learn which entries of a cache leave it: Dynamic
// Memory Sparsification (Lancucki et al., 2025, arXiv 2506.05345).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/status.h"

namespace kvlathe {

struct DmsRecipe {
  int window = 128;  // newest positions that every query sees
  int n_sink = 4;    // first positions that never leave
  double scale = 100;
  double offset = 5;
  double compression = 2;  // positions of a context by those that are kept, the window's among them
  double temperature = 0.1;
  // Of the hinge in the loss, and how it grows: as in DmcRecipe.
  double hinge_weight = 1;
  double hinge_growth = 0;
  // Positions of the corpus that the heads are fitted to before the first step, what is added to
  // the diagonal for each thousand of them, and Newton steps of the fit.
  int64_t fit_tokens = 65536;
  double fit_ridge = 100;
  int fit_steps = 8;
  // By how much a logit falls where a cost is e times as large.
  double fit_slope = 4;
  // The divergence is taken at every so many positions of a sequence, behind the window.
  int every = 1;

  // Of the positions that may leave in a context, the share that stays at `compression`; 0 where
  // the window alone is more.
  double KeptShare(int context) const;
};

// kInvalidArgument naming `where` and the key.
StatusOr<DmsRecipe> ParseDmsRecipe(const nlohmann::json& json, const std::string& where);

}  // namespace kvlathe
