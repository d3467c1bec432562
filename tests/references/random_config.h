// What config.json says of a random model, as its family writes it.
#pragma once

#include <nlohmann/json.hpp>

#include "random_model.h"

namespace kvlathe::testing {

nlohmann::json RandomConfig(const RandomModelShape& shape);

}  // namespace kvlathe::testing
