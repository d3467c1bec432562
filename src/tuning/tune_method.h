// A method, as `tune` sees it, is a spec that leaves open how far some of its stages compress, and
// the values that they may take.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kv/spec/spec.h"

namespace kvlathe {

// The values of one key, from the weakest compression to the strongest.
struct Ladder {
  size_t stage_idx = 0;  // of the question's stages
  const KeyInfo* key = nullptr;
  std::vector<double> values;
};

struct TuneMethod {
  std::string name;  // short: the stages, and what was fixed: "fdc+kivi(bits=2)"
  Spec question;     // with `accuracy` where a value is searched for
  // What the search chooses from; each alternative has a ladder for every open stage, the longest
  // last. lathe has two: ratios, where it chooses bits itself, and rates. One empty alternative:
  // the method has nothing to choose.
  std::vector<std::vector<Ladder>> alternatives;
};

// Errors are those of Spec::ParseQuestion.
StatusOr<TuneMethod> ParseMethod(std::string_view text, double accuracy);

// The spec with a value for every ladder (same order): as short as it can be typed.
std::string FillIn(const TuneMethod& method, std::span<const Ladder> ladders,
                   std::span<const double> values);

// Whether this build can run one of the method's alternatives.
Status CheckMethodSupported(const TuneMethod& method);

// The spec without defaults, except for keys that say how far a stage compresses; without
// `accuracy` too where `names_method`: what `tune --kv` takes.
std::string ShortText(const Spec& spec, bool names_method);

// The published methods and ours, each on its own, with the axis on which it may be composed: what
// the registration rows say, in the order in which they are tried.
std::vector<std::pair<std::string_view, Axis>> DefaultMethods();

}  // namespace kvlathe
