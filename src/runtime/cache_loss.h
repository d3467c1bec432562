// A word of warning before a cache that loses much is used.
#pragma once

#include "runtime/workspace.h"

namespace kvlathe {

// Measures, once for a model, basis and spec, how far the cache is from the uncompressed one on 512
// tokens of the sample text, and warns by a note of the workspace where that is far. Of caches with
// a calibrated basis: others tell by their bits and shares what they do, and these have just been
// waited for. The figure is kept in the user's cache directory.
Status WarnOfLoss(Workspace* workspace, const SpecModel& spec_model);

}  // namespace kvlathe
