#include "load_generation/server_questions.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "load_generation/openai_stream.h"

namespace kvlathe {
namespace {

constexpr double kTimeout = 60;

// A JSON object, or an error that has the status and the server's words.
StatusOr<nlohmann::json> Ask(const AskedServer& server, const HttpCall& call) {
  KVL_ASSIGN_OR_RETURN(const HttpAnswer answer, CallAndWait(server.address, call));
  if (answer.status != 200) {
    return Error(answer.status == 404 ? StatusCode::kNotFound : StatusCode::kInternal,
                 "{}{}: the server answers {}: {}", server.address.HostHeader(), call.target,
                 answer.status, ErrorTextOf(answer.body));
  }
  nlohmann::json json = nlohmann::json::parse(answer.body, nullptr, false);
  if (!json.is_object()) {
    return Error(StatusCode::kDataLoss, "{}{}: the answer is not a JSON object",
                 server.address.HostHeader(), call.target);
  }
  return json;
}

// The first of "data" of /v1/models; null where there is none.
nlohmann::json FirstOf(const nlohmann::json& models) {
  const auto data = models.find("data");
  const bool has_one = data != models.end() && data->is_array() && !data->empty();
  return has_one ? data->front() : nlohmann::json();
}

std::optional<int> Positive(const nlohmann::json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) return std::nullopt;
  const nlohmann::json& value = object[key];
  if (!value.is_number_unsigned() || value.get<uint64_t>() < 1 ||
      value.get<uint64_t>() > INT32_MAX) {
    return std::nullopt;
  }
  return value.get<int>();
}

}  // namespace

StatusOr<std::string> FirstModel(const AskedServer& server, double patience_s) {
  const Stopwatch clock;
  for (;;) {
    auto models = Ask(server, {"GET", "/v1/models", "", server.api_key, kTimeout});
    if (models.ok()) {
      const nlohmann::json first = FirstOf(*models);
      if (first.is_object() && first.contains("id") && first["id"].is_string()) {
        return first["id"].get<std::string>();
      }
      return Error(StatusCode::kDataLoss, "{}/v1/models names no model; give one with --model",
                   server.address.HostHeader());
    }
    if (clock.Seconds() >= patience_s) return models.status();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

StatusOr<std::vector<int32_t>> TokenizeOnServer(const AskedServer& server, const std::string& model,
                                                std::string_view text) {
  const nlohmann::json body = {{"model", model},
                               {"prompt", text},
                               {"content", text},
                               {"add_special_tokens", false},
                               {"add_special", false}};
  HttpCall call{"POST", "/tokenize", "", server.api_key, kTimeout};
  call.body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  KVL_ASSIGN_OR_RETURN(const nlohmann::json answer, Ask(server, call));
  const auto tokens = answer.find("tokens");
  const auto is_id = [](const nlohmann::json& id) {
    return id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX;
  };
  if (tokens == answer.end() || !tokens->is_array() || !std::ranges::all_of(*tokens, is_id)) {
    return Error(StatusCode::kDataLoss, "{}/tokenize: no list of ids in \"tokens\"",
                 server.address.HostHeader());
  }
  return tokens->get<std::vector<int32_t>>();
}

StatusOr<int> VocabSizeOfServer(const AskedServer& server) {
  if (const auto info = Ask(server, {"GET", "/tokenizer_info", "", server.api_key, kTimeout});
      info.ok()) {
    if (const auto size = Positive(*info, "vocab_size")) return *size;
  }
  if (const auto models = Ask(server, {"GET", "/v1/models", "", server.api_key, kTimeout});
      models.ok()) {
    const nlohmann::json first = FirstOf(*models);
    if (first.is_object() && first.contains("meta")) {
      if (const auto size = Positive(first["meta"], "n_vocab")) return *size;
    }
  }
  return Error(StatusCode::kNotFound,
               "{} does not say how large its vocabulary is; give --vocab-size",
               server.address.HostHeader());
}

}  // namespace kvlathe
