#include "kvlathe/generate/chat_turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kv/retention/retention_plan.h"
#include "kv/seal/seal_schedule.h"

namespace kvlathe {
namespace {

// A pass over the weights takes about as long as the arithmetic of so many tokens: where the
// processor is slower in relation to its memory fewer, where it multiplies matrices by itself more.
constexpr int64_t kTokensPerPass = 32;

// False when there is none in front of the last message.
bool DropOldestTurn(std::vector<ChatMessage>* messages) {
  const auto is_of_user = [](const ChatMessage& message) { return message.role == "user"; };
  const auto oldest = std::find_if(messages->begin(), messages->end(), is_of_user);
  if (oldest == messages->end()) return false;
  const auto next = std::find_if(oldest + 1, messages->end(), is_of_user);
  if (next == messages->end()) return false;
  messages->erase(oldest, next);
  return true;
}

}  // namespace

StatusOr<FittedChat> FitChat(std::vector<ChatMessage> messages, int context_tokens, int n_answer,
                             const TokenizeChat& tokenize) {
  FittedChat fitted = {std::move(messages), {}, 0};
  for (;;) {
    KVL_ASSIGN_OR_RETURN(fitted.prompt, tokenize(fitted.messages));
    const int n_left = context_tokens - static_cast<int>(fitted.prompt.size());
    if (n_left >= n_answer) return fitted;
    if (DropOldestTurn(&fitted.messages)) {
      ++fitted.n_dropped;
      continue;
    }
    if (n_left >= 1) return fitted;
    return Error(
        StatusCode::kInvalidArgument,
        "this message alone makes a prompt of {} tokens, but the context is {}; shorten it",
        fitted.prompt.size(), context_tokens);
  }
}

std::string DroppedTurnsText(int n_dropped, int context_tokens) {
  return fmt::format("the conversation no longer fits the context of {} tokens; {}", context_tokens,
                     n_dropped == 1 ? "the oldest turn was dropped"
                                    : fmt::format("the {} oldest turns were dropped", n_dropped));
}

bool BeginsWith(std::span<const int32_t> tokens, std::span<const int32_t> prefix) {
  return tokens.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), tokens.begin());
}

bool CutToCache(int n_cached, Session* session) {
  if (session->turn_ends.empty() || n_cached < session->turn_ends.front()) return false;
  const int n_first = session->turn_ends.front();
  session->tokens.resize(static_cast<size_t>(n_cached));
  // Prompts and what was generated alternate: what was generated is nothing, twice.
  session->turn_ends = {n_first, n_first, n_cached, n_cached};
  session->n_draws = 0;
  return true;
}

bool IsWorthContinuing(const CacheLayout& layout, int64_t n_first_prompt, int64_t n_cached,
                       int64_t n_tokens) {
  int64_t n_passes = 0;
  for (int64_t n = n_cached; n < n_tokens; ++n_passes) {
    int64_t end = NextSealPoint(layout, n, n_first_prompt);
    if (layout.DropsEntries()) {
      const PromptPlace place = {layout.n_sink, n_first_prompt};
      end = std::min(end, NextPrunePoint(*layout.retention, place, n));
    }
    n = end;
  }
  return n_passes * kTokensPerPass <= n_tokens || n_passes <= 1;
}

}  // namespace kvlathe
