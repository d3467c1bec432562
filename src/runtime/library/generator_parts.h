// What a Generator is made of: models of one workspace, a pool for their caches, and an engine.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "kv/blocks/block_pool.h"
#include "kvlathe/generator.h"
#include "model/model.h"
#include "runtime/library/text_model_parts.h"

namespace kvlathe::runtime {

struct Generator::Parts {
  explicit Parts(std::shared_ptr<TextModel::Parts> of_model) : model(std::move(of_model)) {}

  // Once `models` are there: what they leave is the pool's.
  void StartEngine(const GeneratorSettings& settings);

  std::shared_ptr<TextModel::Parts> model;
  std::vector<std::unique_ptr<Model>> models;
  std::optional<BlockPool> pool;
  std::vector<int> end_ids;
  std::optional<Engine> engine;
};

}  // namespace kvlathe::runtime
