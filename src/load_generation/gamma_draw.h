// Draws from gamma and beta distributions. The gaps between arrivals and the lengths of requests
// need them.
#pragma once

#include "base/random.h"

namespace kvlathe {

// Draws from the gamma distribution with this shape, which is above 0, and scale 1. Its mean is the
// shape. The method is that of G. Marsaglia and W. W. Tsang, A Simple Method for Generating Gamma
// Variables (ACM TOMS, 2000).
double DrawGamma(double shape, Random* random);

// Draws from the beta distribution with these shapes, both above 0. The value lies in (0, 1); the
// mean is a / (a + b).
double DrawBeta(double a, double b, Random* random);

}  // namespace kvlathe
