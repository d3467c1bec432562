// OpenAI's API has two forms of log-probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/api/tool_support.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe::api {

inline constexpr int kMaxTopLogprobs = 20;

// The text of a token where it stands for the token: special tokens are written out, and bytes that
// are no whole characters are "bytes:\xe2\x80", as in OpenAI's completions.
std::string LegacyTokenText(const Tokenizer& tokenizer, int32_t id);

// What JSON can hold: no infinity; OpenAI's API has -9999 there.
double JsonLogprob(float logprob);

// Of /v1/completions: tokens, token_logprobs, top_logprobs and text_offset, token by token.
//
// top_logprobs has the likeliest tokens by their texts, and always the token itself; where several
// tokens have one text, the likeliest of them. text_offset counts characters (code points) of the
// choice's text from its beginning, the echoed prompt included.
class LegacyLogprobs {
 public:
  // echoes: the text begins with the prompt. Otherwise it continues `text_before`.
  LegacyLogprobs(const Tokenizer* tokenizer, bool echoes, std::span<const int32_t> text_before);

  // The tokens of the prompt, which `text` shows but for the first n_hidden of them (BOS).
  // `logprobs` has an entry for each; the first has no value: null. shows_special: whether special
  // tokens stand in the text.
  void AddPrompt(std::span<const TokenLogprobs> logprobs, std::string_view text, int64_t n_hidden,
                 bool shows_special);
  void AddToken(const TokenLogprobs& logprobs);
  // What was added since the last call.
  Json Take();
  bool is_empty() const { return tokens_.empty(); }

 private:
  // has_value: there is something before the token; shown: what the text has of it.
  void Add(const TokenLogprobs& logprobs, bool has_value, const std::string& shown);
  bool HasText(int32_t id) const;  // special tokens have none

  const Tokenizer* tokenizer_;
  StreamingDetokenizer detokenizer_;
  int64_t n_chars_ = 0;
  Json tokens_ = Json::array();
  Json token_logprobs_ = Json::array();
  Json top_logprobs_ = Json::array();
  Json text_offset_ = Json::array();
};

// Of chats and responses: {"token","logprob","bytes","top_logprobs":[...]}.
Json ChatLogprobJson(const Tokenizer& tokenizer, const TokenLogprobs& logprobs);

// The tokens at the end of `ids` that decide how what follows becomes text: more than the bytes of
// a character.
std::vector<int32_t> LastTokens(std::span<const int32_t> ids);

}  // namespace kvlathe::api
