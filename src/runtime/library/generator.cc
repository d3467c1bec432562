#include "kvlathe/generator.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/text_stream.h"
#include "kv/capacity.h"
#include "runtime/end_ids.h"
#include "runtime/library/generator_parts.h"

namespace kvlathe::runtime {
namespace {

// One request on its way: its text so far, and who is told.
struct Stream {
  Stream(const Tokenizer* tokenizer, std::vector<std::string> stops)
      : text(tokenizer, std::move(stops)) {}

  TextStream text;
  TextResult result;
  Generator::TextSink on_text;
  Generator::EndSink on_end;

  // False: whoever takes the text wants no more.
  bool Emit(const std::string& piece) {
    result.text += piece;
    return piece.empty() || !on_text || on_text(piece);
  }
};

TextEnd EndOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return TextEnd::kStop;
    case FinishReason::kLength:
      return TextEnd::kLength;
    case FinishReason::kCancelled:
      return TextEnd::kCancelled;
    case FinishReason::kNone:
    case FinishReason::kFailed:
      break;
  }
  return TextEnd::kFailed;
}

SamplingParams SamplingOf(const TextRequest& request) {
  return {.temperature = request.temperature,
          .top_k = request.top_k,
          .top_p = request.top_p,
          .min_p = request.min_p,
          .repetition_penalty = request.repetition_penalty,
          .seed = request.seed};
}

}  // namespace

void Generator::Parts::StartEngine(const GeneratorSettings& settings) {
  const std::vector<int32_t> ids = EndIds(*model->workspace);
  end_ids.assign(ids.begin(), ids.end());
  std::vector<Model*> levels;
  for (const auto& m : models) levels.push_back(m.get());
  Workspace& workspace = *model->workspace;
  pool.emplace(workspace.kv_budget_bytes(), &workspace.weights().machine().memory());
  engine.emplace(std::move(levels), &*pool,
                 EngineOptions{.max_batch_tokens = std::max(1, settings.max_batch_tokens),
                               .max_sequences = std::max(1, settings.max_sequences),
                               .max_waiting = std::max(0, settings.max_waiting)});
}

Generator::Generator(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Generator::~Generator() = default;

StatusOr<uint64_t> Generator::Submit(const TextRequest& request, TextSink on_text, EndSink on_end) {
  const Workspace& workspace = *parts_->model->workspace;
  Request asked;
  asked.prompt = request.prompt_ids;
  if (asked.prompt.empty()) {
    KVL_ASSIGN_OR_RETURN(asked.prompt,
                         workspace.tokenizer().TryTokenize(request.prompt, /*add_bos=*/true));
  }
  asked.max_tokens = request.max_tokens;
  asked.sampling = SamplingOf(request);
  asked.level = request.cache_idx;
  if (!request.ignores_end) asked.stop_ids = parts_->end_ids;
  KVL_RETURN_IF_ERROR(asked.sampling.Check());
  KVL_RETURN_IF_ERROR(StopMatcher::CheckStops(request.stops));
  if (request.cache_idx < 0 || request.cache_idx >= std::ssize(parts_->models)) {
    return Error(StatusCode::kInvalidArgument, "cache_idx {}: the generator has {} caches",
                 request.cache_idx, parts_->models.size());
  }
  const auto stream = std::make_shared<Stream>(&workspace.tokenizer(), request.stops);
  stream->on_text = std::move(on_text);
  stream->on_end = std::move(on_end);
  stream->result.n_prompt_tokens = static_cast<int>(asked.prompt.size());
  const CacheLayout* const layout = &parts_->models[request.cache_idx]->layout();
  const auto on_token = [stream](Engine::RequestId, const GeneratedToken& token) {
    if (!stream->Emit(stream->text.Push(token.id))) return FinishReason::kCancelled;
    return stream->text.stopped() ? FinishReason::kStop : FinishReason::kNone;
  };
  const auto on_finish = [stream, layout](Engine::RequestId, const RequestOutcome& outcome) {
    stream->Emit(stream->text.Finish());
    TextResult& result = stream->result;
    result.ids = outcome.tokens;
    result.end = EndOf(outcome.finish_reason);
    result.status = outcome.status;
    result.first_token_seconds = outcome.ttft_ms / 1000;
    result.decode_seconds = outcome.decode_seconds;
    result.kv_bytes = outcome.kv_bytes.total();
    if (outcome.n_cached_tokens > 0) {
      result.kv_fraction = static_cast<double>(result.kv_bytes) /
                           static_cast<double>(ReferenceBytes(*layout, outcome.n_cached_tokens));
    }
    if (stream->on_end) stream->on_end(result);
  };
  return parts_->engine->Submit(std::move(asked), on_token, on_finish);
}

bool Generator::Cancel(uint64_t id) { return parts_->engine->Cancel(id); }
bool Generator::Step() { return parts_->engine->Step(); }

StatusOr<TextResult> Generator::Generate(const TextRequest& request, TextSink on_text) {
  TextResult result;
  KVL_RETURN_IF_ERROR(Submit(request, std::move(on_text), [&](const TextResult& ended) {
                        result = ended;
                      }).status());
  while (Step()) {
  }
  if (result.end == TextEnd::kFailed) return result.status;
  return result;
}

}  // namespace kvlathe::runtime
