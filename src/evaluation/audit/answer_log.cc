#include "evaluation/audit/answer_log.h"

#include <filesystem>
#include <limits>
#include <utility>

namespace kvlathe {
namespace {

Status LacksField(std::string_view name, std::string_view what) {
  return Error(StatusCode::kDataLoss, "its \"{}\" is missing or no {}", name, what);
}

StatusOr<std::string> TextField(const nlohmann::json& line, const char* name) {
  const auto field = line.find(name);
  if (field == line.end() || !field->is_string()) return LacksField(name, "text");
  return field->get<std::string>();
}

StatusOr<int64_t> CountField(const nlohmann::json& line, const char* name) {
  const auto field = line.find(name);
  if (field == line.end() || !field->is_number_integer() || *field < 0 ||
      *field > std::numeric_limits<int32_t>::max()) {
    return LacksField(name, "count");
  }
  return field->get<int64_t>();
}

StatusOr<std::vector<int32_t>> TokensField(const nlohmann::json& line) {
  const auto field = line.find("tokens");
  if (field == line.end() || !field->is_array()) return LacksField("tokens", "list");
  std::vector<int32_t> tokens;
  for (const nlohmann::json& id : *field) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max()) {
      return LacksField("tokens", "list of token ids");
    }
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

}  // namespace

nlohmann::ordered_json ToJson(const LoggedAnswer& logged) {
  nlohmann::ordered_json json = {{"id", logged.id},
                                 {"model_hash", logged.model_hash},
                                 {"kv", logged.kv},
                                 {"rate", nullptr},
                                 {"read", logged.answer.n_read},
                                 {"cache_prompt", logged.answer.n_cache_prompt},
                                 {"max_tokens", logged.answer.n_generated},
                                 {"tokens", logged.answer.tokens}};
  if (logged.rate.has_value()) json["rate"] = *logged.rate;
  return json;
}

StatusOr<LoggedAnswer> ParseLoggedAnswer(const nlohmann::json& line) {
  LoggedAnswer logged;
  KVL_ASSIGN_OR_RETURN(logged.id, TextField(line, "id"));
  KVL_ASSIGN_OR_RETURN(logged.model_hash, TextField(line, "model_hash"));
  KVL_ASSIGN_OR_RETURN(logged.kv, TextField(line, "kv"));
  const auto rate = line.find("rate");
  if (rate == line.end() || !(rate->is_null() || rate->is_number())) {
    return LacksField("rate", "number or null");
  }
  if (rate->is_number()) logged.rate = rate->get<double>();
  KVL_ASSIGN_OR_RETURN(logged.answer.n_read, CountField(line, "read"));
  KVL_ASSIGN_OR_RETURN(logged.answer.n_cache_prompt, CountField(line, "cache_prompt"));
  KVL_ASSIGN_OR_RETURN(logged.answer.n_generated, CountField(line, "max_tokens"));
  KVL_ASSIGN_OR_RETURN(logged.answer.tokens, TokensField(line));
  return logged;
}

StatusOr<AnswerLogReader> AnswerLogReader::Open(const std::string& path) {
  std::error_code error;
  std::ifstream file;
  if (std::filesystem::is_regular_file(path, error)) file.open(path);
  if (!file.is_open()) {
    return Error(StatusCode::kNotFound, "{}: no file that can be read; give the log of a server",
                 path);
  }
  return AnswerLogReader(path, std::move(file));
}

StatusOr<std::optional<LoggedAnswer>> AnswerLogReader::Next() {
  std::string text;
  while (std::getline(file_, text)) {
    ++n_lines_;
    if (!text.starts_with('{')) continue;
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (line.is_discarded()) {
      return Error(StatusCode::kDataLoss,
                   "{}:{}: this line is cut off or damaged; take it out of the log", path_,
                   n_lines_);
    }
    const auto event = line.find("event");
    if (event == line.end() || *event != kAnswerEvent) continue;
    StatusOr<LoggedAnswer> logged = ParseLoggedAnswer(line);
    if (logged.ok()) return std::optional<LoggedAnswer>(*std::move(logged));
    return Error(StatusCode::kDataLoss, "{}:{}: an answer that cannot be read: {}", path_, n_lines_,
                 MessageOf(logged.status()));
  }
  return std::optional<LoggedAnswer>();
}

}  // namespace kvlathe
