// The routes share this state while the service lives.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat_ends.h"
#include "server/api/api_service.h"
#include "server/api/fill_marks.h"
#include "server/api/json_entry.h"
#include "server/api/saved_prompts.h"
#include "server/api/slot_table.h"
#include "server/api/stream_pinger.h"

namespace kvlathe::api {

// Constant once made, but for the pinger and the slots, which have locks of their own: any thread
// may read it.
class ServiceState {
 public:
  explicit ServiceState(ApiContext context);

  const ApiContext& context() const { return context_; }
  const ApiLimits& limits() const { return context_.limits; }
  // Of the model; the tokenizer may have fewer.
  int vocab_size() const { return context_.levels.front().model->config().vocab_size; }
  const Tokenizer& tokenizer() const { return *context_.tokenizer; }
  const ToolSupport& tool_support() const { return *tool_support_; }
  // Where the answer of a chat ends, besides context().end_ids.
  const ChatEnds& chat_ends() const { return chat_ends_; }
  // Of a model that fills in what stands between two texts.
  const std::optional<FillMarks>& fill_marks() const { return fill_marks_; }
  StreamPinger& pinger() const { return pinger_; }
  SlotTable& slots() const { return slots_; }
  const SavedPrompts& saved_prompts() const { return saved_prompts_; }

  StatusOr<Json> ParseBody(std::string_view body) const;
  // The index of a level by its name or by its index as text. kInvalidArgument, with the names.
  StatusOr<int> FindLevel(std::string_view name) const;
  // Checks the model that a request names: "ID", an alias, or "ID@LEVEL", which chooses a level as
  // well (for clients that cannot send further fields). kNotFound with the code model_not_found.
  // -1: no level was named.
  StatusOr<int> FindModel(std::string_view name) const;
  // Whether prompt and answer fit. kInvalidArgument with the code context_length_exceeded.
  Status CheckLength(int64_t n_prompt, int64_t max_tokens, std::string_view prompt_param) const;
  // Whether a text can be a prompt at all, before it is tokenised: by the fewest tokens that it can
  // have. Errors as those of CheckLength.
  Status CheckText(std::string_view text, std::string_view prompt_param) const;
  // What an answer may have behind a prompt when the request does not say.
  int64_t RoomBehind(int64_t n_prompt) const;
  int max_prompt_tokens() const;

 private:
  bool HasModel(std::string_view name) const;

  ApiContext context_;
  TextOnlySupport text_only_;
  const ToolSupport* tool_support_;
  ChatEnds chat_ends_;
  std::optional<FillMarks> fill_marks_;
  mutable SlotTable slots_;
  SavedPrompts saved_prompts_;
  mutable StreamPinger pinger_;
};

}  // namespace kvlathe::api
