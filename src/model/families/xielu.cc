#include "model/families/xielu.h"

#include <algorithm>
#include <cmath>

namespace kvlathe {
namespace {

// log(1 + e^x), without overflow.
double Softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace

XieluNumbers XieluOf(double alpha_p, double alpha_n, double beta, double eps) {
  return {.positive = static_cast<float>(Softplus(alpha_p)),
          .negative = static_cast<float>(beta + Softplus(alpha_n)),
          .beta = static_cast<float>(beta),
          .eps = static_cast<float>(eps)};
}

}  // namespace kvlathe
