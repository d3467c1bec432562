// Draws how long prompts and answers are. Papers report a mean and a range of their data sets, and
// so do we.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "base/random.h"

namespace kvlathe {

// Describes lengths in tokens: whole numbers in [min, max] with this mean.
//
// The papers' tables do not say how lengths spread between the ends. We take the beta distribution
// of the PERT method: over [min, max], with shapes a + b = 6, and a so that the mean is exact in
// expectation. It has one mode, at (6 mean - min - max) / 4 where that is inside, and falls off to
// both ends. A draw is rounded up or down with the probability that keeps the mean.
struct LengthRange {
  double mean = 1;
  int min = 1, max = 1;
  bool is_uniform = false;  // all lengths are equally likely, and the mean is the middle
};

int DrawLength(const LengthRange& range, Random* random);

// Returns the range with every length times `factor`, and at least 1.
LengthRange Scaled(const LengthRange& range, double factor);

// Returns the factor, at most 1, with which the longest prompt and the longest answer have
// `context_tokens` positions together.
double FactorToFit(const LengthRange& input, const LengthRange& output, int context_tokens);

// Describes a data set as the papers of the methods do, in tokens.
struct PaperWorkload {
  std::string_view name;
  LengthRange input, output;
};
std::span<const PaperWorkload> PaperWorkloads();
// Returns null where there is no such data set.
const PaperWorkload* FindPaperWorkload(std::string_view name);

}  // namespace kvlathe
