// How the numbers that models store for xIELU become those that are computed with.
#pragma once

#include "machine/xielu_numbers.h"

namespace kvlathe {

// As transformers has it: softplus(alpha_p), and beta + softplus(alpha_n).
XieluNumbers XieluOf(double alpha_p, double alpha_n, double beta, double eps);

}  // namespace kvlathe
