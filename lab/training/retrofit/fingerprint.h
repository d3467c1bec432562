// A fingerprint says which run a checkpoint belongs to: it covers everything of model and recipe
// that its tensors and its place in the run depend on.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "training/retrofit/recipe.h"

namespace kvlathe {

// Runs with the same fingerprint take the same steps on the same corpus. `stage` as of
// TrainerOptions::dmc_stage.
std::string FingerprintOf(const TrainingRecipe& recipe, std::optional<DmcStage> stage);

enum class FingerprintUse {
  kGoOn,   // the same run goes on: all must be the same
  kBegin,  // another stage begins with parameters and moments: those must fit
};

struct FingerprintDifferences {
  bool is_of_model = false;  // the model is another one
  std::string what;          // "seed is 5 there, 6 here; ..."; empty: none that matters
};

// What differs between the fingerprint of a file and that of this run. A text that is no
// fingerprint differs in everything.
FingerprintDifferences CompareFingerprints(std::string_view there, std::string_view here,
                                           FingerprintUse use);

}  // namespace kvlathe
