// kvlathe._native.score: how likely texts are behind prompts that a cache has read.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "evaluation/task_runs/choice_scorer.h"
#include "python/bindings.h"
#include "python/held_model.h"

namespace kvlathe::python {
namespace {

namespace nb = nanobind;
using Ids = std::vector<int32_t>;

// One prompt with all of the continuations that follow it in a row: they share what is read.
PreparedExample ExampleOf(const std::vector<Ids>& prompts, const std::vector<Ids>& continuations,
                          size_t begin, size_t end) {
  PreparedExample example;
  example.prompt = prompts[begin];
  PreparedQuestion question;
  question.n_prompt = static_cast<int>(example.prompt.size());
  for (size_t i = begin; i < end; ++i) {
    question.choices.push_back(continuations[i]);
    question.n_context.push_back(0);
    example.text.choices.push_back(fmt::format("continuations[{}]", i));
  }
  example.questions.push_back(std::move(question));
  return example;
}

Status CheckIds(const Ids& ids, const char* name, size_t index, int vocab_size) {
  if (ids.empty()) {
    return Error(StatusCode::kInvalidArgument, "{}[{}] is empty; give at least one token", name,
                 index);
  }
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocab_size) continue;
    return Error(StatusCode::kInvalidArgument,
                 "{}[{}]: token id {} is outside the vocabulary of {}", name, index, id,
                 vocab_size);
  }
  return OkStatus();
}

struct Weighed {
  double log_likelihood = 0;
  std::vector<WeighedToken> tokens;
};

// [n_continuations]
std::vector<Weighed> Score(HeldModel& model, const std::vector<Ids>& prompts,
                           const std::vector<Ids>& continuations,
                           const std::optional<std::string>& kv, const nb::object& on_progress) {
  const int vocab_size = model.serving()->workspace->config().vocab_size;
  const int context = model.serving()->workspace->context_tokens();
  for (size_t i = 0; i < prompts.size(); ++i) {
    ThrowIfError(CheckIds(prompts[i], "prompts", i, vocab_size));
    ThrowIfError(CheckIds(continuations[i], "continuations", i, vocab_size));
    const size_t n = prompts[i].size() + continuations[i].size();
    if (n <= static_cast<size_t>(context)) continue;
    throw StatusError(
        Error(StatusCode::kInvalidArgument,
              "prompts[{}] and its continuation have {} tokens and the context is {}; "
              "shorten one of them",
              i, n, context));
  }
  std::vector<Weighed> scores;
  const Turn turn(model.turns());
  const int level = kv.has_value() ? model.LevelOf(*kv) : 0;
  Measuring measuring(&model, /*exact_rows=*/true);
  Model* const of_level = model.level(level).model.get();
  BlockPool pool(model.workspace()->kv_budget_bytes(), &of_level->machine().memory());
  for (size_t begin = 0; begin < prompts.size();) {
    size_t end = begin + 1;
    while (end < prompts.size() && prompts[end] == prompts[begin]) ++end;
    WeighedChoices weighed = measuring.Value(
        WeighChoices(of_level, &pool, ExampleOf(prompts, continuations, begin, end)));
    for (size_t i = 0; i < end - begin; ++i) {
      scores.push_back({weighed.log_likelihoods.front()[i], std::move(weighed.tokens.front()[i])});
    }
    begin = end;
    if (on_progress.is_none()) continue;
    const nb::gil_scoped_acquire acquired;
    on_progress(begin);
  }
  return scores;
}

// (log-probability, whether each token is the likeliest, those of the tokens) each.
using Row = std::tuple<double, bool, std::vector<double>>;

std::vector<Row> RowsOf(HeldModel& model, const std::vector<Ids>& prompts,
                        const std::vector<Ids>& continuations, const std::optional<std::string>& kv,
                        const nb::object& on_progress) {
  std::vector<Row> rows;
  for (const Weighed& weighed : Score(model, prompts, continuations, kv, on_progress)) {
    Row row = {weighed.log_likelihood, true, {}};
    for (const WeighedToken& token : weighed.tokens) {
      std::get<1>(row) = std::get<1>(row) && token.is_greedy;
      std::get<2>(row).push_back(token.logprob);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

void BindScore(nb::module_& module) {
  module.def(
      "score", &RowsOf, nb::arg("model"), nb::arg("prompts"), nb::arg("continuations"),
      nb::arg("kv").none(), nb::arg("on_progress").none(),
      "For each continuation its log-probability, whether each token is the likeliest, and the "
      "log-probabilities of the tokens.");
}

}  // namespace kvlathe::python
