// Reads what a retrofit with Dynamic Memory Sparsification left: numbers in config.json, in a file
// of their own beside it, or in the metadata of a file with tensors (model/retrofits/dms_file.h).
#pragma once

#include <string>

#include "base/status.h"
#include "model/config.h"
#include "model/families/config_fields.h"

namespace kvlathe {

// Sets config->dms where `fields` have one of the numbers that the released configurations have,
// with the defaults of the released code for the others: as there, a channel of the queries decides
// unless dms_separate_alpha is true. kDataLoss for a number out of range, kUnimplemented where the
// model's norms are no RMS norms or where one channel would decide for a whole layer.
Status ReadDms(const ConfigFields& fields, ModelConfig* config);

// dms_metadata.json in a model's directory, as FastDMS reads it.
std::string DmsMetadataPath(const std::string& directory);

// Sets config->dms where the directory of a model has such a file. Errors are those of ReadDms, and
// kInvalidArgument where config.json has set it already.
Status ReadDmsMetadata(const std::string& directory, ModelConfig* config);

}  // namespace kvlathe
