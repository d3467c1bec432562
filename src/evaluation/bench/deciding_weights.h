// Random weights may decide what merges, to show what a retrofitted model costs at a compression
// ratio before there is one.
#pragma once

#include <memory>

#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"
#include "model/weights.h"

namespace kvlathe {

// Lets random weights begin an entry at one of `compression` positions, over all layers and heads.
// Nothing is drawn anew: what random rows of W_K put into the deciding channel differs from
// position to position and from head to head, so the offset that this share of it lies below is
// all that it takes. It is found on random tokens, of which the model reads about a thousand (as
// many as its context has, if that is fewer) without merging, and then with it until the ratio is
// met, in 8 rounds at most: entries change what later layers see. Other tokens merge otherwise: of
// a small model 8 came out as 5. The rest of `dmc` stays. kInvalidArgument outside of [1, 64].
Status DecideAtRandom(double compression, const DmcConfig& dmc,
                      const std::shared_ptr<ModelWeights>& weights);

}  // namespace kvlathe
