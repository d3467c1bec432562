// Judges several request rates against the same server: finds which rate it serves at a bound of
// the latency, and draws latency against rate.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvlathe {

struct RatePoint {
  double rate = 0;  // requests a second
  std::optional<double>
      p90_ms;  // of normalised latency, failed requests as infinitely slow; none: infinite
};

// The rate at which p90 normalised latency reaches a bound.
struct ServedRate {
  double rate = 0;
  enum class Kind {
    kBetween,  // between two measured rates, linear in rate and in the logarithm of latency
    kAtLeast,  // the highest that was measured keeps the bound
    kBelow,    // the lowest that was measured does not keep it, so the rate is below `rate`
  } kind = Kind::kBetween;
};
// "between", "at least", "below".
std::string_view ToString(ServedRate::Kind kind);

// Finds the rate at which the points, of which there is at least one, by ascending rate, reach the
// bound. Where the first rate above the bound has an infinite latency, the highest rate that keeps
// the bound counts.
ServedRate ServedRateOf(std::span<const RatePoint> points, double bound_ms);

struct ResultFile {
  std::string path;
  nlohmann::json json;
};
// Draws normalised latency against request rate, from files of `kvlathe bench serve`: single runs
// at a rate, which join into a line where their labels are the same, and sweeps. `statistic` is
// mean, median, p90 or p99. The bound of sweeps is drawn where all have the same. A file that is
// something else is kDataLoss, which names it.
StatusOr<std::string> PlotLatency(std::span<const ResultFile> files, const std::string& statistic);

}  // namespace kvlathe
