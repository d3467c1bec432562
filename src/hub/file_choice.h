// Which files of a repository are the model that is asked for.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/hub_listing.h"
#include "hub/hub_model.h"

namespace kvlathe {

struct FileChoice {
  // Paths in the repository. Of a GGUF model its file, or the parts of it in their order; of a
  // directory configuration, tokenizer and templates.
  std::vector<std::string> paths;
  bool is_directory = false;
  // Of a directory: the file of weights, or the index that names several.
  std::string weights;
  bool weights_are_index = false;
  // For the person who asked: that there were several, and which is taken. Mostly empty.
  std::string note;
};

// Without model.file: the only GGUF model; of several the only one whose name says Q4_K_M; where
// there is none a directory with safetensors. With it: the GGUF file of this path, or the only one
// whose name has it as a part ("Q8_0" means NAME-Q8_0.gguf). A model in several files is taken
// whole. kInvalidArgument lists the files with their sizes where more than one could be meant;
// kNotFound: there is none, or a part of one is missing.
StatusOr<FileChoice> ChooseFiles(const HubModel& model, std::span<const HubFile> files);

// The weights that model.safetensors.index.json names, each once. kDataLoss for what is no such
// index or names what is no file beside it.
StatusOr<std::vector<std::string>> FilesOfIndex(const HubModel& model, std::string_view json);

}  // namespace kvlathe
