// Tools and structured output go by the chat template of a model and, where the build has XGrammar,
// by grammars.
#pragma once

#include <memory>

#include "base/status.h"
#include "chat/chat_template.h"
#include "server/api/tool_support.h"
#include "structured/grammars.h"

namespace kvlathe {

// What needs no grammar works without one: tools with tool_choice "auto", whose calls are read out
// of the answer. A grammar is needed for response_format, for tool_choice "required" or a named
// function, for strict tools and for parallel_tool_calls: false; tools that are not strict are
// called as the model likes.
class TemplateToolSupport : public api::ToolSupport {
 public:
  // `chat_template` outlives it; null: the model has none, and every conversation is refused.
  // A `grammars` that is an error refuses what needs one, with its message behind the name of the
  // field.
  TemplateToolSupport(const ChatTemplate* chat_template,
                      StatusOr<std::unique_ptr<Grammars>> grammars);

  // kUnimplemented also for response_format beside tools, which no template here has.
  StatusOr<api::ChatPrompt> Render(const api::ChatTask& task) const override;

 private:
  // Adds the constraint of `structure`, which `field` asks for.
  Status Constrain(const char* field, nlohmann::ordered_json structure,
                   api::ChatPrompt* prompt) const;
  Status ConstrainFormat(const api::ResponseFormat& format, api::ChatPrompt* prompt) const;
  Status ConstrainCalls(const api::ChatTask& task, api::ChatPrompt* prompt) const;
  void AddReader(const api::ChatTask& task, api::ChatPrompt* prompt) const;

  const ChatTemplate* template_;
  StatusOr<std::shared_ptr<Grammars>> grammars_;
};

}  // namespace kvlathe
