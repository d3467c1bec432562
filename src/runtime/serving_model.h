// A model for a serving engine: its caches (levels), their pool, its conversations and ends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "chat/chat_template.h"
#include "kv/blocks/block_pool.h"
#include "runtime/chat_template_choice.h"
#include "runtime/default_sampling.h"
#include "runtime/open_options.h"
#include "runtime/workspace.h"

namespace kvlathe {

struct ServingOptions {
  OpenOptions open;           // open.kv are the levels; if there are none, "none" is the only one
  std::string random_config;  // config.json of random weights, in place of open.model
  std::string tokenizer;      // with random_config: the model whose tokenizer is used
  ChatTemplateOptions chat;
  bool needs_none = false;  // ServingModel::none
  // That caches beside the pool take, of an audit: on a GPU the pool leaves it where open does not
  // say how large the pool is.
  int64_t kv_bytes_beside = 0;
};

struct ServingModel {
  std::unique_ptr<Workspace> workspace;
  std::vector<SpecModel> levels;  // in the order of open.kv
  // Uncompressed, where it was asked for and no level is.
  std::optional<SpecModel> none;
  // None for a model without a template, or with one that is no Jinja.
  std::optional<ChatTemplate> chat_template;
  bool chat_adds_bos =
      false;  // a chosen template prints none; the model's own does where it is to be
  bool reads_control_tokens = false;  // ChatTemplateOptions
  std::vector<int32_t> end_ids;
  SamplingParams sampling;  // where a request says nothing else (DefaultSampling)
  std::optional<BlockPool> pool;
  // The level or `none` that is uncompressed; null where there is none.
  Model* uncompressed() const;
  std::string name;  // of the file or directory: "lathe-nano" of models/lathe-nano/
};

// The workspace of the model alone: what a rank other than the first opens.
StatusOr<std::unique_ptr<Workspace>> OpenServedWorkspace(const ServingOptions& options);

// Opens the model and makes its levels; a note says where there is no chat, and what loses much.
// Errors are those of Workspace::Open and MakeModel, and of a chosen template that is not
// there or cannot be read.
StatusOr<std::unique_ptr<ServingModel>> OpenServingModel(const ServingOptions& options);

}  // namespace kvlathe
