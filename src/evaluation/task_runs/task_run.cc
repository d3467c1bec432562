#include "evaluation/task_runs/task_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/engine.h"
#include "engine/text_stream.h"
#include "evaluation/metrics.h"
#include "evaluation/task_runs/choice_scorer.h"
#include "tokenizer/utf8.h"

namespace kvlathe {
namespace {

constexpr int kConcurrentSequences = 16;
// Fewer are not worth a request of their own.
constexpr size_t kLeastCommonTokens = 64;

double FractionOf(const Model& model, const KvBytes& bytes, int n_positions) {
  return static_cast<double>(bytes.total()) /
         static_cast<double>(ReferenceBytes(model.layout(), n_positions));
}

// What a model writes behind the answer that it states changes no score.
bool IsAnswered(TaskMetric metric, const TaskPrediction& prediction) {
  if (metric != TaskMetric::kStatedAnswer) return false;
  const std::optional<StatedText> stated = FindStatedAnswer(prediction.output);
  return stated.has_value() && stated->is_whole;
}

// What is known of one example while and after it runs.
struct Outcome {
  TaskPrediction prediction;
  double kv_fraction = 0;
};

// The outcomes of a task, scored as they come in.
class ScoreSheet {
 public:
  ScoreSheet(const PreparedTask& task, double least_score, const Progress& progress)
      : task_(task),
        least_score_(least_score),
        progress_(progress),
        outcomes_(task.examples.size()) {
    Tell();
  }

  Outcome& outcome(size_t i) { return outcomes_[i]; }
  // Its prediction is complete, score included.
  void Finish(size_t i) {
    sum_ += outcomes_[i].prediction.score;
    ++n_done_;
    Tell();
  }
  // Not even full scores for all that is left reach the least score.
  bool is_hopeless() const { return BestMean() < least_score_; }

  TaskResult Result() {
    const double n = static_cast<double>(outcomes_.size());
    TaskResult result;
    result.gave_up = n_done_ < outcomes_.size();
    result.score = BestMean();
    for (Outcome& outcome : outcomes_) {
      result.kv_fraction += result.gave_up ? 0 : outcome.kv_fraction / n;
      result.predictions.push_back(std::move(outcome.prediction));
    }
    if (result.gave_up) return result;
    const auto mean_of = [&](auto value) {
      std::vector<double> values;
      for (const TaskPrediction& p : result.predictions) values.push_back(value(p));
      return MeanOf(values);
    };
    result.score_stderr = mean_of([](const TaskPrediction& p) { return p.score; }).standard_error;
    if (task_.metric == TaskMetric::kToolCall) result.calls = SharesOf(result.predictions);
    if (task_.metric != TaskMetric::kChoice) return result;
    // An example of several questions is right or wrong as a whole, which its score says.
    result.acc =
        mean_of([](const TaskPrediction& p) { return p.picked < 0 ? p.score : p.is_right; });
    const bool has_norm = std::ranges::all_of(
        result.predictions, [](const TaskPrediction& p) { return p.picked_norm >= 0; });
    if (has_norm) {
      result.acc_norm = mean_of([](const TaskPrediction& p) { return p.is_right_norm; });
    }
    return result;
  }

 private:
  double BestMean() const {
    const size_t n = outcomes_.size();
    return (sum_ + static_cast<double>(n - n_done_)) / static_cast<double>(n);
  }
  // Of an example with several references, by the first.
  TaskResult::CallShares SharesOf(const std::vector<TaskPrediction>& predictions) const {
    TaskResult::CallShares shares;
    for (size_t i = 0; i < predictions.size(); ++i) {
      const CallMarks marks = JudgeCall(predictions[i].output, task_.examples[i].references[0]);
      shares.is_json += marks.is_json;
      shares.names_tool += marks.names_tool;
      shares.has_arguments += marks.has_arguments;
    }
    const double n = static_cast<double>(predictions.size());
    return {shares.is_json / n, shares.names_tool / n, shares.has_arguments / n};
  }
  void Tell() const {
    if (progress_) progress_("running the task", static_cast<double>(n_done_) / outcomes_.size());
  }

  const PreparedTask& task_;
  double least_score_;
  const Progress& progress_;
  std::vector<Outcome> outcomes_;
  double sum_ = 0;
  size_t n_done_ = 0;
};

// The error of an example, with its number.
Status OfExample(size_t i, const Status& status) {
  return Error(status.code(), "example {}: {}", i + 1, MessageOf(status));
}

// What all prompts begin with, such as solved questions; less than each of them.
std::span<const int32_t> CommonPrompt(std::span<const PreparedExample> examples) {
  const std::vector<int32_t>& first = examples[0].prompt;
  size_t n_common = first.size();
  for (const PreparedExample& example : examples) {
    const std::vector<int32_t>& prompt = example.prompt;
    if (prompt.empty()) return {};
    n_common = std::min(n_common, prompt.size() - 1);
    const auto parted = std::mismatch(first.begin(), first.begin() + n_common, prompt.begin());
    n_common = parted.first - first.begin();
  }
  return std::span(first).first(n_common);
}

// Reads what all prompts begin with, which the engine then keeps for them.
Status ReadCommonPrompt(const PreparedTask& task, Engine* engine) {
  const std::span<const int32_t> common = CommonPrompt(task.examples);
  if (task.examples.size() < 2 || common.size() < kLeastCommonTokens) return OkStatus();
  Request request;
  request.prompt.assign(common.begin(), common.end());
  request.max_tokens = 1;
  Status outcome_status;
  const auto on_finish = [&](Engine::RequestId, const RequestOutcome& outcome) {
    outcome_status = outcome.status;
  };
  KVL_RETURN_IF_ERROR(engine->Submit(std::move(request), nullptr, on_finish).status());
  while (engine->Step()) {
  }
  return outcome_status;
}

Status Generate(Model* model, const Tokenizer& tokenizer, const PreparedTask& task,
                int64_t kv_budget_bytes, const std::optional<DraftOptions>& draft,
                ScoreSheet* sheet) {
  const size_t n = task.examples.size();
  std::vector<TextStream> streams;
  streams.reserve(n);
  Status failure;  // the first
  BlockPool pool(kv_budget_bytes, &model->machine().memory());
  // What is kept of earlier requests is given up as soon as a sequence needs its room.
  const bool shares = SharesPrefixes(model->layout());
  Engine engine(
      {model}, &pool,
      {.max_sequences = kConcurrentSequences, .prefix_bytes = shares ? kv_budget_bytes : 0});
  if (shares) {
    const Status read = ReadCommonPrompt(task, &engine);
    if (!read.ok()) return OfExample(0, read);
  }
  for (size_t i = 0; i < n; ++i) {
    const PreparedExample& example = task.examples[i];
    std::vector<std::string> stops = example.text.more_stops;
    stops.push_back(example.text.stop);
    streams.emplace_back(&tokenizer, std::move(stops));
    Request request;
    request.prompt = example.prompt;
    request.max_tokens = example.max_tokens;
    request.stop_ids = task.eos_ids;
    request.drafter = MakeDrafter(draft);
    const auto on_token = [&, i](Engine::RequestId, const GeneratedToken& token) {
      sheet->outcome(i).prediction.output += streams[i].Push(token.id);
      const bool ends =
          streams[i].stopped() || IsAnswered(task.metric, sheet->outcome(i).prediction);
      return ends ? FinishReason::kStop : FinishReason::kNone;
    };
    const auto on_finish = [&, i](Engine::RequestId, const RequestOutcome& outcome) {
      if (!outcome.status.ok() && failure.ok()) failure = OfExample(i, outcome.status);
      if (!outcome.status.ok()) return;
      TaskPrediction& prediction = sheet->outcome(i).prediction;
      prediction.output += streams[i].Finish();
      prediction.tokens = outcome.tokens;
      prediction.score = Score(task.metric, prediction.output, task.examples[i].references);
      sheet->outcome(i).kv_fraction = FractionOf(*model, outcome.kv_bytes, outcome.n_cached_tokens);
      sheet->Finish(i);
    };
    const Status submitted = engine.Submit(std::move(request), on_token, on_finish).status();
    if (!submitted.ok()) return OfExample(i, submitted);
  }
  while (failure.ok() && !sheet->is_hopeless() && engine.Step()) {
  }
  return failure;
}

int IndexOfMost(std::span<const double> values) {
  return static_cast<int>(std::max_element(values.begin(), values.end()) - values.begin());
}

// Code points (a byte that is not UTF-8 counts as one), without one space before them; at least 1.
double CharactersOf(std::string_view choice) {
  if (choice.starts_with(' ')) choice.remove_prefix(1);
  int n = 0;
  for (size_t pos = 0; pos < choice.size(); ++n) {
    const Utf8Char c = ReadUtf8(choice, pos);
    pos += c.state == Utf8Char::State::kWhole ? c.n_bytes : 1;
  }
  return std::max(n, 1);
}

bool IsRight(const PreparedExample& example, int picked) {
  if (example.text.answer >= 0) return picked == example.text.answer;
  return Score(TaskMetric::kChoice, example.text.choices[picked], example.references) == 1;
}

TaskPrediction Pick(const PreparedExample& example, WeighedChoices weighed, bool norm_leads) {
  const std::vector<std::string>& choices = example.text.choices;
  TaskPrediction prediction;
  if (example.questions.size() > 1) {
    for (const std::vector<double>& question : weighed.log_likelihoods) {
      prediction.output += choices[IndexOfMost(question)];
    }
    prediction.score = Score(TaskMetric::kChoice, prediction.output, example.references);
    return prediction;
  }
  prediction.log_likelihoods = std::move(weighed.log_likelihoods[0]);
  prediction.picked = IndexOfMost(prediction.log_likelihoods);
  prediction.is_right = IsRight(example, prediction.picked);
  if (example.text.choice_prompts.empty()) {
    std::vector<double> by_character = prediction.log_likelihoods;
    for (size_t i = 0; i < choices.size(); ++i) by_character[i] /= CharactersOf(choices[i]);
    prediction.picked_norm = IndexOfMost(by_character);
    prediction.is_right_norm = IsRight(example, prediction.picked_norm);
  }
  const bool takes_norm = norm_leads && prediction.picked_norm >= 0;
  prediction.taken = takes_norm ? prediction.picked_norm : prediction.picked;
  prediction.output = choices[prediction.taken];
  prediction.score = takes_norm ? prediction.is_right_norm : prediction.is_right;
  return prediction;
}

Status Choose(Model* model, const PreparedTask& task, int64_t kv_budget_bytes, ScoreSheet* sheet) {
  BlockPool pool(kv_budget_bytes, &model->machine().memory());
  for (size_t i = 0; i < task.examples.size() && !sheet->is_hopeless(); ++i) {
    StatusOr<WeighedChoices> weighed = WeighChoices(model, &pool, task.examples[i]);
    if (!weighed.ok()) return OfExample(i, weighed.status());
    sheet->outcome(i).kv_fraction = FractionOf(*model, weighed->kv_bytes, weighed->n_cached_tokens);
    sheet->outcome(i).prediction = Pick(task.examples[i], *std::move(weighed), task.norm_leads);
    sheet->Finish(i);
  }
  return OkStatus();
}

}  // namespace

MeanScore MeanOf(std::span<const double> values) {
  const double n = static_cast<double>(values.size());
  MeanScore of;
  for (const double v : values) of.mean += v;
  of.mean /= n;
  double squares = 0;
  for (const double v : values) squares += (v - of.mean) * (v - of.mean);
  if (n > 1) of.standard_error = std::sqrt(squares / (n - 1) / n);
  return of;
}

StatusOr<TaskResult> RunTask(Model* model, const Tokenizer& tokenizer, const PreparedTask& task,
                             int64_t kv_budget_bytes, const Progress& progress, double least_score,
                             const std::optional<DraftOptions>& draft) {
  ScoreSheet sheet(task, least_score, progress);
  KVL_RETURN_IF_ERROR(task.metric == TaskMetric::kChoice
                          ? Choose(model, task, kv_budget_bytes, &sheet)
                          : Generate(model, tokenizer, task, kv_budget_bytes, draft, &sheet));
  return sheet.Result();
}

}  // namespace kvlathe
