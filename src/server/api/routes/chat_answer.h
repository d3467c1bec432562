// A chat's answer grows by content and tool calls.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/routes/answer_json.h"
#include "server/api/routes/chat_request.h"

namespace kvlathe::api {

// One choice. Without a parser in the prompt everything is content.
class ChatAnswer {
 public:
  explicit ChatAnswer(const ChatPrompt& prompt)
      : parser_(prompt.make_parser ? prompt.make_parser() : nullptr) {}

  // The next text; is_end: the last. What comes of it is appended to content(),
  // thoughts() and calls().
  AnswerDelta Push(const std::string& text, bool is_end);

  const std::string& content() const { return content_; }
  const std::string& thoughts() const { return thoughts_; }
  const std::vector<ToolCall>& calls() const { return calls_; }

 private:
  void Append(const AnswerDelta& delta);

  std::unique_ptr<AnswerReader> parser_;
  std::string content_, thoughts_;
  std::vector<ToolCall> calls_;  // with ids of their own
};

// {"id","type","function":{"name","arguments"}}
Json ToolCallJson(const ToolCall& call);
// Of a chunk: with id, type and name where the call begins.
Json CallDeltaJson(const ChatAnswer& answer, const AnswerDelta::Call& call);

// The choices of a chat. kInvalidArgument or kUnimplemented: the grammar cannot be made, or goes
// not together with min_tokens or ignore_eos.
StatusOr<std::vector<ChoicePlan>> PlanChatChoices(const ServiceState& state,
                                                  const GenerationOptions& options,
                                                  const TokenizedChat& chat, int64_t max_tokens,
                                                  std::optional<int> n_logprobs);

}  // namespace kvlathe::api
