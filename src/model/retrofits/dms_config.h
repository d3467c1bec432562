// Reads what a retrofit with Dynamic Memory Sparsification left: numbers in config.json, or in the
// metadata of a file of its own (model/retrofits/dms_file.h).
#pragma once

#include "base/status.h"
#include "model/config.h"
#include "model/families/config_fields.h"

namespace kvlathe {

// Sets config->dms where `fields` have dms_window_size, with the defaults of the released code for
// the others. kDataLoss for a number out of range, kUnimplemented where a channel of the queries
// decides (dms_separate_alpha is false) or the model's norms are no RMS norms.
Status ReadDms(const ConfigFields& fields, ModelConfig* config);

}  // namespace kvlathe
