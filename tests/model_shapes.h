// There is one small model of every family and of every feature that changes the forward.
#pragma once

#include <vector>

#include "random_model.h"

namespace kvlathe::testing {

struct NamedShape {
  const char* name;
  RandomModelShape shape;
};

std::vector<NamedShape> ModelShapes();

// Sink logits, biases of this deviation, no window in any layer, and few experts.
RandomModelShape GptOssWithoutWindows(double bias_deviation);

// LongRope with an original context of 64 of 512 positions, three quarters of a head rotating, and
// the long factors, as the longest context asks for.
RandomModelShape Phi3LongRope();

}  // namespace kvlathe::testing
