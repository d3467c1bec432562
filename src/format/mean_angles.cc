#include "format/mean_angles.h"

#include <cmath>

namespace kvlathe {

std::vector<float> MakeMeanAngles(std::span<const double> frequencies, double amplitude) {
  std::vector<float> table;
  table.reserve(2 * frequencies.size() * (kHalfBlock + 2));
  using Function = double (*)(double);
  const Function functions[] = {[](double x) { return std::cos(x); },
                                [](double x) { return std::sin(x); }};
  for (const Function function : functions) {
    for (const double frequency : frequencies) {
      for (int d = 0; d < kHalfBlock; ++d) {
        table.push_back(static_cast<float>(amplitude * function(frequency * (d + 0.5))));
      }
    }
  }
  for (const double distance : {kHalfBlock - 0.5, double{kBlockSize}}) {
    for (const Function function : functions) {
      for (const double frequency : frequencies) {
        table.push_back(static_cast<float>(function(frequency * distance)));
      }
    }
  }
  return table;
}

}  // namespace kvlathe
