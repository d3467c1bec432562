// Random specs of the whole grammar are drawn here, and a failing one is made smaller.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "kv/spec/spec_table.h"

namespace kvlathe {

// A spec as a user could type it.
struct DrawnStage {
  const StageInfo* info = nullptr;
  std::vector<std::pair<std::string_view, std::string>> values;  // of keys
};
struct DrawnSpec {
  std::vector<DrawnStage> stages;
  std::string ToString() const;
};

// Stages of the axes, or a preset, with keys and values from their rows in the table; never
// `accuracy`, which is a question. Not every drawn spec parses: stages may exclude each other.
DrawnSpec DrawSpec(Random* random);

// The smallest spec found that still fails: stages and keys, whose values are then their defaults,
// are left out one at a time as long as `fails` says so.
DrawnSpec Shrink(DrawnSpec spec, const std::function<bool(const std::string& text)>& fails);

}  // namespace kvlathe
