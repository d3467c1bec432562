#include "load_generation/gamma_draw.h"

#include <cmath>

namespace kvlathe {

double DrawGamma(double shape, Random* random) {
  if (shape < 1) {  // the method needs a shape of 1 or more
    const double u = 1.0 - random->Uniform();
    return DrawGamma(shape + 1, random) * std::pow(u, 1 / shape);
  }
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = random->Normal(), root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root, u = 1.0 - random->Uniform();
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

double DrawBeta(double a, double b, Random* random) {
  const double x = DrawGamma(a, random), y = DrawGamma(b, random);
  return x / (x + y);
}

}  // namespace kvlathe
