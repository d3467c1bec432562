// Decoders are read from, and written to, the Hugging Face directories that the engine reads.
#pragma once

#include <string>

#include "base/status.h"
#include "tensor/dtype.h"
#include "training/retrofit/decoder.h"

namespace kvlathe {

// kUnimplemented, naming the feature, for a model that the trainer cannot represent.
Status CheckTrainable(const ModelConfig& config);

// config.json, model.safetensors in `dtype` and generation_config.json, each written atomically;
// `directory` is made if it is missing. Tokenizer files are the caller's.
Status SaveDecoder(const Decoder& decoder, DType dtype, const std::string& directory);

// Sets the parameters of `decoder` from a GGUF file of the same shape and of architecture llama, or
// from a model directory of the same shape, or of fewer layers: a
// layer that it lacks keeps its first values but for the matrices that write to the residual
// stream, which become 0, so that the decoder computes what the smaller one did.
Status LoadWeights(const std::string& model, Decoder* decoder);

}  // namespace kvlathe
