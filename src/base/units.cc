#include "base/units.h"

#include <cmath>
#include <cstdlib>

namespace kvlathe {

StatusOr<int64_t> ParseBytes(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  const auto bad = [&] {
    return Error(StatusCode::kInvalidArgument,
                 "'{}' is not a size; write for example 512MiB, 2GiB or 1000000", text);
  };
  if (end == copy.c_str() || !std::isfinite(number) || number < 0) return bad();
  const std::string_view suffix = std::string_view(copy).substr(end - copy.c_str());
  double unit = 1;
  if (!suffix.empty() && suffix != "B") {
    constexpr std::string_view kPrefixes = "KMGT";
    const size_t power = kPrefixes.find(suffix[0] == 'k' ? 'K' : suffix[0]);
    if (power == std::string_view::npos) return bad();
    const std::string_view rest = suffix.substr(1);
    if (!rest.empty() && rest != "iB" && rest != "B") return bad();
    unit = std::pow(rest == "B" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double n_bytes = number * unit;
  if (n_bytes > 9e18) return bad();
  return static_cast<int64_t>(n_bytes);
}

std::string FormatBytes(int64_t n_bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(n_bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", n_bytes) : fmt::format("{:.4g} {}", value, kUnits[unit]);
}

}  // namespace kvlathe
