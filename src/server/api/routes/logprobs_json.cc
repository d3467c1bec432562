#include "server/api/routes/logprobs_json.h"

#include <algorithm>
#include <map>

#include "tokenizer/utf8.h"

namespace kvlathe::api {
namespace {

int64_t CountChars(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::string Utf8Text(std::string_view bytes) {
  std::string text;
  for (size_t pos = 0; pos < bytes.size();) {
    const Utf8Char c = ReadUtf8(bytes, pos);
    const bool is_whole = c.state == Utf8Char::State::kWhole;
    text += is_whole ? bytes.substr(pos, c.n_bytes) : kReplacementChar;
    pos += c.n_bytes;
  }
  return text;
}

Json ChatTokenJson(const Tokenizer& tokenizer, const TokenLogprob& token) {
  const std::string bytes = tokenizer.TokenBytes(token.token, /*keep_special=*/true);
  Json numbers = Json::array();
  for (const char byte : bytes) numbers.push_back(static_cast<unsigned char>(byte));
  return {{"token", Utf8Text(bytes)},
          {"logprob", JsonLogprob(token.logprob)},
          {"bytes", std::move(numbers)}};
}

}  // namespace

std::string LegacyTokenText(const Tokenizer& tokenizer, int32_t id) {
  std::string bytes = tokenizer.TokenBytes(id, /*keep_special=*/true);
  if (EndOfWellFormedRun(bytes, 0) == bytes.size()) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return text;
}

double JsonLogprob(float logprob) {
  constexpr float kLeast = -9999;
  return std::max(logprob, kLeast);
}

LegacyLogprobs::LegacyLogprobs(const Tokenizer* tokenizer, bool echoes,
                               std::span<const int32_t> text_before)
    : tokenizer_(tokenizer),
      detokenizer_(tokenizer, {.continues_text = !echoes, .keeps_special = true}) {
  if (echoes) return;
  for (const int32_t id : text_before) detokenizer_.Push(id);
}

void LegacyLogprobs::AddPrompt(std::span<const TokenLogprobs> logprobs, std::string_view text,
                               int64_t n_hidden, bool shows_special) {
  for (int64_t i = 0; i < std::ssize(logprobs); ++i) {
    const int32_t id = logprobs[i].chosen.token;
    std::string shown;
    if (i >= n_hidden && (shows_special || HasText(id))) shown = detokenizer_.Push(id);
    // SentencePiece puts a space in front of a text, also behind a special token in it.
    if (shown.starts_with(' ') && !text.starts_with(' ')) shown.erase(0, 1);
    text.remove_prefix(std::min(shown.size(), text.size()));
    Add(logprobs[i], /*has_value=*/i > 0, shown);
  }
}

void LegacyLogprobs::AddToken(const TokenLogprobs& logprobs) {
  const int32_t id = logprobs.chosen.token;
  Add(logprobs, /*has_value=*/true, HasText(id) ? detokenizer_.Push(id) : std::string());
}

bool LegacyLogprobs::HasText(int32_t id) const { return !tokenizer_->TokenBytes(id).empty(); }

void LegacyLogprobs::Add(const TokenLogprobs& logprobs, bool has_value, const std::string& shown) {
  const int32_t id = logprobs.chosen.token;
  tokens_.push_back(LegacyTokenText(*tokenizer_, id));
  text_offset_.push_back(n_chars_);
  n_chars_ += CountChars(shown);
  if (!has_value) {
    token_logprobs_.push_back(nullptr);
    top_logprobs_.push_back(nullptr);
    return;
  }
  token_logprobs_.push_back(JsonLogprob(logprobs.chosen.logprob));
  Json top = Json::object();
  const auto add = [&](const TokenLogprob& token) {
    const double logprob = JsonLogprob(token.logprob);
    const auto [entry, is_new] = top.emplace(LegacyTokenText(*tokenizer_, token.token), logprob);
    if (!is_new && entry->get<double>() < logprob) *entry = logprob;
  };
  std::ranges::for_each(logprobs.top, add);
  add(logprobs.chosen);
  top_logprobs_.push_back(std::move(top));
}

Json LegacyLogprobs::Take() {
  Json json = {{"text_offset", std::move(text_offset_)},
               {"token_logprobs", std::move(token_logprobs_)},
               {"tokens", std::move(tokens_)},
               {"top_logprobs", std::move(top_logprobs_)}};
  tokens_ = token_logprobs_ = top_logprobs_ = text_offset_ = Json::array();
  return json;
}

Json ChatLogprobJson(const Tokenizer& tokenizer, const TokenLogprobs& logprobs) {
  Json json = ChatTokenJson(tokenizer, logprobs.chosen);
  Json top = Json::array();
  for (const TokenLogprob& token : logprobs.top) top.push_back(ChatTokenJson(tokenizer, token));
  json["top_logprobs"] = std::move(top);
  return json;
}

std::vector<int32_t> LastTokens(std::span<const int32_t> ids) {
  constexpr size_t kMostBytesOfAChar = 4;
  const size_t n = std::min(ids.size(), kMostBytesOfAChar);
  const std::span<const int32_t> last = ids.last(n);
  return {last.begin(), last.end()};
}

}  // namespace kvlathe::api
