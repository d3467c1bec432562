// Runs the examples of a task on one model with one cache and scores what comes out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "evaluation/quality.h"
#include "evaluation/tasks/task.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {

// One question of a kChoice example in tokens.
struct PreparedQuestion {
  int n_prompt = 0;  // tokens of the example's prompt that stand before it
  // The tokens of each choice from where the choices begin to differ from the prompt. At least one
  // each.
  std::vector<std::vector<int32_t>> choices;
};

// One example in tokens.
struct PreparedExample {
  TaskExample text;
  // BOS first where the model has one. For kChoice what comes before the last question.
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

  double mean_prompt_tokens() const;
};

// Prompts are tokenised as text: special tokens written in them are not special. max_tokens is what
// the longest reference takes and half as much again. kInvalidArgument, with the number of the
// example, when prompt and reference do not fit `context_tokens`; kDataLoss when tokenizer and
// model do not belong together.
StatusOr<PreparedTask> PrepareTask(TaskMetric metric, std::vector<TaskExample> examples,
                                   const Tokenizer& tokenizer, const ModelConfig& config,
                                   int context_tokens);

struct TaskPrediction {
  std::string output;  // generated up to the stop text, or the choices taken
  double score = 0;
};

struct TaskResult {
  double score = 0;         // mean; if the run gave up, what it could have become at most
  double score_stderr = 0;  // standard error of that mean; 0 for one example
  // Mean over examples of the bytes that a sequence holds at its end, against 16 bits for every
  // value of the positions it has (blueprint section 4).
  double kv_fraction = 0;
  std::vector<TaskPrediction> predictions;  // in the order of the examples
  // `least_score` was out of reach before all examples had run; score_stderr, kv_fraction and
  // the predictions of those that had not are left at 0.
  bool gave_up = false;
};

// Greedy. Several sequences run at the same time as far as the KV budget allows; the choices of one
// example run one after the other. `progress` may be null. Ends early where the mean cannot reach
// `least_score` any more. An example that fails fails the task, with its number from 1: kDataLoss
// when the model computes rows or logits that are not finite, kResourceExhausted when the budget
// does not hold it.
StatusOr<TaskResult> RunTask(Model* model, const Tokenizer& tokenizer, const PreparedTask& task,
                             int64_t kv_budget_bytes, const Progress& progress,
                             double least_score = 0);

}  // namespace kvlathe
