// Wherever a program takes a model, it takes the path or the name of one.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "runtime/open_options.h"

namespace kvlathe {

// The path of a model. A file or folder that is there under what is named always wins. Else
// hf:OWNER/NAME and hf:OWNER/NAME:FILE name a model of a hub, which is fetched if the cache lacks
// it (src/hub/fetch_model.h), and NAME without a slash a file NAME.gguf in models/fetched, from the
// working directory upwards, or in models of the user's cache directory. kNotFound says how to have
// a model that is in neither. What is no name stays as it is: whoever opens it says what is wrong.
StatusOr<std::string> FindModel(const std::string& named, const Progress& progress,
                                const NoteSink& on_note);

// The models that scripts/fetch_model.sh fetches.
std::span<const std::string_view> FetchedModelNames();

}  // namespace kvlathe
