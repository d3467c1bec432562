// Makes what a server serves of a model that src/runtime has opened.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/serving_model.h"
#include "server/server.h"
#include "server/tools/template_tool_support.h"

namespace kvlathe::server {

class OpenedModel {
 public:
  explicit OpenedModel(std::unique_ptr<ServingModel> model);

  // The model under these names, or under its own if there are none. What is described refers to
  // this, which outlives the server.
  ServedModel Describe(std::vector<std::string> names, const api::ApiLimits& limits,
                       const EngineOptions& engine);
  // Of the levels (EngineOptions::identities).
  StatusOr<std::vector<SequenceIdentity>> Identities() const;

 private:
  const ChatTemplate* chat_template() const {
    return model_->chat_template.has_value() ? &*model_->chat_template : nullptr;
  }

  std::unique_ptr<ServingModel> model_;
  TemplateToolSupport tool_support_;
};

}  // namespace kvlathe::server
