#include "server/api/routes/generation_options.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "engine/drafts/draft_room.h"
#include "server/api/api_error.h"

namespace kvlathe::api {
namespace {

constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr int kMaxBiases = 512;

void ReadLevel(const ServiceState& state, RequestFields* fields, GenerationOptions* options) {
  const ApiContext& context = state.context();
  if (context.default_level != nullptr) options->level_idx = *context.default_level;
  options->model = context.model_names.front();
  if (auto model = fields->String("model")) {
    const StatusOr<int> level_idx = state.FindModel(*model);
    if (!level_idx.ok()) return fields->Fail(level_idx.status());
    if (*level_idx >= 0) options->level_idx = *level_idx;
    options->model = std::move(*model);
  }
  const Json* const kv = fields->Find("kv");
  if (kv == nullptr) return;
  if (!kv->is_string() && !kv->is_number_integer()) {
    return fields->Fail(FieldError("kv", "this is {}; give the name of a level", KindOf(*kv)));
  }
  const StatusOr<int> level_idx =
      state.FindLevel(kv->is_string() ? kv->get<std::string>() : kv->dump());
  if (!level_idx.ok()) return fields->Fail(level_idx.status());
  options->level_idx = *level_idx;
}

void ReadLogitBias(RequestFields* fields, int vocab_size, SamplingParams* sampling) {
  const Json* const biases = fields->Object("logit_bias");
  if (biases == nullptr) return;
  if (std::ssize(*biases) > kMaxBiases) {
    return fields->Fail(FieldError("logit_bias", "more than {} tokens", kMaxBiases));
  }
  for (const auto& [text, bias] : biases->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    const bool is_number = error == std::errc() && end == text.data() + text.size();
    if (!is_number || id < 0 || id >= vocab_size) {
      return fields->Fail(
          FieldError("logit_bias", "token ids go from 0 to {}, as text", vocab_size - 1));
    }
    if (std::to_string(id) != text) {  // another key may be the same id
      return fields->Fail(FieldError("logit_bias", "write token {} as \"{}\"", id, id));
    }
    if (!bias.is_number() || !(std::abs(bias.get<double>()) <= 100)) {
      return fields->Fail(FieldError("logit_bias", "give numbers from -100 to 100"));
    }
    sampling->logit_bias[id] = bias.get<float>();
  }
}

// `sampling` is what there is where a request says nothing.
void ReadSampling(RequestFields* fields, int vocab_size, SamplingParams* sampling) {
  const auto read = [&](const char* name, double min, double max, float* value) {
    if (const auto number = fields->Number(name, min, max)) *value = static_cast<float>(*number);
  };
  read("temperature", 0, 100, &sampling->temperature);
  read("top_p", 0, 1, &sampling->top_p);
  // vLLM has -1 for all tokens as well.
  if (const auto top_k = fields->Integer("top_k", -1, kMaxInt)) {
    sampling->top_k = static_cast<int>(std::max<int64_t>(*top_k, 0));
  }
  if (sampling->top_p == 0) {  // as OpenAI's API takes it: the likeliest token alone
    sampling->top_p = 1;
    sampling->top_k = 1;
  }
  read("min_p", 0, 1, &sampling->min_p);
  read("repetition_penalty", 0.01, 100, &sampling->repetition_penalty);
  sampling->repeat_last_n = -1;  // of all tokens, as vLLM
  read("presence_penalty", -2, 2, &sampling->presence_penalty);
  read("frequency_penalty", -2, 2, &sampling->frequency_penalty);
  ReadLogitBias(fields, vocab_size, sampling);
  const auto seed = fields->Integer("seed", std::numeric_limits<int64_t>::min(),
                                    std::numeric_limits<int64_t>::max());
  sampling->seed =
      seed ? static_cast<uint64_t>(*seed) : std::uniform_int_distribution<uint64_t>()(*[] {
        thread_local std::mt19937_64 random{std::random_device()()};
        return &random;
      }());
}

void ReadStops(const ApiLimits& limits, RequestFields* fields, GenerationOptions* options) {
  const Json* const stop = fields->Find("stop");
  if (stop == nullptr) return;
  const auto take = [&](const Json& text) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty()) {
      return fields->Fail(FieldError("stop", "give a text that is not empty, or a list of them"));
    }
    if (std::ssize(text.get_ref<const std::string&>()) > limits.max_stop_bytes) {
      return fields->Fail(
          FieldError("stop", "a text has more than {} bytes", limits.max_stop_bytes));
    }
    options->stops.push_back(text.get<std::string>());
  };
  if (!stop->is_array()) return take(*stop);
  if (std::ssize(*stop) > limits.max_stops) {
    return fields->Fail(FieldError("stop", "more than {} texts", limits.max_stops));
  }
  for (const Json& text : *stop) take(text);
}

// Of the level that was chosen. Where a request does not ask for drafts, it has the server's, if
// its cache can have some.
void ReadDraft(const ServiceState& state, RequestFields* fields, GenerationOptions* options) {
  const ApiContext& context = state.context();
  const std::string_view why =
      WhyNothingIsDrafted(context.levels[options->level_idx].model->layout());
  const std::optional<std::string> text = fields->String("draft");
  if (!text.has_value()) {
    if (why.empty()) options->draft = context.draft;
    return;
  }
  const StatusOr<std::optional<DraftOptions>> draft = DraftOptions::Parse(*text);
  if (!draft.ok()) return fields->Fail(FieldError("draft", "{}", MessageOf(draft.status())));
  options->draft = *draft;
  if (!draft->has_value() || why.empty()) return;
  fields->Fail(
      FieldError("draft", "not at level {}: {}", context.levels[options->level_idx].name, why));
}

void ReadStreaming(RequestFields* fields, GenerationOptions* options) {
  options->is_stream = fields->Bool("stream").value_or(false);
  const Json* const json = fields->Object("stream_options");
  if (json == nullptr) return;
  RequestFields stream_options(*json, "stream_options.");
  options->streams_usage = stream_options.Bool("include_usage").value_or(false);
  fields->Fail(stream_options.status());
  if (!options->is_stream) {
    fields->Fail(FieldError("stream_options", "it goes with stream: true only"));
  }
}

}  // namespace

Status CheckFills(const ServiceState& state, const std::string& param) {
  if (state.fill_marks()) return OkStatus();
  return UnsupportedField(param,
                          "this model does not fill in what stands between two texts: its "
                          "vocabulary has no tokens for that");
}

GenerationOptions ReadGenerationOptions(const ServiceState& state, RequestFields* fields) {
  GenerationOptions options;
  ReadLevel(state, fields, &options);
  options.sampling = state.context().sampling;
  ReadSampling(fields, state.vocab_size(), &options.sampling);
  ReadStops(state.limits(), fields, &options);
  ReadStreaming(fields, &options);
  options.rate = fields->Number("rate", 0, 1);
  options.refuses_pressure = !fields->Bool("under_pressure").value_or(true);
  ReadDraft(state, fields, &options);
  const auto slot_id = fields->Integer("id_slot", -1, state.context().n_slots - 1);
  if (slot_id.value_or(-1) >= 0) options.slot_id = static_cast<int>(*slot_id);
  // What OpenAI's API has for its own accounts and stores.
  for (const char* name :
       {"user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"}) {
    fields->Ignore(name);
  }
  options.ignores_end = fields->Bool("ignore_eos").value_or(false);
  options.min_tokens = static_cast<int>(
      fields->Integer("min_tokens", 0, state.context().context_tokens).value_or(0));
  options.n_choices =
      static_cast<int>(fields->Integer("n", 1, state.limits().max_choices).value_or(1));
  return options;
}

}  // namespace kvlathe::api
