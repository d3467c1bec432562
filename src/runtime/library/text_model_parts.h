// What a TextModel is made of, for its generators.
#pragma once

#include <memory>

#include "kvlathe/text_model.h"
#include "runtime/workspace.h"

namespace kvlathe::runtime {

struct TextModel::Parts {
  std::unique_ptr<Workspace> workspace;
};

}  // namespace kvlathe::runtime
