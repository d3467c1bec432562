// The steps of a tokenizer file can make a text longer, and this bounds by how much.
#pragma once

#include <string_view>

#include "base/status.h"

namespace kvlathe {

// A file may name any replacement, so that a page of text could become gigabytes. Each list of
// steps therefore multiplies what its steps can do in the worst case, and is refused where the
// product exceeds kMaxFactor. The steps of published tokenizers stay below 200 (NFKC, 11 times; a
// mark of 3 bytes in front, at most 4 times; spaces that become 3 bytes).
class TextGrowth {
 public:
  static constexpr double kMaxFactor = 256;

  // `step` makes a text of n >= 1 bytes at most factor * n bytes long. kUnimplemented where the
  // steps so far can exceed kMaxFactor together.
  Status Add(double factor, std::string_view step) {
    if (factor > 1) factor_ *= factor;
    if (factor_ <= kMaxFactor) return OkStatus();
    return Error(StatusCode::kUnimplemented,
                 "{} could make a text more than {} times as long, which is refused", step,
                 kMaxFactor);
  }

 private:
  double factor_ = 1;
};

}  // namespace kvlathe
