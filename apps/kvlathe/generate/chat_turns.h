// A conversation must fit a context, and its cache is kept; the arithmetic here says what is
// dropped and what need not be read again.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/session.h"
#include "kv/cache_layout.h"

namespace kvlathe {

struct ChatMessage {
  std::string role;  // system, user or assistant
  std::string content;
};

// The tokens of the rendered conversation.
using TokenizeChat =
    std::function<StatusOr<std::vector<int32_t>>(std::span<const ChatMessage> messages)>;

struct FittedChat {
  std::vector<ChatMessage> messages;
  std::vector<int32_t> prompt;  // `messages` as tokens
  int n_dropped = 0;            // turns, each a message of the user with its answer
};

// Drops the oldest turns until `n_answer` tokens are left of the context behind the prompt. The
// system message and the last message stay; when they are all that is left, room for one token is
// enough. kInvalidArgument when there is not even that.
StatusOr<FittedChat> FitChat(std::vector<ChatMessage> messages, int context_tokens, int n_answer,
                             const TokenizeChat& tokenize);

// "the 3 oldest turns were dropped", in a sentence about the context.
std::string DroppedTurnsText(int n_dropped, int context_tokens);

bool BeginsWith(std::span<const int32_t> tokens, std::span<const int32_t> prefix);

// Makes the first `n_cached` tokens, all that the session's cache holds, a prompt to go on from as
// if it had been read now: the last generated token is not among them, penalties count none of them
// as output, and the seed's draws begin afresh. So an answer does not depend on whether the cache
// was kept. False when the first turn was not read to its end, whose place in the cache is then
// not what the cache was told; such a session cannot go on with another prompt.
bool CutToCache(int n_cached, Session* session);

// Whether reading the rest of a prompt of `n_tokens` behind a cache is expected to take no longer
// than reading all of it. A step ends wherever the layout seals or drops entries, which behind the
// first prompt can be after every token; then each costs a pass over the weights, which reading a
// prompt in one go spreads over many tokens.
bool IsWorthContinuing(const CacheLayout& layout, int64_t n_first_prompt, int64_t n_cached,
                       int64_t n_tokens);

}  // namespace kvlathe
