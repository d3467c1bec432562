#include "server/prefill/prompt_question.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

namespace kvlathe::server {
namespace {

using Json = nlohmann::json;

constexpr size_t kDigestDigits = 64;
constexpr size_t kMostSpecBytes = 4096;

bool IsDigest(const std::string& text) {
  return text.size() == kDigestDigits && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool ReadText(const Json& object, const char* name, std::string* text) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_string()) return false;
  *text = field->get<std::string>();
  return true;
}

bool ReadTokens(const Json& object, std::vector<int32_t>* tokens) {
  const auto field = object.find("tokens");
  if (field == object.end() || !field->is_array()) return false;
  tokens->reserve(field->size());
  for (const Json& token : *field) {
    if (!token.is_number_unsigned()) return false;
    const auto id = token.get<uint64_t>();
    if (id > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) return false;
    tokens->push_back(static_cast<int32_t>(id));
  }
  return true;
}

bool ReadRate(const Json& object, std::optional<double>* rate) {
  const auto field = object.find("rate");
  if (field == object.end()) return true;
  if (!field->is_number()) return false;
  *rate = field->get<double>();
  return **rate >= 0 && **rate < 1;
}

}  // namespace

std::string ToJson(const PromptQuestion& question) {
  Json object = {{"kv", question.kv},
                 {"place", question.place},
                 {"salt", question.salt},
                 {"tokens", question.tokens}};
  if (question.rate.has_value()) object["rate"] = *question.rate;
  return object.dump();
}

StatusOr<PromptQuestion> ParsePromptQuestion(std::string_view json) {
  // Nothing in a question is nested, so neither is what is parsed.
  const auto is_flat = [](int depth, Json::parse_event_t, Json&) { return depth <= 2; };
  const Json object = Json::parse(json, is_flat, /*allow_exceptions=*/false);
  PromptQuestion question;
  if (!object.is_object() || !ReadText(object, "kv", &question.kv) ||
      !ReadText(object, "place", &question.place) || !ReadText(object, "salt", &question.salt) ||
      !ReadRate(object, &question.rate) || !ReadTokens(object, &question.tokens) ||
      question.kv.size() > kMostSpecBytes || !IsDigest(question.place) ||
      !IsDigest(question.salt)) {
    return Error(StatusCode::kInvalidArgument,
                 "the body is not the question of a decode replica: an object with kv, place, "
                 "salt, tokens and maybe rate");
  }
  return question;
}

}  // namespace kvlathe::server
