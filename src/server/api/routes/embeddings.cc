// Embeddings, in the forms of OpenAI, llama.cpp's server and Ollama: hidden states of texts, pooled
// and of length 1.
#include <atomic>
#include <bit>
#include <cmath>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "server/api/api_error.h"
#include "server/api/routes/answer_json.h"
#include "server/api/routes/generation_options.h"
#include "server/api/routes/ollama_request.h"
#include "server/api/routes/routes.h"

namespace kvlathe::api {
namespace {

static_assert(std::endian::native == std::endian::little, "base64 has little-endian floats");

struct EmbeddingRequest {
  GenerationOptions options;
  std::vector<std::vector<int32_t>> prompts;
  Pooling pooling = Pooling::kMean;
  bool is_base64 = false;
  double seconds = 0;  // that it took
  // Makes the answer of embeddings that are in the order of the prompts.
  std::function<Json(const EmbeddingRequest&, std::vector<std::vector<float>>)> answer;

  int64_t n_tokens() const {
    int64_t n = 0;
    for (const auto& prompt : prompts) n += std::ssize(prompt);
    return n;
  }
};

void Normalise(std::vector<float>* numbers) {
  double sum = 0;
  for (const float number : *numbers) sum += static_cast<double>(number) * number;
  if (sum == 0) return;
  const double scale = 1 / std::sqrt(sum);
  for (float& number : *numbers) number = static_cast<float>(number * scale);
}

// A text, a list of texts, a list of token ids or a list of such lists.
Status ReadInputs(const ServiceState& state, const char* name, const Json* input,
                  EmbeddingRequest* request) {
  constexpr std::string_view kForms = "give a text, token ids, or a list of one of them";
  if (input == nullptr) return FieldError(name, "it is missing; {}", kForms);
  const bool is_one =
      input->is_string() || (input->is_array() && !input->empty() && input->front().is_number());
  const Json inputs = is_one ? Json::array({*input}) : *input;
  if (!inputs.is_array() || inputs.empty()) {
    return FieldError(name, "this is {}; {}", inputs.is_array() ? "empty" : KindOf(inputs), kForms);
  }
  if (std::ssize(inputs) > state.limits().max_choices) {
    return FieldError(name, "{} texts; this server takes at most {} in one request", inputs.size(),
                      state.limits().max_choices);
  }
  for (const Json& one : inputs) {
    std::vector<int32_t> prompt;
    if (one.is_string()) {
      const auto& text = one.get_ref<const std::string&>();
      KVL_RETURN_IF_ERROR(state.CheckText(text, name));
      KVL_ASSIGN_OR_RETURN(prompt, state.tokenizer().TryTokenize(text, /*add_bos=*/true));
    } else if (one.is_array()) {
      for (const Json& id : one) {
        if (!id.is_number_integer() || id < 0 || id >= state.vocab_size()) {
          return FieldError(name, "{} is no token id; ids go from 0 to {}", Dump(id),
                            state.vocab_size() - 1);
        }
        prompt.push_back(id.get<int32_t>());
      }
    } else {
      return FieldError(name, "the list has {} in it; {}", KindOf(one), kForms);
    }
    if (prompt.empty()) return FieldError(name, "a text has no tokens");
    KVL_RETURN_IF_ERROR(state.CheckLength(std::ssize(prompt), 1, name));
    request->prompts.push_back(std::move(prompt));
  }
  return OkStatus();
}

Json NumbersJson(const EmbeddingRequest& request, const std::vector<float>& numbers) {
  if (request.is_base64) {
    const auto* const bytes = reinterpret_cast<const char*>(numbers.data());
    return absl::Base64Escape({bytes, numbers.size() * sizeof(float)});
  }
  return numbers;
}

Json OpenAiAnswer(const EmbeddingRequest& request, std::vector<std::vector<float>> embeddings) {
  Json data = Json::array();
  for (size_t i = 0; i < embeddings.size(); ++i) {
    data.push_back({{"object", "embedding"},
                    {"index", i},
                    {"embedding", NumbersJson(request, embeddings[i])}});
  }
  return {{"object", "list"},
          {"data", std::move(data)},
          {"model", request.options.model},
          {"usage", {{"prompt_tokens", request.n_tokens()}, {"total_tokens", request.n_tokens()}}}};
}

// llama.cpp has a list of embeddings for each input, as models without pooling have several.
Json LlamaCppAnswer(const EmbeddingRequest&, std::vector<std::vector<float>> embeddings) {
  Json answer = Json::array();
  for (size_t i = 0; i < embeddings.size(); ++i) {
    answer.push_back({{"index", i}, {"embedding", Json::array({embeddings[i]})}});
  }
  return answer;
}

Json OllamaAnswer(const EmbeddingRequest& request, std::vector<std::vector<float>> embeddings) {
  return {{"model", request.options.model},
          {"embeddings", std::move(embeddings)},
          {"total_duration", static_cast<int64_t>(request.seconds * 1e9)},
          {"load_duration", 0},  // the model is there
          {"prompt_eval_count", request.n_tokens()}};
}

Json OldOllamaAnswer(const EmbeddingRequest&, std::vector<std::vector<float>> embeddings) {
  return {{"embedding", std::move(embeddings.front())}};
}

// The requests of the engine for one request of HTTP, until the last of them has ended.
class EmbeddingRun : public std::enable_shared_from_this<EmbeddingRun> {
 public:
  EmbeddingRun(const ServiceState& state, ExchangePtr exchange, EmbeddingRequest request)
      : state_(state),
        exchange_(std::move(exchange)),
        request_(std::move(request)),
        embeddings_(request_.prompts.size()) {}

  Status Start();

 private:
  void Cancel() {
    for (const Engine::RequestId id : ids_) state_.context().engine->Cancel(id);
  }
  void TakeOutcome(size_t i, const RequestOutcome& outcome);
  void AnswerAll();

  const ServiceState& state_;
  ExchangePtr exchange_;
  EmbeddingRequest request_;
  std::vector<Engine::RequestId> ids_;  // constant once all are submitted
  std::atomic<bool> is_gone_ = false;   // the client
  std::mutex mutex_;
  // Under mutex_.
  std::vector<std::vector<float>> embeddings_;
  Status failure_;
  size_t n_ended_ = 0;
};

Status EmbeddingRun::Start() {
  for (size_t i = 0; i < request_.prompts.size(); ++i) {
    Request request;
    request.prompt = request_.prompts[i];
    request.max_tokens = 1;
    request.level = request_.options.level_idx;
    request.rate = request_.options.rate;
    request.pooling = request_.pooling;
    request.prefix_salt = exchange_->request().tenant;
    StatusOr<Engine::RequestId> id = state_.context().engine->Submit(
        std::move(request), nullptr,
        [self = shared_from_this(), i](Engine::RequestId, const RequestOutcome& outcome) {
          self->TakeOutcome(i, outcome);
        });
    if (!id.ok()) {
      Cancel();
      return id.status();
    }
    ids_.push_back(*id);
  }
  exchange_->reply()->OnGone([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->is_gone_ = true;
    self->Cancel();
  });
  return OkStatus();
}

void EmbeddingRun::TakeOutcome(size_t i, const RequestOutcome& outcome) {
  {
    const std::lock_guard lock(mutex_);
    failure_.Update(outcome.status);
    embeddings_[i] = outcome.embedding;
    if (++n_ended_ < request_.prompts.size()) return;
  }
  exchange_->reply()->Post([self = shared_from_this()] { self->AnswerAll(); });
}

void EmbeddingRun::AnswerAll() {
  if (is_gone_) {
    exchange_->record().finish_reason = "abort";
    return exchange_->CloseGone();
  }
  exchange_->record().finish_reason = failure_.ok() ? "stop" : "error";
  if (!failure_.ok()) return exchange_->SendError(ApiErrorOf(failure_, /*is_refusal=*/false));
  for (std::vector<float>& embedding : embeddings_) Normalise(&embedding);
  request_.seconds = exchange_->seconds();
  exchange_->Send(request_.answer(request_, std::move(embeddings_)));
}

Status ReadOptions(const ServiceState& state, RequestFields* fields, EmbeddingRequest* request) {
  request->options = ReadGenerationOptions(state, fields);
  const std::string pooling = fields->String("pooling").value_or("mean");
  if (pooling != "mean" && pooling != "last") {
    fields->Fail(FieldError("pooling", "give mean or last"));
  }
  request->pooling = pooling == "last" ? Pooling::kLast : Pooling::kMean;
  const std::string encoding = fields->String("encoding_format").value_or("float");
  if (encoding != "float" && encoding != "base64") {
    fields->Fail(FieldError("encoding_format", "give float or base64"));
  }
  request->is_base64 = encoding == "base64";
  if (fields->Has("dimensions")) {
    fields->Fail(UnsupportedField("dimensions", "embeddings have all of the model's dimensions"));
  }
  if (request->options.is_stream) {
    fields->Fail(FieldError("stream", "embeddings are no stream; leave it out"));
  }
  return fields->status();
}

void Embed(const ServiceState& state, const ExchangePtr& exchange, Json json, const char* name,
           decltype(EmbeddingRequest::answer) answer) {
  EmbeddingRequest request;
  request.answer = std::move(answer);
  const auto run = [&]() -> Status {
    RequestFields fields(json);
    KVL_RETURN_IF_ERROR(ReadOptions(state, &fields, &request));
    KVL_RETURN_IF_ERROR(ReadInputs(state, name, fields.Find(name), &request));
    request.options.unknown_fields = fields.Unasked();
    RecordRequest(state, request.options, static_cast<int>(request.prompts.size()),
                  request.n_tokens(), exchange.get());
    return std::make_shared<EmbeddingRun>(state, exchange, std::move(request))->Start();
  };
  const Status status = run();
  if (status.ok()) return;
  exchange->record().level.clear();  // it was not accepted
  exchange->SendError(status);
}

// The body of Ollama's clients with the model's name as this server knows it.
StatusOr<Json> OllamaBody(const ServiceState& state, const std::string& body) {
  KVL_ASSIGN_OR_RETURN(Json json, state.ParseBody(body));
  for (const char* const key : {"keep_alive", "truncate", "options"}) json.erase(key);
  if (json.contains("model") && json["model"].is_string()) {
    json["model"] = OllamaModelName(state, json["model"].get<std::string>());
  }
  return json;
}

}  // namespace

void HandleEmbeddings(const ServiceState& state, const ExchangePtr& exchange) {
  StatusOr<Json> json = state.ParseBody(exchange->request().body);
  if (!json.ok()) return exchange->SendError(json.status());
  Embed(state, exchange, *std::move(json), "input", OpenAiAnswer);
}

void HandleLlamaCppEmbedding(const ServiceState& state, const ExchangePtr& exchange) {
  StatusOr<Json> json = state.ParseBody(exchange->request().body);
  if (!json.ok()) return exchange->SendError(json.status());
  const char* const name = json->contains("input") ? "input" : "content";
  Embed(state, exchange, *std::move(json), name, LlamaCppAnswer);
}

void HandleOllamaEmbed(const ServiceState& state, const ExchangePtr& exchange) {
  StatusOr<Json> json = OllamaBody(state, exchange->request().body);
  if (!json.ok()) return exchange->SendError(json.status());
  Embed(state, exchange, *std::move(json), "input", OllamaAnswer);
}

void HandleOllamaEmbeddings(const ServiceState& state, const ExchangePtr& exchange) {
  StatusOr<Json> json = OllamaBody(state, exchange->request().body);
  if (!json.ok()) return exchange->SendError(json.status());
  Embed(state, exchange, *std::move(json), "prompt", OldOllamaAnswer);
}

}  // namespace kvlathe::api
