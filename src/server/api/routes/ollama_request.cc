#include "server/api/routes/ollama_request.h"

#include <algorithm>
#include <utility>

#include "server/api/api_error.h"

namespace kvlathe::api {
namespace {

constexpr std::string_view kLatest = ":latest";

// Fields of `options` with the names that OpenAI's API or this server has for them.
constexpr std::pair<const char*, const char*> kOptions[] = {
    {"temperature", "temperature"},
    {"top_p", "top_p"},
    {"top_k", "top_k"},
    {"min_p", "min_p"},
    {"seed", "seed"},
    {"stop", "stop"},
    {"repeat_penalty", "repetition_penalty"},
    {"presence_penalty", "presence_penalty"},
    {"frequency_penalty", "frequency_penalty"}};
// Of the machine that runs the model, which this server's own options say.
constexpr const char* kOfMachine[] = {"num_ctx",    "num_batch", "num_gpu",   "main_gpu",
                                      "num_thread", "use_mmap",  "use_mlock", "numa",
                                      "low_vram",   "num_keep",  "vocab_only"};

Status RefuseImages(const Json& json, const std::string& path) {
  const auto images = json.find("images");
  if (images == json.end() || images->is_null() || images->empty()) return OkStatus();
  return UnsupportedField(path + "images", "this model reads text alone");
}

StatusOr<Json> MessageOfOllama(const Json& message, size_t i) {
  const std::string path = fmt::format("messages[{}]", i);
  if (!message.is_object()) return FieldError(path, "this is {}; give an object", KindOf(message));
  KVL_RETURN_IF_ERROR(RefuseImages(message, path + "."));
  Json made = message;
  made.erase("images");
  if (made.contains("thinking")) made["reasoning_content"] = made["thinking"];
  if (made.contains("tool_name")) made["name"] = made["tool_name"];
  for (const char* const key : {"thinking", "tool_name"}) made.erase(key);
  const auto calls = made.find("tool_calls");
  if (calls == made.end() || !calls->is_array()) return made;
  int n_calls = 0;
  for (Json& call : *calls) {
    if (!call.is_object()) continue;
    if (!call.contains("id")) call["id"] = fmt::format("call_{}_{}", i, n_calls);
    ++n_calls;
    const auto function = call.find("function");
    if (function == call.end() || !function->is_object()) continue;
    const auto arguments = function->find("arguments");  // an object, where OpenAI has its text
    if (arguments != function->end() && arguments->is_object()) *arguments = Dump(*arguments);
  }
  return made;
}

Status AddFormat(const Json& json, Json* made) {
  const auto format = json.find("format");
  if (format == json.end() || format->is_null() || *format == "") return OkStatus();
  if (*format == "json") {
    (*made)["response_format"] = {{"type", "json_object"}};
  } else if (format->is_object()) {
    (*made)["response_format"] = {{"type", "json_schema"},
                                  {"json_schema", {{"name", "format"}, {"schema", *format}}}};
  } else {
    return FieldError("format", "give \"json\" or a JSON schema");
  }
  return OkStatus();
}

Status AddOptions(const Json& json, Json* made) {
  const auto options = json.find("options");
  if (options == json.end() || options->is_null()) return OkStatus();
  if (!options->is_object()) {
    return FieldError("options", "this is {}; give an object", KindOf(*options));
  }
  for (const auto& [theirs, ours] : kOptions) {
    if (options->contains(theirs)) (*made)[ours] = (*options)[theirs];
  }
  if (options->contains("num_predict")) (*made)["num_predict"] = (*options)["num_predict"];
  return OkStatus();
}

void NoteUnknown(const Json& json, const std::vector<std::string_view>& known,
                 std::vector<std::string>* unknown) {
  constexpr size_t kMostNoted = 8;
  const auto note = [&](const std::string& name) {
    if (unknown->size() < kMostNoted) unknown->push_back(name);
  };
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::find(known, key) == known.end()) note(key);
  }
  if (!json.contains("options") || !json["options"].is_object()) return;
  for (const auto& [key, value] : json["options"].items()) {
    const bool is_known =
        key == "num_predict" ||
        std::ranges::any_of(kOptions, [&](const auto& option) { return key == option.first; }) ||
        std::ranges::any_of(kOfMachine, [&](const char* name) { return key == name; });
    if (!is_known) note("options." + key);
  }
}

// What both routes have: how tokens are chosen, the form of the answer, thoughts.
StatusOr<Json> CommonFields(const ServiceState& state, const Json& json) {
  Json made = Json::object();
  const auto model = json.find("model");
  if (model == json.end() || !model->is_string()) return FieldError("model", "it is missing");
  made["model"] = OllamaModelName(state, model->get<std::string>());
  made["stream"] = true;
  if (json.contains("stream") && !json["stream"].is_null()) made["stream"] = json["stream"];
  for (const char* const key : {"kv", "rate"}) {
    if (json.contains(key)) made[key] = json[key];
  }
  if (json.contains("think") && json["think"].is_boolean()) {
    made["chat_template_kwargs"] = {{"enable_thinking", json["think"]}};
  }
  KVL_RETURN_IF_ERROR(AddFormat(json, &made));
  KVL_RETURN_IF_ERROR(AddOptions(json, &made));
  return made;
}

StatusOr<int64_t> ReadNumPredict(const ServiceState& state, int64_t n_prompt, const char* param,
                                 RequestFields* fields) {
  const auto n = fields->Integer("num_predict", -2, state.limits().MaxTokens());
  KVL_RETURN_IF_ERROR(fields->status());
  const bool is_open = !n || *n <= 0;  // -1: without end; -2: what the context holds
  KVL_RETURN_IF_ERROR(state.CheckLength(n_prompt, is_open ? 1 : *n, param));
  return is_open ? state.RoomBehind(n_prompt) : *n;
}

StatusOr<OllamaRequest> ReadChatForm(const ServiceState& state, const Json& made,
                                     const char* prompt_param) {
  RequestFields fields(made);
  OllamaRequest request;
  request.options = ReadGenerationOptions(state, &fields);
  KVL_RETURN_IF_ERROR(fields.status());
  KVL_ASSIGN_OR_RETURN(const ChatTask task, ReadChatTask(state, &fields));
  KVL_ASSIGN_OR_RETURN(request.chat, TokenizeChat(state, task, prompt_param, "format"));
  KVL_ASSIGN_OR_RETURN(request.max_tokens, ReadNumPredict(state, std::ssize(request.chat.tokens),
                                                          prompt_param, &fields));
  return request;
}

OllamaRequest LoadRequest(const ServiceState& state, const Json& made) {
  RequestFields fields(made);
  OllamaRequest request;
  request.options = ReadGenerationOptions(state, &fields);
  request.only_loads = true;
  return request;
}

StatusOr<OllamaRequest> ReadRawForm(const ServiceState& state, const Json& made,
                                    const std::string& prompt, const std::string& suffix) {
  if (made.contains("response_format")) {
    return UnsupportedField("format", "it goes with a chat template only, not with raw or suffix");
  }
  RequestFields fields(made);
  OllamaRequest request;
  request.options = ReadGenerationOptions(state, &fields);
  KVL_RETURN_IF_ERROR(fields.status());
  KVL_RETURN_IF_ERROR(state.CheckText(prompt, "prompt"));
  KVL_RETURN_IF_ERROR(state.CheckText(suffix, "suffix"));
  request.is_infill = !suffix.empty();
  if (request.is_infill) {
    KVL_RETURN_IF_ERROR(CheckFills(state, "suffix"));
    KVL_ASSIGN_OR_RETURN(request.chat.tokens,
                         TokensToFill(state.tokenizer(), *state.fill_marks(), {}, prompt, suffix));
  } else {
    KVL_ASSIGN_OR_RETURN(request.chat.tokens,
                         state.tokenizer().TryTokenize(prompt, /*add_bos=*/true));
  }
  KVL_ASSIGN_OR_RETURN(request.max_tokens,
                       ReadNumPredict(state, std::ssize(request.chat.tokens), "prompt", &fields));
  return request;
}

StatusOr<std::string> TextOf(const Json& json, const char* name) {
  RequestFields fields(json);
  std::string text = fields.String(name).value_or("");
  KVL_RETURN_IF_ERROR(fields.status());
  return text;
}

}  // namespace

std::string OllamaModelName(const ServiceState& state, std::string name) {
  if (name.ends_with(kLatest) && !state.FindModel(name).ok()) {
    name.resize(name.size() - kLatest.size());
  }
  return name;
}

StatusOr<OllamaRequest> ReadOllamaChat(const ServiceState& state, const Json& json) {
  KVL_ASSIGN_OR_RETURN(Json made, CommonFields(state, json));
  const auto messages = json.find("messages");
  Json turns = Json::array();
  if (messages != json.end() && messages->is_array()) {
    for (size_t i = 0; i < messages->size(); ++i) {
      KVL_ASSIGN_OR_RETURN(Json turn, MessageOfOllama((*messages)[i], i));
      turns.push_back(std::move(turn));
    }
  } else if (messages != json.end() && !messages->is_null()) {
    return FieldError("messages", "this is {}; give a list", KindOf(*messages));
  }
  if (turns.empty()) {
    KVL_RETURN_IF_ERROR(state.FindModel(made["model"].get<std::string>()).status());
    return LoadRequest(state, made);
  }
  const Json& last = turns.back();
  // The beginning of an answer, which goes on.
  if (last.contains("role") && last["role"] == "assistant" && !last.contains("tool_calls")) {
    made["continue_final_message"] = true;
    made["add_generation_prompt"] = false;
  }
  made["messages"] = std::move(turns);
  if (json.contains("tools") && !json["tools"].is_null()) made["tools"] = json["tools"];
  KVL_ASSIGN_OR_RETURN(OllamaRequest request, ReadChatForm(state, made, "messages"));
  NoteUnknown(json,
              {"model", "messages", "tools", "format", "options", "stream", "keep_alive", "think",
               "kv", "rate"},
              &request.options.unknown_fields);
  return request;
}

StatusOr<OllamaRequest> ReadOllamaGenerate(const ServiceState& state, const Json& json) {
  KVL_ASSIGN_OR_RETURN(Json made, CommonFields(state, json));
  KVL_RETURN_IF_ERROR(RefuseImages(json, ""));
  if (json.contains("context") && json["context"].is_array() && !json["context"].empty()) {
    return UnsupportedField("context", "this server keeps no conversations; use /api/chat");
  }
  KVL_ASSIGN_OR_RETURN(const std::string prompt, TextOf(json, "prompt"));
  KVL_ASSIGN_OR_RETURN(const std::string suffix, TextOf(json, "suffix"));
  KVL_ASSIGN_OR_RETURN(const std::string system, TextOf(json, "system"));
  if (prompt.empty() && suffix.empty()) {
    KVL_RETURN_IF_ERROR(state.FindModel(made["model"].get<std::string>()).status());
    return LoadRequest(state, made);
  }
  const bool is_raw = (json.contains("raw") && json["raw"] == true) ||
                      state.context().chat_template == nullptr || !suffix.empty();
  OllamaRequest request;
  if (is_raw) {
    KVL_ASSIGN_OR_RETURN(request, ReadRawForm(state, made, prompt, suffix));
  } else {
    Json turns = Json::array();
    if (!system.empty()) turns.push_back({{"role", "system"}, {"content", system}});
    turns.push_back({{"role", "user"}, {"content", prompt}});
    made["messages"] = std::move(turns);
    KVL_ASSIGN_OR_RETURN(request, ReadChatForm(state, made, "prompt"));
  }
  NoteUnknown(json,
              {"model", "prompt", "suffix", "system", "raw", "format", "options", "stream",
               "keep_alive", "think", "kv", "rate", "images", "context"},
              &request.options.unknown_fields);
  return request;
}

}  // namespace kvlathe::api
