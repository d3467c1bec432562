// A text of which some ranges were written by users.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/text_range.h"

namespace kvlathe {

struct MarkedText {
  std::string text;
  // Bytes of `text` that came from outside, ascending, without overlap: no control token is read
  // there.
  std::vector<TextRange> inputs;
};

}  // namespace kvlathe
