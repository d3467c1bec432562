// A text source consists of documents.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "training/corpus_building/corpus_builder.h"

namespace kvlathe {

// Calls `take` with every document of the source in the order of the paths; `take` returns false to
// stop. kNotFound when a pattern matches no file; kDataLoss naming file and line of a bad entry.
Status ForEachDocument(const SourceRecipe& source, const std::string& data_directory,
                       const std::function<bool(std::string_view)>& take);

}  // namespace kvlathe
