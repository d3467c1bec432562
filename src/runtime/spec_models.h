// What is asked of a model with a cache, or of a cache before its model is made.
#pragma once

#include <optional>
#include <string>

#include "kv/blocks/sequence_file.h"
#include "runtime/workspace.h"

namespace kvlathe {

// The KL that is predicted of a cache, without making a model. Nothing where none is predicted, or
// the calibration held no text back. No `accuracy`.
StatusOr<std::optional<double>> PredictedKlOf(Workspace* workspace, const std::string& kv);
// The same by layer.
StatusOr<std::optional<PredictedLosses>> PredictedLossesOf(Workspace* workspace,
                                                           const std::string& kv);
// Fills in the predicted KL, where there is one.
Status PredictKlOf(Workspace* workspace, SpecModel* spec_model);
// What the rows of a cache mean: weights, positions and the basis itself. Of a model in a
// directory.
StatusOr<SequenceIdentity> IdentityOf(Workspace* workspace, const SpecModel& spec_model);

}  // namespace kvlathe
