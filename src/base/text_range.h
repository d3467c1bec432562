// Bytes of a text, from begin to before end.
#pragma once

#include <cstddef>

namespace kvlathe {

struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

}  // namespace kvlathe
