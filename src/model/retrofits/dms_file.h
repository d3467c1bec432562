// A file with what a retrofit with Dynamic Memory Sparsification learned, beside the model that it
// belongs to (docs/methods/dms.md, The file). The weights of the model are not changed.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "io/safetensors/safetensors.h"
#include "model/config.h"
#include "model/tensor_source.h"

namespace kvlathe {

// Where the file of a model lies that nobody named: dms.safetensors in a directory,
// NAME.dms.safetensors beside NAME.gguf.
std::string DmsPathBeside(const std::string& model);

// Opens a file and sets config->dms by its metadata, which are numbers as text under the names of
// config.json. kDataLoss, naming the file, for one that is damaged, has no such metadata or has
// tensors of another model; a model that brings its own is kInvalidArgument.
StatusOr<SafetensorsReader> OpenDmsFile(const std::string& path, ModelConfig* config);

// The tensors of a model, and beside them those that a retrofit added.
std::unique_ptr<TensorSource> WithDmsTensors(std::unique_ptr<TensorSource> model,
                                             SafetensorsReader dms);

// The tensors of a layer, without ".weight" and ".bias".
std::string DmsNormName(int layer_idx);
std::string DmsProjectionName(int layer_idx);

}  // namespace kvlathe
