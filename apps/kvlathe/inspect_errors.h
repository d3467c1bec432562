// What a quantizer loses of a text, as `inspect --errors` prints it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "evaluation/stored_error.h"
#include "kvlathe/open_workspace.h"

namespace kvlathe {

// Of the text's beginning, as long as the context.
StatusOr<std::vector<LayerErrors>> ErrorsOnText(Workspace* workspace, Model* model,
                                                const std::string& path);

// A layer each: {"k", "v": {"relative", "shares": [head_dim], "white_shares": [head_dim]}}.
nlohmann::ordered_json ErrorsJson(const std::vector<LayerErrors>& layers);

// A line for each layer, their mean, and white noise.
void PrintErrors(const std::vector<LayerErrors>& layers);

}  // namespace kvlathe
