// How long prompts and answers are: a mean inside a range, as papers report their data sets.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "base/random.h"

namespace kvlathe {

// Whole numbers of tokens in [min, max] with this mean.
//
// What lies between is not in the papers' tables. We take the beta distribution of the PERT method:
// over [min, max], with shapes a + b = 6, and a so that the mean is exact in expectation. It has
// one mode (at (6 mean - min - max) / 4, where that is inside) and falls off to both ends. A draw
// is rounded up or down with the probability that keeps the mean.
struct LengthRange {
  double mean = 1;
  int min = 1, max = 1;
  bool is_uniform = false;  // every length of the range is as likely; the mean is its middle
};

int DrawLength(const LengthRange& range, Random* random);

// Every length times `factor`, at least 1.
LengthRange Scaled(const LengthRange& range, double factor);

// The factor, at most 1, with which the longest prompt and the longest answer have `context_tokens`
// positions together.
double FactorToFit(const LengthRange& input, const LengthRange& output, int context_tokens);

// A data set as the papers of the methods describe it, in tokens.
struct PaperWorkload {
  std::string_view name;
  LengthRange input, output;
};
std::span<const PaperWorkload> PaperWorkloads();
const PaperWorkload* FindPaperWorkload(std::string_view name);  // null: there is none

}  // namespace kvlathe
