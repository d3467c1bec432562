// Builds a corpus directory from text files and from the task suite.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {

// One source as a recipe's "corpus" describes it: either text or tasks.
struct SourceRecipe {
  // Text: paths below the data directory, with * in the last part. Plain text is one document a
  // file; of .jsonl (an object a line) and .json (an array of strings or objects) every entry is a
  // document. Fields of objects go into `document` in place of {field}.
  std::vector<std::string> files;
  std::string document = "{text}";
  // Tasks: train examples packed into rows of context + 1 tokens, whole but for the last of a row;
  // weights by task name. n_tokens of them are generated. With answers_only the rest of an example
  // is read and not learned.
  std::map<std::string, double> tasks;
  int context = 0;
  int64_t n_tokens = 0;
  bool answers_only = false;
};

struct CorpusRecipe {
  std::map<std::string, SourceRecipe> sources;
};

// kInvalidArgument naming the place: an unknown key or task, a source that is neither or both.
StatusOr<CorpusRecipe> LoadCorpusRecipe(const std::string& path);

// Called after every source with its name, tokens and text bytes.
using SourceDone = std::function<void(const std::string&, int64_t, int64_t)>;

// Writes corpus.json, a file for every source, and copies of the tokenizer's files to `directory`.
// The tokenizer is in a directory or in a GGUF file.
Status BuildCorpus(const CorpusRecipe& recipe, const std::string& data_directory,
                   const std::string& tokenizer_path, const std::string& directory,
                   const SourceDone& on_source);

// The texts that BuildCorpus would tokenise, in plain files below `directory` (at most max_bytes of
// each source), for training a tokenizer. Returns their paths.
StatusOr<std::vector<std::string>> WriteTrainingTexts(const CorpusRecipe& recipe,
                                                      const std::string& data_directory,
                                                      const std::string& directory,
                                                      int64_t max_bytes);

}  // namespace kvlathe
