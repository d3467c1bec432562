// A word of warning before a cache that loses much is used.
#pragma once

#include <span>

#include "runtime/workspace.h"

namespace kvlathe {

// Measures how far each cache but `none` is from the uncompressed one on at most 160 tokens of the
// sample text (evaluation/short_loss.h), and warns by a note of the workspace where that is far.
// Each is measured once for a model, spec and type of rows: the figure is kept in the user's cache
// directory. What keeps it from being measured, read or kept is a note or a warning, never an
// error: caches can be used all the same.
void WarnOfLoss(Workspace* workspace, std::span<const SpecModel> spec_models);

}  // namespace kvlathe
