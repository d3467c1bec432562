// The balance of a tile in double and in the log domain, as KVarN's publication has it, for tests;
// it shares no code with the kernels.
#pragma once

#include <vector>

namespace kvlathe {

struct RefBalanced {
  std::vector<double> elements, members;  // what divides them
};

// tile [member][element]: channels and tokens of K, tokens and channels of V.
RefBalanced BalanceRef(const std::vector<std::vector<double>>& tile);

// The standard deviation by n - 1.
double DeviationRef(const std::vector<double>& x);

}  // namespace kvlathe
