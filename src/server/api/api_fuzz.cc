// Any bytes as the body of any POST: one answer comes, of a status that docs/server_api.md has, its
// JSON is well-formed, errors have their four fields, and the engine is empty behind it.
//
// The first byte of an input chooses the route. The model is small and random, and its tokens are
// bytes.
#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "chat/chat_template.h"
#include "engine/engine.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"
#include "server/api/api_service.h"
#include "server/api/fake_reply.h"

namespace {

using namespace kvlathe;
using api::Json;

constexpr int kBos = 256, kEos = 257, kVocabulary = 258;
constexpr std::array kPaths = {"/v1/completions", "/v1/chat/completions", "/v1/responses",
                               "/tokenize", "/detokenize"};

class ByteTokenizer : public Tokenizer {
 public:
  StatusOr<std::vector<int32_t>> TryTokenizeMarked(std::string_view text, bool add_bos,
                                                   std::span<const TextRange>) const override {
    std::vector<int32_t> ids;
    if (add_bos) ids.push_back(kBos);
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string TokenBytes(int32_t id, bool keep_special) const override {
    if (id >= 0 && id < 256) return std::string(1, static_cast<char>(id));
    if (!keep_special) return "";
    return id == kBos ? "<s>" : "</s>";
  }
  std::string Detokenize(std::span<const int32_t> ids, bool keep_special) const override {
    std::string text;
    for (const int32_t id : ids) text += TokenBytes(id, keep_special);
    return text;
  }
  int64_t MinTokens(std::string_view text) const override { return std::ssize(text); }
  int vocab_size() const override { return kVocabulary; }
  std::optional<int32_t> bos_id() const override { return kBos; }
  std::optional<int32_t> eos_id() const override { return kEos; }
};

struct Server {
  Server() {
    ModelConfig config = SmallConfig(16);
    config.vocab_size = kVocabulary;
    auto weights = ModelWeights::Load(config, DType::kF32, MakeRandomSource(5),
                                      MakeMachine(&threads, SelectIsa().value()));
    model = CreateModel(*std::move(weights), {}).value();
    engine = std::make_unique<Engine>(std::vector<Model*>{model.get()}, &pool,
                                      EngineOptions{.max_waiting = 6});
    api::ApiContext context;
    context.engine = engine.get();
    context.levels = {{"none", model.get()}};
    context.tokenizer = &tokenizer;
    context.chat_template = &chat_template;
    context.model_names = {"m"};
    context.context_tokens = 96;
    context.end_ids = {kEos};
    context.limits = {.max_tokens = 8, .max_choices = 8};
    context.ping_seconds = 0;
    service = std::make_unique<api::ApiService>(std::move(context));
  }

  ThreadPool threads{1};
  ByteTokenizer tokenizer;
  ChatTemplate chat_template =
      ChatTemplate::Make({.place = "a template",
                          .text = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
                                  "{{ m.tool_calls | tojson }}<|end|>{% endfor %}"},
                         {})
          .value();
  HostPool pool{int64_t{16} << 20};
  std::unique_ptr<Model> model;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<api::ApiService> service;
};

void CheckAnswer(const api::FakeReply& reply) {
  static const std::set<int> kStatuses = {200, 400, 404, 429};
  KVL_CHECK_EQ(reply.n_answers, 1);
  if (reply.is_stream) {
    KVL_CHECK(reply.has_ended);
    for (const std::string& event : reply.Events()) {
      KVL_CHECK(event == "[DONE]" || Json::accept(event));
    }
    return;
  }
  KVL_CHECK(kStatuses.contains(reply.sent.status));
  const Json json = Json::parse(reply.sent.body, nullptr, /*allow_exceptions=*/false);
  KVL_CHECK(json.is_object());
  if (reply.sent.status == 200) return;
  for (const char* const field : {"message", "type", "param", "code"}) {
    KVL_CHECK(json["error"].contains(field));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  static Server& server = *new Server;
  if (n_bytes == 0) return 0;
  http::Request request;
  request.id = "f";
  request.method = "POST";
  request.path = kPaths[data[0] % kPaths.size()];
  request.body.assign(reinterpret_cast<const char*>(data) + 1, n_bytes - 1);
  const auto reply = std::make_shared<api::FakeReply>();
  server.service->Handle(std::move(request), reply);
  while (server.engine->Step()) reply->RunTasks();
  reply->RunTasks();
  CheckAnswer(*reply);
  KVL_CHECK_EQ(server.pool.usage().used_bytes, 0);
  return 0;
}
