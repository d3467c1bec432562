// kvlathe._native.Model: opening, facts, tokens, conversations, and what a cache costs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <nlohmann/json.hpp>

#include "chat/chat_ends.h"
#include "python/bindings.h"
#include "python/held_model.h"
#include "runtime/following_text.h"
#include "runtime/spec_models.h"

namespace kvlathe::python {
namespace {

namespace nb = nanobind;
using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

Ids Encode(const HeldModel& model, const std::string& text, bool adds_bos) {
  const std::shared_ptr<ServingModel> serving = model.serving();
  const nb::gil_scoped_release released;
  return ValueOrThrow(serving->workspace->tokenizer().TryTokenize(text, adds_bos));
}

Ids EncodeFollowing(const HeldModel& model, const std::string& text) {
  const std::shared_ptr<ServingModel> serving = model.serving();
  return ValueOrThrow(TokenizeFollowing(serving->workspace->tokenizer(), text));
}

nb::bytes Decode(const HeldModel& model, const Ids& ids, bool keeps_special) {
  const std::shared_ptr<ServingModel> serving = model.serving();
  const Tokenizer& tokenizer = serving->workspace->tokenizer();
  for (const int32_t id : ids) {
    if (id >= 0 && id < tokenizer.vocab_size()) continue;
    throw StatusError(Error(StatusCode::kInvalidArgument,
                            "token id {} is outside the vocabulary of {}", id,
                            tokenizer.vocab_size()));
  }
  const std::string text = tokenizer.Detokenize(ids, keeps_special);
  return nb::bytes(text.data(), text.size());
}

nb::bytes TokenBytes(const HeldModel& model, int32_t id) {
  const std::shared_ptr<ServingModel> serving = model.serving();
  const Tokenizer& tokenizer = serving->workspace->tokenizer();
  // Vocabularies of models may have ids that no tokenizer gives.
  if (id < 0 || id >= tokenizer.vocab_size()) return nb::bytes("", 0);
  const std::string text = tokenizer.TokenBytes(id, /*keep_special=*/true);
  return nb::bytes(text.data(), text.size());
}

Json JsonOf(const std::optional<std::string>& text) {
  return text.has_value() ? Json::parse(*text) : Json(nullptr);
}

// A conversation as a prompt.
struct RenderedChat {
  std::string text;
  Ids ids;
  Ids stop_ids;  // at which the answer ends, beside the model's own
  std::vector<std::string> stops;
};

RenderedChat RenderChat(const HeldModel& model, const std::string& messages,
                        const std::optional<std::string>& tools,
                        const std::optional<std::string>& arguments, bool opens_answer,
                        bool continues_last) {
  const std::shared_ptr<ServingModel> serving = model.serving();
  if (!serving->chat_template.has_value()) {
    throw StatusError(Error(StatusCode::kInvalidArgument,
                            "this model has no chat template; use generate with a whole prompt, or "
                            "open it with chat_template"));
  }
  ChatConversation conversation;
  conversation.messages = Json::parse(messages);
  conversation.tools = JsonOf(tools);
  conversation.arguments = JsonOf(arguments);
  conversation.opens_answer = opens_answer;
  conversation.continues_last_message = continues_last;
  const nb::gil_scoped_release released;
  const ChatTemplate& chat_template = *serving->chat_template;
  const MarkedText prompt = ValueOrThrow(chat_template.Render(conversation));
  const Tokenizer& tokenizer = serving->workspace->tokenizer();
  RenderedChat chat;
  chat.text = prompt.text;
  chat.ids =
      ValueOrThrow(tokenizer.TryTokenizeMarked(prompt.text, serving->chat_adds_bos, prompt.inputs));
  const ChatEnds ends =
      FindChatEnds(tokenizer, chat_template.answer_format(tools.has_value()).ends);
  chat.stop_ids = ends.ids;
  chat.stops = ends.texts;
  return chat;
}

std::map<std::string, double> DefaultSamplingOf(const HeldModel& model) {
  const SamplingParams sampling = model.serving()->sampling;
  return {{"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"repetition_penalty", sampling.repetition_penalty},
          {"repeat_last_n", sampling.repeat_last_n}};
}

std::vector<std::pair<std::string, std::string>> Levels(HeldModel& model) {
  const Turn turn(model.turns());
  std::vector<std::pair<std::string, std::string>> levels;
  for (const SpecModel& level : model.serving()->levels) {
    levels.emplace_back(level.spec.text(), level.spec.ToString());
  }
  return levels;
}

// The resolved spec, its share of 16 bits and the KL that is predicted of it.
std::tuple<std::string, double, std::optional<double>> CostOf(HeldModel& model,
                                                              const std::string& kv) {
  const Turn turn(model.turns());
  Measuring measuring(&model, /*exact_rows=*/false);
  Workspace* const workspace = model.workspace();
  std::string resolved = measuring.Value(Spec::Parse(kv)).ToString();
  std::optional<double> kl;
  const Spec spec = measuring.Value(Spec::Parse(kv));
  if (spec.accuracy().has_value()) {  // a question, which a cache answers
    SpecModel made = measuring.Value(workspace->MakeModel(kv));
    measuring.Check(PredictKlOf(workspace, &made));
    resolved = made.spec.ToString();
    kl = made.predicted_kl;
  } else {
    kl = measuring.Value(PredictedKlOf(workspace, kv));
  }
  const double fraction = measuring.Value(workspace->FractionOf(resolved));
  return {std::move(resolved), fraction, kl};
}

void BindSettings(nb::module_& module) {
  nb::class_<ModelSettings>(module, "ModelSettings", "What a model is opened with.")
      .def(nb::init<>())
      .def_rw("model", &ModelSettings::model)
      .def_rw("kv", &ModelSettings::kv)
      .def_rw("max_model_len", &ModelSettings::max_model_len)
      .def_rw("n_threads", &ModelSettings::n_threads)
      .def_rw("device", &ModelSettings::device)
      .def_rw("computes_in_f32", &ModelSettings::computes_in_f32)
      .def_rw("basis", &ModelSettings::basis)
      .def_rw("kv_budget_bytes", &ModelSettings::kv_budget_bytes)
      .def_rw("max_num_seqs", &ModelSettings::max_num_seqs)
      .def_rw("max_num_batched_tokens", &ModelSettings::max_num_batched_tokens)
      .def_rw("prefix_bytes", &ModelSettings::prefix_bytes)
      .def_rw("deterministic", &ModelSettings::deterministic)
      .def_rw("exact_rows", &ModelSettings::exact_rows)
      .def_rw("exact_attention", &ModelSettings::exact_attention)
      .def_rw("chat_template", &ModelSettings::chat_template);
}

}  // namespace

void BindModel(nb::module_& module) {
  BindSettings(module);
  nb::class_<RenderedChat>(module, "RenderedChat", "A conversation as a prompt.")
      .def_ro("text", &RenderedChat::text)
      .def_ro("token_ids", &RenderedChat::ids)
      .def_ro("stop_token_ids", &RenderedChat::stop_ids)
      .def_ro("stop", &RenderedChat::stops);
  nb::class_<HeldModel>(module, "Model", "An open model with its caches.")
      .def_static("open", &HeldModel::Open, nb::arg("settings"), nb::arg("on_note").none(),
                  "Opens a model; on_note takes the kind and text of what the library has to say.")
      .def(
          "close",
          [](HeldModel& model) {
            const Turn turn(model.turns());
            model.Close();
          },
          "Frees the model. Whoever uses it gets an exception from then on.")
      .def_prop_ro("is_closed", &HeldModel::is_closed)
      .def(
          "set_on_progress",
          [](HeldModel& model, nb::object on_progress) {
            model.listeners().set_on_progress(std::move(on_progress));
          },
          nb::arg("on_progress").none(), "Who is told of long work, with its name and share.")
      .def_prop_ro(
          "path",
          [](const HeldModel& model) { return model.serving()->workspace->options().model; })
      .def_prop_ro(
          "vocab_size",
          [](const HeldModel& model) { return model.serving()->workspace->config().vocab_size; })
      .def_prop_ro(
          "max_model_len",
          [](const HeldModel& model) { return model.serving()->workspace->context_tokens(); })
      .def_prop_ro(
          "bos_token_id",
          [](const HeldModel& model) { return model.serving()->workspace->tokenizer().bos_id(); })
      .def_prop_ro("eos_token_ids", [](const HeldModel& model) { return model.serving()->end_ids; })
      .def_prop_ro("chat_template",
                   [](const HeldModel& model) {
                     const std::optional<ChatTemplate>& made = model.serving()->chat_template;
                     return made.has_value() ? std::optional(made->source()) : std::nullopt;
                   })
      .def_prop_ro("device_name",
                   [](const HeldModel& model) { return model.serving()->workspace->device_name(); })
      .def_prop_ro("levels", &Levels)
      .def_prop_ro("default_sampling", &DefaultSamplingOf)
      .def("encode", &Encode, nb::arg("text"), nb::arg("add_bos"))
      .def("encode_further", &EncodeFollowing, nb::arg("text"))
      .def("decode", &Decode, nb::arg("ids"), nb::arg("keeps_special"))
      .def("token_bytes", &TokenBytes, nb::arg("id"))
      .def("render_chat", &RenderChat, nb::arg("messages"), nb::arg("tools").none(),
           nb::arg("arguments").none(), nb::arg("opens_answer"), nb::arg("continues_last"))
      .def("cost", &CostOf, nb::arg("kv"));
}

}  // namespace kvlathe::python
