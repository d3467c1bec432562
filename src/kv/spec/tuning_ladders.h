// A ladder has the values that `tune` tries for a key, from the weakest compression to the
// strongest. The registration rows refer to them.
#pragma once

#include <vector>

#include "kv/spec/spec_table.h"

namespace kvlathe {

std::vector<double> Rates(const KeyInfo& key);
std::vector<double> Ratios(const KeyInfo& key);
std::vector<double> Shares(const KeyInfo& key);
std::vector<double> Sizes(const KeyInfo& key);
std::vector<double> Merges(const KeyInfo& key);
std::vector<double> AllBits(const KeyInfo& key);

inline constexpr TuningLadder kRateLadder[] = {{"rate", Rates}};
// A ratio is that of the whole cache, and lathe reaches it by bits of its own, which a quantizer
// would replace. It comes first because it goes further: of the rates only those that make the
// cache smaller still are tried then.
inline constexpr TuningLadder kLatheLadders[] = {{"ratio", Ratios, /*without_quantizer=*/true},
                                                 {"rate", Rates}};
inline constexpr TuningLadder kKeepLadder[] = {{"keep", Shares}};
inline constexpr TuningLadder kSizeLadder[] = {{"size", Sizes}};
inline constexpr TuningLadder kMergeLadder[] = {{"n", Merges}};
inline constexpr TuningLadder kBitsLadder[] = {{"bits", AllBits}};

}  // namespace kvlathe
