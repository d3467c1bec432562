#include "server/api/service_state.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/check.h"
#include "server/api/api_error.h"

namespace kvlathe::api {
namespace {

Status TooLong(std::string_view prompt_param, const std::string& message) {
  return WithErrorCode(WithParam(Error(StatusCode::kInvalidArgument, "{}", message), prompt_param),
                       "context_length_exceeded");
}

}  // namespace

ServiceState::ServiceState(ApiContext context)
    : context_(std::move(context)),
      text_only_(context_.chat_template),
      tool_support_(context_.tool_support == nullptr ? &text_only_ : context_.tool_support),
      saved_prompts_(context_.prompt_folder),
      pinger_(context_.ping_seconds) {
  KVL_CHECK(context_.engine != nullptr && context_.tokenizer != nullptr);
  KVL_CHECK(!context_.levels.empty() && !context_.model_names.empty());
  KVL_CHECK_GE(context_.context_tokens, 1);
  fill_marks_ = FindFillMarks(*context_.tokenizer);
  if (context_.chat_template != nullptr) {
    chat_ends_ =
        FindChatEnds(*context_.tokenizer, context_.chat_template->answer_format(false).ends);
  }
}

StatusOr<Json> ServiceState::ParseBody(std::string_view body) const {
  return ParseJsonObject(
      body, {.max_depth = limits().max_json_depth, .max_values = limits().max_json_values});
}

StatusOr<int> ServiceState::FindLevel(std::string_view name) const {
  const std::vector<ApiLevel>& levels = context_.levels;
  for (size_t i = 0; i < levels.size(); ++i) {
    if (levels[i].name == name) return static_cast<int>(i);
  }
  int level_idx = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), level_idx);
  if (error == std::errc() && end == name.data() + name.size() && level_idx >= 0 &&
      level_idx < std::ssize(levels)) {
    return level_idx;
  }
  std::string names;
  for (const ApiLevel& level : levels) names += (names.empty() ? "" : ", ") + level.name;
  return FieldError("kv", "this server has no level '{}'; it has {} (or give an index from 0)",
                    name, names);
}

bool ServiceState::HasModel(std::string_view name) const {
  return std::ranges::find(context_.model_names, name) != context_.model_names.end();
}

StatusOr<int> ServiceState::FindModel(std::string_view name) const {
  if (HasModel(name)) return -1;
  const size_t at = name.find('@');
  if (at != std::string_view::npos && HasModel(name.substr(0, at))) {
    const StatusOr<int> level_idx = FindLevel(name.substr(at + 1));
    if (level_idx.ok()) return level_idx;
  }
  return WithErrorCode(
      WithParam(Error(StatusCode::kNotFound, "the model '{}' does not exist; this server has '{}'",
                      name, context_.model_names.front()),
                "model"),
      "model_not_found");
}

int ServiceState::max_prompt_tokens() const {
  const int limit = limits().max_prompt_tokens;
  return limit > 0 ? std::min(limit, context_.context_tokens) : context_.context_tokens;
}

Status ServiceState::CheckText(std::string_view text, std::string_view prompt_param) const {
  const int64_t n_tokens = tokenizer().MinTokens(text);
  if (n_tokens <= max_prompt_tokens()) return OkStatus();
  return TooLong(prompt_param,
                 fmt::format("{}: a text of {} bytes has at least {} tokens, but this server takes "
                             "at most {}; shorten it",
                             prompt_param, text.size(), n_tokens, max_prompt_tokens()));
}

Status ServiceState::CheckLength(int64_t n_prompt, int64_t max_tokens,
                                 std::string_view prompt_param) const {
  if (n_prompt > max_prompt_tokens()) {
    return TooLong(prompt_param,
                   fmt::format("{}: the prompt has {} tokens, but this server takes at most {}; "
                               "shorten it",
                               prompt_param, n_prompt, max_prompt_tokens()));
  }
  if (n_prompt + max_tokens <= context_.context_tokens) return OkStatus();
  return TooLong(prompt_param,
                 fmt::format("This model's maximum context length is {} tokens. However, you "
                             "requested {} tokens ({} in the {}, {} for the answer); shorten the "
                             "{} or ask for fewer tokens",
                             context_.context_tokens, n_prompt + max_tokens, n_prompt, prompt_param,
                             max_tokens, prompt_param));
}

int64_t ServiceState::RoomBehind(int64_t n_prompt) const {
  const int64_t room = std::max<int64_t>(context_.context_tokens - n_prompt, 1);
  return limits().max_tokens > 0 ? std::min<int64_t>(room, limits().max_tokens) : room;
}

}  // namespace kvlathe::api
