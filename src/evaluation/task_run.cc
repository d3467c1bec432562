#include "evaluation/task_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/engine.h"
#include "engine/text_stream.h"
#include "evaluation/metrics.h"

namespace kvlathe {
namespace {

constexpr int kConcurrentSequences = 16;
constexpr int kSpareTokens = 8;  // beside half of the reference: for the stop text

size_t CommonPrefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  const auto [end, ignored] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return end - a.begin();
}

// Tokenises the texts of one example and checks that they fit.
class ExamplePreparer {
 public:
  ExamplePreparer(const Tokenizer& tokenizer, const ModelConfig& config, int context_tokens,
                  size_t number)
      : tokenizer_(tokenizer),
        vocab_size_(config.vocab_size),
        context_tokens_(context_tokens),
        number_(number) {}

  Status Prepare(TaskMetric metric, PreparedExample* example) const {
    KVL_ASSIGN_OR_RETURN(example->prompt, Tokenize(example->text.prompt));
    if (example->prompt.empty()) {
      return Error(StatusCode::kInvalidArgument, "example {}: the prompt has no tokens", number_);
    }
    example->references = example->text.references;
    return metric == TaskMetric::kChoice ? PrepareQuestions(example) : PrepareGeneration(example);
  }

 private:
  StatusOr<std::vector<int32_t>> Tokenize(const std::string& text) const {
    std::vector<int32_t> ids = tokenizer_.Tokenize(text, /*add_bos=*/true, /*parse_special=*/false);
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size_) {
        return Error(StatusCode::kDataLoss,
                     "example {}: the tokenizer gives id {}, but the model's vocabulary has {}; "
                     "they do not belong together",
                     number_, id, vocab_size_);
      }
    }
    return ids;
  }

  Status CheckFits(size_t n_tokens, const char* what) const {
    if (n_tokens <= static_cast<size_t>(context_tokens_)) return OkStatus();
    return Error(StatusCode::kInvalidArgument,
                 "example {}: prompt and {} have {} tokens, but the context is {}; take shorter "
                 "examples or a model with a longer context",
                 number_, what, n_tokens, context_tokens_);
  }

  Status PrepareGeneration(PreparedExample* example) const {
    const int n_prompt = static_cast<int>(example->prompt.size());
    int n_longest = 1;
    for (const std::string& reference : example->text.references) {
      KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                           Tokenize(example->text.prompt + reference));
      KVL_RETURN_IF_ERROR(CheckFits(ids.size(), "reference"));
      n_longest = std::max(n_longest, static_cast<int>(ids.size()) - n_prompt);
    }
    KVL_RETURN_IF_ERROR(CheckFits(example->prompt.size() + n_longest, "answer"));
    example->max_tokens =
        std::min(n_longest + n_longest / 2 + kSpareTokens, context_tokens_ - n_prompt);
    return OkStatus();
  }

  Status PrepareQuestions(PreparedExample* example) const {
    const std::string_view prompt = example->text.prompt;
    std::string answers;
    for (const TextRange& earlier : example->text.earlier_answers) {
      KVL_RETURN_IF_ERROR(PrepareQuestion(prompt.substr(0, earlier.begin), example));
      answers += prompt.substr(earlier.begin, earlier.end - earlier.begin);
    }
    KVL_RETURN_IF_ERROR(PrepareQuestion(prompt, example));
    for (std::string& reference : example->references) reference.insert(0, answers);
    example->prompt.resize(example->questions.back().n_prompt);
    return OkStatus();
  }

  Status PrepareQuestion(std::string_view text, PreparedExample* example) const {
    size_t n_shared = example->prompt.size();
    std::vector<std::vector<int32_t>> wholes;
    for (const std::string& choice : example->text.choices) {
      KVL_ASSIGN_OR_RETURN(std::vector<int32_t> ids, Tokenize(fmt::format("{}{}", text, choice)));
      KVL_RETURN_IF_ERROR(CheckFits(ids.size(), "choice"));
      n_shared = std::min(n_shared, CommonPrefix(example->prompt, ids));
      wholes.push_back(std::move(ids));
    }
    // The choice that stands in the prompt agrees with it beyond the question.
    for (const std::vector<int32_t>& ids : wholes) {
      n_shared = std::min(n_shared, CommonPrefix(wholes[0], ids));
    }
    PreparedQuestion question{.n_prompt = static_cast<int>(n_shared)};
    for (const std::vector<int32_t>& ids : wholes) {
      question.choices.emplace_back(ids.begin() + n_shared, ids.end());
      if (n_shared == 0 || question.choices.back().empty()) {
        return Error(StatusCode::kInvalidArgument,
                     "example {}: no token of prompt or choice is left where they meet; put a "
                     "space or a word between them",
                     number_);
      }
    }
    example->questions.push_back(std::move(question));
    return OkStatus();
  }

  const Tokenizer& tokenizer_;
  int vocab_size_;
  int context_tokens_;
  size_t number_;  // from 1
};

double FractionOf(const Model& model, const KvBytes& bytes, int n_positions) {
  return static_cast<double>(bytes.total()) /
         static_cast<double>(ReferenceBytes(model.layout(), n_positions));
}

// What is known of one example while and after it runs.
struct Outcome {
  std::string output;
  double score = 0;
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
  void Finish(size_t i) {
    outcomes_[i].score = Score(task_.metric, outcomes_[i].output, task_.examples[i].references);
    sum_ += outcomes_[i].score;
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
      result.predictions.push_back({std::move(outcome.output), outcome.score});
    }
    double squares = 0;
    for (const TaskPrediction& p : result.predictions) {
      squares += (p.score - result.score) * (p.score - result.score);
    }
    if (n > 1 && !result.gave_up) result.score_stderr = std::sqrt(squares / (n - 1) / n);
    return result;
  }

 private:
  double BestMean() const {
    const size_t n = outcomes_.size();
    return (sum_ + static_cast<double>(n - n_done_)) / static_cast<double>(n);
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

Status Generate(Model* model, const Tokenizer& tokenizer, const PreparedTask& task,
                int64_t kv_budget_bytes, ScoreSheet* sheet) {
  const size_t n = task.examples.size();
  std::vector<TextStream> streams;
  streams.reserve(n);
  Status failure;  // the first
  BlockPool pool(kv_budget_bytes);
  Engine engine(model, &pool, {.max_sequences = kConcurrentSequences});
  for (size_t i = 0; i < n; ++i) {
    const PreparedExample& example = task.examples[i];
    streams.emplace_back(&tokenizer, std::vector<std::string>{example.text.stop});
    Request request;
    request.prompt = example.prompt;
    request.max_tokens = example.max_tokens;
    request.stop_ids = task.eos_ids;
    const auto on_token = [&, i](Engine::RequestId, int32_t id) {
      sheet->outcome(i).output += streams[i].Push(id);
      return streams[i].stopped() ? FinishReason::kStop : FinishReason::kNone;
    };
    const auto on_finish = [&, i](Engine::RequestId, const RequestOutcome& outcome) {
      if (!outcome.status.ok() && failure.ok()) failure = OfExample(i, outcome.status);
      if (!outcome.status.ok()) return;
      sheet->outcome(i).output += streams[i].Finish();
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

// Natural logarithm of the probability that softmax(logits) gives to the token; NaN when a logit is
// not finite.
double LogProbability(std::span<const float> logits, int32_t token) {
  if (!AreFinite(logits)) return std::nan("");
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(v - max);
  return logits[token] - max - std::log(sum);
}

// Weighs the choices of one example, one question after the other with the right answers to those
// before it. The prompt is read once for all choices of one token, and again for every further
// choice of more, since a cache cannot give back what was appended.
class ChoiceScorer {
 public:
  ChoiceScorer(Model* model, BlockPool* pool, const PreparedExample& example)
      : model_(model), pool_(pool), example_(example) {}

  StatusOr<Outcome> Run() {
    Outcome outcome;
    for (const PreparedQuestion& question : example_.questions) {
      KVL_ASSIGN_OR_RETURN(const size_t best, Weigh(question));
      outcome.output += example_.text.choices[best];
    }
    outcome.kv_fraction = FractionOf(*model_, cache_->bytes(), cache_->n_tokens());
    return outcome;
  }

 private:
  // The likeliest of the choices.
  StatusOr<size_t> Weigh(const PreparedQuestion& question) {
    KVL_RETURN_IF_ERROR(ReadPrompt(question.n_prompt));
    std::vector<double> scores;  // of the first tokens
    for (const std::vector<int32_t>& choice : question.choices) {
      scores.push_back(LogProbability(model_->logits(0), choice[0]));
    }
    for (size_t i = 0; i < scores.size(); ++i) {
      if (question.choices[i].size() > 1) {
        KVL_ASSIGN_OR_RETURN(const double rest, ScoreRest(question.n_prompt, question.choices[i]));
        scores[i] += rest;
      }
      if (!std::isfinite(scores[i])) {
        return Error(
            StatusCode::kDataLoss,
            "the model computed logits that are not finite behind the choice '{}' (weights "
            "or activations overflow in bf16? try --dtype f32)",
            example_.text.choices[i]);
      }
    }
    return std::max_element(scores.begin(), scores.end()) - scores.begin();
  }

  // The first n tokens of the prompt, goes on where the cache has some of them alone. For the cache
  // the prompt ends at the first question.
  Status ReadPrompt(int n) {
    const std::span<const int32_t> prompt = example_.prompt;
    const int n_first = example_.questions[0].n_prompt;
    if (cache_ == nullptr || is_spoilt_ || cache_->n_tokens() > n) {
      cache_.reset();  // gives its memory back before the next takes any
      cache_ = std::make_unique<SequenceCache>(&model_->layout(), pool_);
      is_spoilt_ = false;
      KVL_RETURN_IF_ERROR(Prefill(model_, cache_.get(), prompt.first(n_first)));
    }
    const int n_read = cache_->n_tokens();
    return n_read == n ? OkStatus()
                       : Prefill(model_, cache_.get(), prompt.subspan(n_read, n - n_read));
  }

  // Log-probability of all tokens but the first, given the prompt and what comes before each.
  StatusOr<double> ScoreRest(int n_prompt, std::span<const int32_t> choice) {
    KVL_RETURN_IF_ERROR(ReadPrompt(n_prompt));
    is_spoilt_ = true;
    std::span<const int32_t> fed = choice.first(choice.size() - 1);
    double sum = 0;
    while (!fed.empty()) {  // once, unless a run ends in between
      const int64_t n = std::min<int64_t>(static_cast<int64_t>(fed.size()), cache_->max_step());
      const std::span<const int32_t> next = choice.last(fed.size());  // what each should predict
      KVL_RETURN_IF_ERROR(cache_->Extend(static_cast<int>(n)));
      const SequenceStep step{cache_.get(), fed.first(n), SequenceStep::Logits::kAll};
      KVL_RETURN_IF_ERROR(model_->Forward({&step, 1}));
      for (int64_t t = 0; t < n; ++t) sum += LogProbability(model_->logits(t), next[t]);
      fed = fed.subspan(n);
    }
    return sum;
  }

  Model* model_;
  BlockPool* pool_;
  const PreparedExample& example_;
  std::unique_ptr<SequenceCache> cache_;
  bool is_spoilt_ = false;  // holds tokens of a choice
};

Status Choose(Model* model, const PreparedTask& task, int64_t kv_budget_bytes, ScoreSheet* sheet) {
  BlockPool pool(kv_budget_bytes);
  for (size_t i = 0; i < task.examples.size() && !sheet->is_hopeless(); ++i) {
    StatusOr<Outcome> outcome = ChoiceScorer(model, &pool, task.examples[i]).Run();
    if (!outcome.ok()) return OfExample(i, outcome.status());
    sheet->outcome(i) = *std::move(outcome);
    sheet->Finish(i);
  }
  return OkStatus();
}

}  // namespace

double PreparedTask::mean_prompt_tokens() const {
  double sum = 0;
  for (const PreparedExample& example : examples) sum += static_cast<double>(example.prompt.size());
  return examples.empty() ? 0 : sum / static_cast<double>(examples.size());
}

StatusOr<PreparedTask> PrepareTask(TaskMetric metric, std::vector<TaskExample> examples,
                                   const Tokenizer& tokenizer, const ModelConfig& config,
                                   int context_tokens) {
  if (examples.empty()) {
    return Error(StatusCode::kInvalidArgument, "a task needs at least one example");
  }
  PreparedTask task{metric, {}, config.eos_ids};
  for (TaskExample& text : examples) {
    PreparedExample& example = task.examples.emplace_back();
    example.text = std::move(text);
    const ExamplePreparer preparer(tokenizer, config, context_tokens, task.examples.size());
    KVL_RETURN_IF_ERROR(preparer.Prepare(metric, &example));
  }
  return task;
}

StatusOr<TaskResult> RunTask(Model* model, const Tokenizer& tokenizer, const PreparedTask& task,
                             int64_t kv_budget_bytes, const Progress& progress,
                             double least_score) {
  ScoreSheet sheet(task, least_score, progress);
  KVL_RETURN_IF_ERROR(task.metric == TaskMetric::kChoice
                          ? Choose(model, task, kv_budget_bytes, &sheet)
                          : Generate(model, tokenizer, task, kv_budget_bytes, &sheet));
  return sheet.Result();
}

}  // namespace kvlathe
