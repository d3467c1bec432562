#include "load_generation/arrivals.h"

#include "base/random.h"
#include "load_generation/gamma_draw.h"

namespace kvlathe {

std::vector<double> ArrivalTimes(const ArrivalOptions& options, int64_t n_requests) {
  constexpr uint64_t kStream = 0x61727269;  // apart from the draws of lengths
  Random random(options.seed, kStream);
  std::vector<double> times;
  times.reserve(static_cast<size_t>(n_requests));
  double now = 0;
  for (int64_t i = 0; i < n_requests; ++i) {
    now += DrawGamma(options.burstiness, &random);
    times.push_back(now);
  }
  const double scale = now > 0 ? static_cast<double>(n_requests) / options.rate / now : 0;
  for (double& time : times) time *= scale;
  return times;
}

}  // namespace kvlathe
