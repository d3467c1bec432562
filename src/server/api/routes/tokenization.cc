// /tokenize, /detokenize and /tokenizer_info, in the forms of vLLM and of llama.cpp's server.
#include <optional>
#include <utility>
#include <vector>

#include "server/api/api_error.h"
#include "server/api/request_fields.h"
#include "server/api/routes/chat_request.h"
#include "server/api/routes/logprobs_json.h"
#include "server/api/routes/routes.h"

namespace kvlathe::api {
namespace {

Status CheckModel(const ServiceState& state, RequestFields* fields) {
  const auto model = fields->String("model");
  KVL_RETURN_IF_ERROR(fields->status());
  return model ? state.FindModel(*model).status() : OkStatus();
}

// llama.cpp: {"content"} -> {"tokens"}, with pieces [{"id","piece"}].
StatusOr<Json> TokenizeContent(const ServiceState& state, RequestFields* fields) {
  const auto content = fields->String("content");
  const bool adds_special = fields->Bool("add_special").value_or(false);
  const bool parses_special = fields->Bool("parse_special").value_or(true);
  const bool with_pieces = fields->Bool("with_pieces").value_or(false);
  KVL_RETURN_IF_ERROR(fields->status());
  KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                       state.tokenizer().TryTokenize(*content, adds_special, parses_special));
  if (!with_pieces) return Json{{"tokens", ids}};
  Json tokens = Json::array();
  for (const int32_t id : ids) {
    tokens.push_back({{"id", id}, {"piece", LegacyTokenText(state.tokenizer(), id)}});
  }
  return Json{{"tokens", std::move(tokens)}};
}

// vLLM: {"prompt"} or {"messages"} -> {"count","max_model_len","tokens","token_strs"}.
StatusOr<Json> TokenizePrompt(const ServiceState& state, RequestFields* fields) {
  const auto prompt = fields->String("prompt");
  const bool returns_texts = fields->Bool("return_token_strs").value_or(false);
  const bool adds_special = fields->Bool("add_special_tokens").value_or(true);
  KVL_RETURN_IF_ERROR(fields->status());
  std::vector<int32_t> ids;
  if (prompt) {
    KVL_ASSIGN_OR_RETURN(ids, state.tokenizer().TryTokenize(*prompt, adds_special));
  } else if (fields->Has("messages")) {
    KVL_ASSIGN_OR_RETURN(const ChatTask task, ReadChatTask(state, fields));
    KVL_ASSIGN_OR_RETURN(const ChatPrompt chat, RenderChat(state, task));
    KVL_ASSIGN_OR_RETURN(ids, TokensOf(state, chat));
  } else {
    return FieldError("prompt", "give prompt, messages or content");
  }
  Json texts = nullptr;
  if (returns_texts) {
    texts = Json::array();
    for (const int32_t id : ids) texts.push_back(LegacyTokenText(state.tokenizer(), id));
  }
  return Json{{"count", ids.size()},
              {"max_model_len", state.context().context_tokens},
              {"tokens", ids},
              {"token_strs", std::move(texts)}};
}

StatusOr<Json> Tokenize(const ServiceState& state, std::string_view body) {
  KVL_ASSIGN_OR_RETURN(const Json json, state.ParseBody(body));
  RequestFields fields(json);
  KVL_RETURN_IF_ERROR(CheckModel(state, &fields));
  if (fields.Has("content")) return TokenizeContent(state, &fields);
  return TokenizePrompt(state, &fields);
}

StatusOr<Json> Detokenize(const ServiceState& state, std::string_view body) {
  KVL_ASSIGN_OR_RETURN(const Json json, state.ParseBody(body));
  RequestFields fields(json);
  KVL_RETURN_IF_ERROR(CheckModel(state, &fields));
  const Json* const tokens = fields.Array("tokens");
  KVL_RETURN_IF_ERROR(fields.status());
  if (tokens == nullptr) return FieldError("tokens", "give a list of token ids");
  std::vector<int32_t> ids;
  for (const Json& id : *tokens) {
    if (!id.is_number_integer() || id < 0 || id >= state.vocab_size()) {
      return FieldError("tokens", "{} is no token id; ids go from 0 to {}", Dump(id),
                        state.vocab_size() - 1);
    }
    ids.push_back(id.get<int32_t>());
  }
  const std::string text = state.tokenizer().Detokenize(ids, /*keep_special=*/true);
  return Json{{"prompt", text}, {"content", text}};
}

void Answer(const ExchangePtr& exchange, const StatusOr<Json>& json) {
  if (!json.ok()) return exchange->SendError(json.status());
  exchange->Send(*json);
}

}  // namespace

void HandleTokenize(const ServiceState& state, const ExchangePtr& exchange) {
  Answer(exchange, Tokenize(state, exchange->request().body));
}

void HandleDetokenize(const ServiceState& state, const ExchangePtr& exchange) {
  Answer(exchange, Detokenize(state, exchange->request().body));
}

// llama.cpp: {"messages"} -> {"prompt"}, without an answer.
void HandleApplyTemplate(const ServiceState& state, const ExchangePtr& exchange) {
  const auto apply = [&]() -> StatusOr<Json> {
    KVL_ASSIGN_OR_RETURN(const Json json, state.ParseBody(exchange->request().body));
    RequestFields fields(json);
    KVL_RETURN_IF_ERROR(CheckModel(state, &fields));
    KVL_ASSIGN_OR_RETURN(const ChatTask task, ReadChatTask(state, &fields));
    KVL_ASSIGN_OR_RETURN(ChatPrompt chat, RenderChat(state, task));
    return Json{{"prompt", std::move(chat.text.text)}};
  };
  Answer(exchange, apply());
}

void HandleTokenizerInfo(const ServiceState& state, const ExchangePtr& exchange) {
  const Tokenizer& tokenizer = state.tokenizer();
  const auto text_of = [&](const std::optional<int32_t>& id) {
    return id ? Json(tokenizer.TokenBytes(*id, /*keep_special=*/true)) : Json(nullptr);
  };
  const ChatTemplate* const found = state.context().chat_template;
  const std::string chat_template = found == nullptr ? "" : found->source();
  exchange->Send({{"bos_token", text_of(tokenizer.bos_id())},
                  {"eos_token", text_of(tokenizer.eos_id())},
                  {"pad_token", nullptr},
                  {"vocab_size", tokenizer.vocab_size()},
                  {"model_max_length", state.context().context_tokens},
                  {"chat_template", chat_template.empty() ? Json(nullptr) : Json(chat_template)}});
}

}  // namespace kvlathe::api
