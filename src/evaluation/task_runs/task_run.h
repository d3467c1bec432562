// A task run takes the examples of a task through one model with one cache and scores what comes
// out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/drafts/drafter.h"
#include "evaluation/quality.h"
#include "evaluation/tasks/task.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {

// One question of a kChoice example in tokens.
struct PreparedQuestion {
  int n_prompt = 0;  // tokens of the example's prompt that stand before it
  // The tokens of each choice from where the choices begin to differ from the prompt. At least one
  // each. A token across the boundary of prompt and choice belongs to the choice; but for that, the
  // tokens are those of prompt and choice together less the prompt's, as lm-evaluation-harness has
  // it.
  std::vector<std::vector<int32_t>> choices;
  // How many of them are the choice's own context, which is read and not weighed: 0 but with
  // TaskExample::choice_prompts. The rest is at least one token.
  std::vector<int> n_context;  // [choices.size()]
};

// One example in tokens.
struct PreparedExample {
  TaskExample text;
  // BOS first where the model has one. For kChoice what comes before the last question; empty where
  // choices have contexts that begin with different tokens.
  std::vector<int32_t> prompt;
  int max_tokens = 0;                       // to generate
  std::vector<PreparedQuestion> questions;  // for kChoice, in their order
  // What an output is compared with: the text's, for kChoice behind the earlier answers.
  std::vector<std::string> references;
};

// Tokenised once, run with any number of caches.
struct PreparedTask {
  TaskMetric metric = TaskMetric::kExactMatch;
  std::vector<PreparedExample> examples;
  std::vector<int> eos_ids;
  // The score of a choice is whether it is the likeliest by character (TaskResult::acc_norm) where
  // there is such a thing, not whether it is the likeliest.
  bool norm_leads = false;

  double mean_prompt_tokens() const;
};

// Prompts are tokenised as text: special tokens written in them are not special. max_tokens is what
// the longest reference takes and half as much again, or the example's room_tokens where those are
// more, as far as the context goes. kInvalidArgument, with the number of the
// example, when prompt and reference do not fit `context_tokens` or the answer is none of the
// choices; kDataLoss when tokenizer and model do not belong together.
StatusOr<PreparedTask> PrepareTask(TaskMetric metric, std::vector<TaskExample> examples,
                                   const Tokenizer& tokenizer, const ModelConfig& config,
                                   int context_tokens);

struct TaskPrediction {
  std::string output;  // generated up to the stop text, or the choices taken
  // All that was generated, with the tokens of the stop text and without the end of the sequence.
  // None for choices, and where a file of predictions has none.
  std::optional<std::vector<int32_t>> tokens;
  double score = 0;
  // Of a choice in an example of one question; empty, -1 and false otherwise. The first of equals
  // is picked, as lm-evaluation-harness does.
  std::vector<double> log_likelihoods;  // [n_choices], sums over the tokens of each
  int picked = -1;                      // the likeliest
  // By the sum divided by the characters of the choice, without one space before it. -1 and false
  // also where choices have contexts of their own: they are the same text.
  int picked_norm = -1;
  bool is_right = false, is_right_norm = false;
  int taken = -1;  // of picked and picked_norm the one that output and score are by
};

struct MeanScore {
  double mean = 0;
  double standard_error = 0;  // of the mean: sample standard deviation / sqrt(n); 0 for one value
};
// At least one value.
MeanScore MeanOf(std::span<const double> values);

struct TaskResult {
  double score = 0;         // mean; if the run gave up, what it could have become at most
  double score_stderr = 0;  // standard error of that mean; 0 for one example
  // For kChoice, as lm-evaluation-harness defines them: the share of examples whose likeliest
  // choice is right, and that by character where every prediction has one.
  std::optional<MeanScore> acc, acc_norm;
  // For kToolCall: the shares of outputs that are a JSON object, that name the right tool, and that
  // have the right arguments (metrics.h). Absent for others.
  struct CallShares {
    double is_json = 0, names_tool = 0, has_arguments = 0;
  };
  std::optional<CallShares> calls;
  // Mean over examples of the bytes that a sequence holds at its end, against 16 bits for every
  // value of the positions it has (docs/evaluation.md). For kChoice the end is where the choices
  // are weighed: of the prompt, or of the first choice's own context where they share no token.
  double kv_fraction = 0;
  std::vector<TaskPrediction> predictions;  // in the order of the examples
  // `least_score` was out of reach before all examples had run; the standard errors, kv_fraction
  // and the predictions of those that had not are left at 0, acc, acc_norm
  // and calls absent.
  bool gave_up = false;
};

// Greedy. Several sequences run at the same time as far as the KV budget allows, of choices those
// of one example (choice_scorer.h). `progress` may be null. Ends early where the mean cannot reach
// `least_score` any more. An example that fails fails the task, with its number from 1: kDataLoss
// when the model computes rows or logits that are not finite, kResourceExhausted when the budget
// does not hold it. What is generated may be drafted, of a cache that has drafts
// (WhyNothingIsDrafted).
StatusOr<TaskResult> RunTask(Model* model, const Tokenizer& tokenizer, const PreparedTask& task,
                             int64_t kv_budget_bytes, const Progress& progress,
                             double least_score = 0,
                             const std::optional<DraftOptions>& draft = std::nullopt);

}  // namespace kvlathe
