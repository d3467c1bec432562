// The numbers of the activation xIELU (arXiv 2411.13010).
#pragma once

namespace kvlathe {

// Where x > 0: positive x^2 + beta x, and elsewhere negative (expm1(min(x, eps)) - x) + beta x.
struct XieluNumbers {
  float positive = 0;
  float negative = 0;
  float beta = 0;
  float eps = 0;
};

}  // namespace kvlathe
