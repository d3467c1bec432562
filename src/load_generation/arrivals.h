// Says when the requests of a load arrive.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace kvlathe {

struct ArrivalOptions {
  // The requests a second. Where it is infinite nothing is waited for: a client sends its next
  // request when its last one has ended.
  double rate = std::numeric_limits<double>::infinity();
  // The shape of the gamma distribution of the gaps between arrivals, above 0. With 1 the gaps are
  // exponential, which is a Poisson process; below 1 requests come in bursts, above 1 more evenly.
  double burstiness = 1;
  uint64_t seed = 0;
};

// Returns the seconds since the start at which `n_requests` arrive, ascending. The rate is finite.
// As in `vllm bench serve` the gaps are scaled so that the last request arrives at n_requests /
// rate: runs of few requests then have the rate that was asked for, whatever the seed. The same
// options give the same times on every machine.
std::vector<double> ArrivalTimes(const ArrivalOptions& options, int64_t n_requests);

}  // namespace kvlathe
