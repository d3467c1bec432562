// A test opens a GGUF file that must open.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "io/gguf/gguf.h"

namespace kvlathe {

inline GgufFile OpenOrDie(const std::string& path) {
  auto file = GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

}  // namespace kvlathe
