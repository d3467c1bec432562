// The one macro of ggml.h that the fetched JSON wrapper asks for. A broken assertion is an
// exception here, which a render reports like any other error of its template.
#pragma once

#include <stdexcept>

#define GGML_ASSERT(condition)                                          \
  do {                                                                  \
    if (!(condition)) throw std::logic_error("assertion: " #condition); \
  } while (false)
