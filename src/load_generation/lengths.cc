#include "load_generation/lengths.h"

#include <algorithm>
#include <cmath>

#include "load_generation/gamma_draw.h"

namespace kvlathe {

int DrawLength(const LengthRange& range, Random* random) {
  const int width = range.max - range.min;
  if (width <= 0) return range.min;
  if (range.is_uniform) {
    return range.min + static_cast<int>(random->Below(static_cast<uint64_t>(width) + 1));
  }
  constexpr double kShapes = 6;
  const double share = (range.mean - range.min) / width;
  if (share <= 0) return range.min;
  if (share >= 1) return range.max;
  const double drawn = range.min + width * DrawBeta(kShapes * share, kShapes * (1 - share), random);
  return std::min(range.max, static_cast<int>(std::floor(drawn + random->Uniform())));
}

LengthRange Scaled(const LengthRange& range, double factor) {
  const auto scaled = [factor](int length) {
    return std::max(1, static_cast<int>(std::floor(length * factor)));
  };
  LengthRange result{range.mean * factor, scaled(range.min), scaled(range.max), range.is_uniform};
  result.mean = std::clamp<double>(result.mean, result.min, result.max);
  return result;
}

double FactorToFit(const LengthRange& input, const LengthRange& output, int context_tokens) {
  return std::min(1.0, context_tokens / (static_cast<double>(input.max) + output.max));
}

std::span<const PaperWorkload> PaperWorkloads() {
  static constexpr PaperWorkload kWorkloads[] = {
      {"imdb", {315, 106, 821}, {37, 16, 87}},
      {"arxiv", {6300, 1600, 14100}, {243, 29, 464}},
      {"cocktail", {16200, 9400, 28800}, {159, 44, 246}},
      {"cocktail-long", {49700, 9400, 104900}, {159, 44, 246}},
      {"humaneval", {204, 75, 697}, {139, 11, 552}},
      {"pg19", {277, 138, 419}, {61500, 24300, 97500}},
  };
  return kWorkloads;
}

const PaperWorkload* FindPaperWorkload(std::string_view name) {
  for (const PaperWorkload& workload : PaperWorkloads()) {
    if (workload.name == name) return &workload;
  }
  return nullptr;
}

}  // namespace kvlathe
