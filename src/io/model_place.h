// The files of a model lie in a Hugging Face directory, or are a GGUF file and what stands beside
// it.
#pragma once

#include <string>

namespace kvlathe {

// What belongs to a model besides its weights, such as basis.safetensors, profile.json or
// calibration.txt: DIR/name of a directory; of a file PLACE/NAME.gguf (or the first of several,
// NAME-00001-of-0000N.gguf) PLACE/NAME.name.
std::string BesideModel(const std::string& model, const std::string& name);

}  // namespace kvlathe
