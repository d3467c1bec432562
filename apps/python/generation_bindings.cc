// kvlathe._native: Ask, Answer and Session, and how a Model answers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "python/bindings.h"
#include "python/generation.h"
#include "runtime/spec_models.h"

namespace kvlathe::python {
namespace {

namespace nb = nanobind;
using Ids = std::vector<int32_t>;
using MaybeText = std::optional<std::string>;

const char* NameOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kFailed:
      return "error";
    default:
      return "abort";
  }
}

// A list of (token, logprob, rank, [(token, logprob), ...]).
nb::list ListOf(const std::vector<TokenLogprobs>& logprobs) {
  nb::list list;
  for (const TokenLogprobs& of : logprobs) {
    nb::list top;
    for (const TokenLogprob& token : of.top) top.append(nb::make_tuple(token.token, token.logprob));
    list.append(nb::make_tuple(of.chosen.token, of.chosen.logprob, of.chosen_rank, top));
  }
  return list;
}

// What ended the text: a stop string, a token of Ask::stop_ids, or None.
nb::object StopReasonOf(const Answer& answer) {
  if (!answer.stop().empty()) return nb::str(answer.stop().c_str(), answer.stop().size());
  const std::optional<int32_t> id = answer.outcome().stop_id;
  if (!id.has_value()) return nb::none();
  const Ids& asked = answer.ask().stop_ids;
  const bool was_asked = std::find(asked.begin(), asked.end(), *id) != asked.end();
  return was_asked ? nb::object(nb::int_(*id)) : nb::object(nb::none());
}

// [rows, hidden_dim] for all hidden states, [hidden_dim] for one.
nb::ndarray<nb::numpy, float> EmbeddingOf(const Answer& answer) {
  const std::vector<float>& values = answer.outcome().embedding;
  auto* const data = new std::vector<float>(values);
  const nb::capsule owner(data,
                          [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  if (answer.ask().pooling == Pooling::kAll) {
    const size_t n_rows = answer.ask().prompt.size();
    const size_t shape[] = {n_rows, values.size() / n_rows};
    return nb::ndarray<nb::numpy, float>(data->data(), 2, shape, owner);
  }
  const size_t shape[] = {values.size()};
  return nb::ndarray<nb::numpy, float>(data->data(), 1, shape, owner);
}

Answers Submit(HeldModel& model, const std::vector<Ask>& asks, const MaybeText& kv) {
  const Turn turn(model.turns());
  model.FreeDropped();
  return SubmitAll(&model, asks, kv.has_value() ? &*kv : nullptr);
}

void WaitForEnds(HeldModel& model, const Answers& answers, const nb::object& on_tick) {
  Tick tick;
  if (!on_tick.is_none()) {
    tick = [&](int n_ended, int64_t n_tokens) { on_tick(n_ended, n_tokens); };
  }
  WaitForAll(&model, answers, tick);
  CheckEnds(answers);
}

// (text, token ids, whether it has ended) since the last call.
std::tuple<std::string, Ids, bool> TakeNews(HeldModel& model, Answer& answer) {
  const Turn turn(model.turns());
  Answer::News news = answer.TakeNews();
  return {std::move(news.text), std::move(news.ids), news.has_ended};
}

SequencePlace PlaceOf(HeldModel* model, int level) {
  const SpecModel& spec_model = model->level(level);
  return {ValueOrThrow(IdentityOf(model->workspace(), spec_model)), &spec_model.model->layout(),
          model->workspace()->context_tokens()};
}

std::shared_ptr<HeldSession> NewSession(const std::shared_ptr<HeldModel>& model) {
  auto session = std::make_shared<HeldSession>(model);
  model->serving();
  model->Register(session);
  return session;
}

std::shared_ptr<HeldSession> Load(const std::shared_ptr<HeldModel>& model, const std::string& path,
                                  const MaybeText& kv) {
  const std::shared_ptr<HeldSession> session = NewSession(model);
  const Turn turn(model->turns());
  const int level = kv.has_value() ? model->LevelOf(*kv) : 0;
  session->session = ValueOrThrow(LoadSession(
      path, PlaceOf(model.get(), level), model->workspace()->config().vocab_size, model->pool()));
  session->session.level = level;
  session->kv = model->level(level).spec.text();
  session->kv_bytes = session->session.cache->bytes().total();
  return session;
}

void Save(HeldSession& session, const std::string& path) {
  HeldModel* const model = session.model.get();
  const Turn turn(model->turns());
  session.CheckIsFree();
  if (session.session.cache == nullptr) {
    throw StatusError(Error(StatusCode::kFailedPrecondition,
                            "the session has no cache to save; generate with it first"));
  }
  ThrowIfError(SaveSession(session.session, PlaceOf(model, session.session.level).identity, path));
}

template <typename T>
void AddSampling(nb::class_<Ask>* ask, const char* name, T SamplingParams::*member) {
  ask->def_prop_rw(
      name, [member](const Ask& of) -> T { return of.sampling.*member; },
      [member](Ask& of, T value) { of.sampling.*member = std::move(value); });
}

void BindAsk(nb::module_& module) {
  nb::enum_<Pooling>(module, "Pooling")
      .value("MEAN", Pooling::kMean)
      .value("LAST", Pooling::kLast)
      .value("ALL", Pooling::kAll);
  nb::class_<Ask> ask(module, "Ask", "What one sequence is asked for.");
  ask.def(nb::init<>())
      .def_rw("name", &Ask::name)
      .def_rw("prompt", &Ask::prompt)
      .def_rw("max_tokens", &Ask::max_tokens, nb::arg().none())
      .def_rw("stop_token_ids", &Ask::stop_ids)
      .def_rw("ignore_eos", &Ask::ignores_end)
      .def_rw("stop", &Ask::stops)
      .def_rw("include_stop_str_in_output", &Ask::includes_stop)
      .def_rw("keeps_special", &Ask::keeps_special)
      .def_rw("drops_added_space", &Ask::drops_added_space)
      .def_rw("logprobs", &Ask::n_logprobs, nb::arg().none())
      .def_rw("prompt_logprobs", &Ask::n_prompt_logprobs, nb::arg().none())
      .def_rw("draft", &Ask::draft)
      .def_rw("rate", &Ask::rate, nb::arg().none())
      .def_rw("pooling", &Ask::pooling, nb::arg().none())
      .def_rw("session", &Ask::session, nb::arg().none());
  AddSampling(&ask, "temperature", &SamplingParams::temperature);
  AddSampling(&ask, "top_k", &SamplingParams::top_k);
  AddSampling(&ask, "top_p", &SamplingParams::top_p);
  AddSampling(&ask, "min_p", &SamplingParams::min_p);
  AddSampling(&ask, "repetition_penalty", &SamplingParams::repetition_penalty);
  AddSampling(&ask, "repeat_last_n", &SamplingParams::repeat_last_n);
  AddSampling(&ask, "presence_penalty", &SamplingParams::presence_penalty);
  AddSampling(&ask, "frequency_penalty", &SamplingParams::frequency_penalty);
  AddSampling(&ask, "logit_bias", &SamplingParams::logit_bias);
  AddSampling(&ask, "seed", &SamplingParams::seed);
}

void BindAnswer(nb::module_& module) {
  const auto seconds_to_first = [](const Answer& answer) {
    return answer.outcome().ttft_ms / 1000;
  };
  nb::class_<Answer>(module, "Answer",
                     "A request on its way, and once it has ended what came of it.")
      .def_prop_ro("has_ended", &Answer::has_ended)
      .def_prop_ro("text", &Answer::text)
      .def_prop_ro("token_ids", &Answer::ids)
      .def_prop_ro(
          "logprobs", [](const Answer& answer) { return ListOf(answer.logprobs()); },
          nb::sig("def logprobs(self) -> list[tuple[int, float, int, list[tuple[int, float]]]]"))
      .def_prop_ro(
          "prompt_logprobs",
          [](const Answer& answer) { return ListOf(answer.outcome().prompt_logprobs); },
          nb::sig("def prompt_logprobs(self) -> "
                  "list[tuple[int, float, int, list[tuple[int, float]]]]"))
      .def_prop_ro("finish_reason",
                   [](const Answer& answer) { return NameOf(answer.outcome().finish_reason); })
      .def_prop_ro("stop_reason", &StopReasonOf,
                   nb::sig("def stop_reason(self) -> int | str | None"))
      .def_prop_ro("kv_bytes",
                   [](const Answer& answer) { return answer.outcome().kv_bytes.total(); })
      .def_prop_ro("kv_fraction", &Answer::kv_fraction)
      .def_prop_ro("first_token_seconds", seconds_to_first)
      .def_prop_ro("decode_seconds",
                   [](const Answer& answer) { return answer.outcome().decode_seconds; })
      .def_prop_ro("n_context", &Answer::n_context)
      .def_prop_ro("n_shared",
                   [](const Answer& answer) { return answer.outcome().n_prefix_tokens; })
      .def_prop_ro("n_preemptions",
                   [](const Answer& answer) { return answer.outcome().n_preemptions; })
      .def_prop_ro("n_drafted",
                   [](const Answer& answer) { return answer.outcome().n_drafted_tokens; })
      .def_prop_ro("n_accepted",
                   [](const Answer& answer) { return answer.outcome().n_accepted_tokens; })
      .def_prop_ro("embedding", &EmbeddingOf, nb::rv_policy::automatic);
}

void BindSession(nb::module_& module) {
  nb::class_<HeldSession>(module, "Session", "A sequence between two requests.")
      .def_prop_ro("token_ids",
                   [](const HeldSession& session) {
                     session.CheckIsFree();
                     return session.session.tokens;
                   })
      .def_prop_ro("kv_bytes", [](const HeldSession& session) { return session.kv_bytes; })
      .def_prop_ro("kv", [](const HeldSession& session) { return session.kv; })
      .def_prop_ro("is_closed",
                   [](const HeldSession& session) {
                     return session.is_closed || session.model->is_closed();
                   })
      .def("reset",
           [](HeldSession& session) {
             session.CheckIsFree();
             session.Reset();
           })
      .def("close",
           [](HeldSession& session) {
             if (session.is_closed || session.model->is_closed()) return;
             session.CheckIsFree();
             session.Reset();
             session.is_closed = true;
           })
      .def("save", &Save, nb::arg("path"));
}

}  // namespace

void BindGeneration(nb::module_& module) {
  BindSession(module);
  BindAsk(module);
  BindAnswer(module);
  module.def("submit", &Submit, nb::arg("model"), nb::arg("asks"), nb::arg("kv").none(),
             "Hands requests to the engine, all of them or none.");
  module.def("wait_for_ends", &WaitForEnds, nb::arg("model"), nb::arg("answers"),
             nb::arg("on_tick").none(),
             "Computes until all have ended. on_tick takes how many have and their tokens.");
  module.def(
      "wait_for_news",
      [](HeldModel& model, const Answers& answers) { WaitForNews(&model, answers); },
      nb::arg("model"), nb::arg("answers"), "Computes until one has a token more, or has ended.");
  module.def("take_news", &TakeNews, nb::arg("model"), nb::arg("answer"),
             "What came since the last call: text, token ids, and whether it has ended.");
  module.def("check_ends", &CheckEnds, nb::arg("answers"), "Raises what one of them failed with.");
  module.def(
      "cancel", [](HeldModel& model, const Answers& answers) { Cancel(&model, answers); },
      nb::arg("model"), nb::arg("answers"), "Ends requests; returns once they have.");
  module.def("new_session", &NewSession, nb::arg("model"));
  module.def("load_session", &Load, nb::arg("model"), nb::arg("path"), nb::arg("kv").none());
}

}  // namespace kvlathe::python
