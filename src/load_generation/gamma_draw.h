// Draws from gamma distributions, for the gaps between arrivals and for lengths.
#pragma once

#include "base/random.h"

namespace kvlathe {

// Gamma with this shape (above 0) and scale 1, so that its mean is the shape. G. Marsaglia and W.
// W. Tsang, A Simple Method for Generating Gamma Variables (ACM TOMS, 2000).
double DrawGamma(double shape, Random* random);

// Beta with these shapes, both above 0: in (0, 1) with mean a / (a + b).
double DrawBeta(double a, double b, Random* random);

}  // namespace kvlathe
