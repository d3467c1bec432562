// From examples in text to examples in tokens.
#include <fmt/format.h>

#include <algorithm>

#include "evaluation/task_runs/task_run.h"

namespace kvlathe {
namespace {

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
    if (!example->text.choice_prompts.empty()) return PrepareContexts(example);
    KVL_ASSIGN_OR_RETURN(example->prompt, Tokenize(example->text.prompt));
    if (example->prompt.empty()) {
      return Error(StatusCode::kInvalidArgument, "example {}: the prompt has no tokens", number_);
    }
    example->references = example->text.references;
    if (metric != TaskMetric::kChoice) return PrepareGeneration(example);
    KVL_RETURN_IF_ERROR(CheckAnswer(example->text));
    return PrepareQuestions(example);
  }

 private:
  StatusOr<std::vector<int32_t>> Tokenize(const std::string& text) const {
    KVL_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                         tokenizer_.TryTokenize(text, /*add_bos=*/true, /*parse_special=*/false));
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

  Status CheckAnswer(const TaskExample& text) const {
    if (text.answer < static_cast<int>(text.choices.size())) return OkStatus();
    return Error(StatusCode::kInvalidArgument, "example {}: answer {} of {} choices", number_,
                 text.answer, text.choices.size());
  }

  Status NothingLeft() const {
    return Error(StatusCode::kInvalidArgument,
                 "example {}: no token of prompt or choice is left where they meet; put a space or "
                 "a word between them",
                 number_);
  }

  Status PrepareGeneration(PreparedExample* example) const {
    const int n_prompt = static_cast<int>(example->prompt.size());
    int n_longest = 1;
    std::vector<std::string> answers = example->text.references;
    answers.push_back(CanonicalAnswer(example->text));
    for (const std::string& answer : answers) {
      KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, Tokenize(example->text.prompt + answer));
      KVL_RETURN_IF_ERROR(CheckFits(ids.size(), "reference"));
      n_longest = std::max(n_longest, static_cast<int>(ids.size()) - n_prompt);
    }
    KVL_RETURN_IF_ERROR(CheckFits(example->prompt.size() + n_longest, "answer"));
    int n_room = std::max(n_longest + n_longest / 2 + kSpareTokens, example->text.room_tokens);
    if (example->text.most_tokens > 0) n_room = std::min(n_room, example->text.most_tokens);
    example->max_tokens = std::min(n_room, context_tokens_ - n_prompt);
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
        return NothingLeft();
      }
    }
    question.n_context.assign(question.choices.size(), 0);
    example->questions.push_back(std::move(question));
    return OkStatus();
  }

  // Of an example whose choices have prompts of their own: what all begin with is read once.
  Status PrepareContexts(PreparedExample* example) const {
    KVL_RETURN_IF_ERROR(CheckAnswer(example->text));
    example->references = example->text.references;
    const std::vector<std::string>& prompts = example->text.choice_prompts;
    std::vector<std::vector<int32_t>> wholes;
    std::vector<size_t> n_contexts;  // tokens of the prompts
    size_t n_shared = static_cast<size_t>(context_tokens_);
    for (size_t i = 0; i < prompts.size(); ++i) {
      KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, Tokenize(prompts[i]));
      KVL_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                           Tokenize(prompts[i] + example->text.choices[i]));
      KVL_RETURN_IF_ERROR(CheckFits(ids.size(), "choice"));
      n_contexts.push_back(CommonPrefix(prompt, ids));
      if (n_contexts[i] == 0 || n_contexts[i] == ids.size()) return NothingLeft();
      wholes.push_back(std::move(ids));
      n_shared = std::min({n_shared, n_contexts[i], CommonPrefix(wholes[0], wholes[i])});
    }
    PreparedQuestion question{.n_prompt = static_cast<int>(n_shared)};
    for (size_t i = 0; i < wholes.size(); ++i) {
      question.choices.emplace_back(wholes[i].begin() + n_shared, wholes[i].end());
      question.n_context.push_back(static_cast<int>(n_contexts[i] - n_shared));
    }
    example->prompt.assign(wholes[0].begin(), wholes[0].begin() + n_shared);
    example->questions.push_back(std::move(question));
    return OkStatus();
  }

  const Tokenizer& tokenizer_;
  int vocab_size_;
  int context_tokens_;
  size_t number_;  // from 1
};

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

}  // namespace kvlathe
