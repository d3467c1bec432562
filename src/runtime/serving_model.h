// A model for a serving engine: its caches (levels), their pool, its conversations and ends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/blocks/block_pool.h"
#include "runtime/open_options.h"
#include "runtime/workspace.h"
#include "tokenizer/chat/chat_format.h"

namespace kvlathe {

struct ServingOptions {
  OpenOptions open;           // open.kv are the levels; if there are none, "none" is the only one
  std::string random_config;  // config.json of random weights, in place of open.model
  std::string tokenizer;      // with random_config: the model whose tokenizer is used
  std::string chat_family;    // a chat template by name; empty: the model's own
};

struct ServingModel {
  std::unique_ptr<Workspace> workspace;
  std::vector<SpecModel> levels;  // in the order of open.kv
  // None for a model without a template, or with one that is not recognised.
  std::optional<ChatFormat> chat_format;
  bool chat_adds_bos = false;  // the text of the model's own template holds its BOS
  std::vector<int32_t> end_ids;
  std::optional<BlockPool> pool;
  std::string name;  // of the file or directory: "lathe-nano" of models/lathe-nano/
};

// Opens the model and makes its levels; a note says where there is no chat, and what loses much.
// Errors are those of Workspace::Open and MakeModel, and of a chat_family that does not fit.
StatusOr<std::unique_ptr<ServingModel>> OpenServingModel(const ServingOptions& options);

}  // namespace kvlathe
