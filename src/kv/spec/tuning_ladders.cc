#include "kv/spec/tuning_ladders.h"

#include <fmt/format.h>

namespace kvlathe {
namespace {

template <typename F>
std::vector<double> Series(int n, const F& value) {
  std::vector<double> values(n);
  for (int i = 0; i < n; ++i) values[i] = value(i);
  return values;
}

}  // namespace

std::vector<double> Rates(const KeyInfo&) {
  return Series(96, [](int i) { return i / 100.0; });
}
std::vector<double> Shares(const KeyInfo&) {
  return Series(50, [](int i) { return (50 - i) / 50.0; });
}
std::vector<double> Ratios(const KeyInfo&) {
  return Series(96, [](int i) { return (105 + 5 * i + i * i / 5) / 100.0; });
}
// 65536, 49152, 32768, 24576, ... 64: two to an octave.
std::vector<double> Sizes(const KeyInfo&) {
  return Series(21, [](int i) { return double((i % 2 == 0 ? 65536 : 49152) >> i / 2); });
}
std::vector<double> Merges(const KeyInfo&) { return {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}; }
// All that the key allows.
std::vector<double> AllBits(const KeyInfo& key) {
  std::vector<double> bits;
  for (int b = 16; b > 0; --b) {
    if (ParseValue(key, fmt::format("{}", b)).has_value()) bits.push_back(b);
  }
  return bits;
}

}  // namespace kvlathe
