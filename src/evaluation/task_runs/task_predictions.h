// Predictions hold what a model made of every example of a task, as JSON lines, and what a cache
// changed of it against the uncompressed model's.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "evaluation/task_runs/task_run.h"

namespace kvlathe {

// How predictions were made.
struct PredictionSource {
  std::string kv;           // as typed
  std::string kv_resolved;  // with all defaults
  std::string task;         // its name
};

// A JSON object and a line feed: kv, kv_resolved, task, index (from 0), prompt, output, reference,
// score; of generated text tokens, their ids; and for a choice in an example of one question
// loglikelihoods, picked and picked_norm (null where there is none); tokens_crc32c, by which a
// baseline's example is known again.
std::string PredictionLine(const PredictionSource& source, size_t index,
                           const PreparedExample& example, const TaskPrediction& prediction);

// The predictions of the uncompressed model (kv_resolved "none") in such a file, in the order of
// the examples; lines of other tasks and caches are passed over. Without their log-likelihoods.
// kNotFound without the file, kInvalidArgument with file and line when a line is not one of
// predictions or not one of this task's examples (another prompt, or another model's tokens), and
// with the file where they are more or fewer.
StatusOr<std::vector<TaskPrediction>> ReadBaseline(const std::string& path,
                                                   std::string_view task_name,
                                                   const PreparedTask& task);

// Where generated texts part from the baseline's. Tokens up to the first that differs, over
// examples; one that never parts counts with all its tokens.
struct TaskParting {
  double mean = 0, median = 0;
  double never = 0;  // share of the examples that never part
};

struct TaskChange {
  // Share of examples with another answer than the baseline's, be it right or wrong: another choice
  // (the one that the score looks at), or another text.
  double flips = 0;
  // Mean of the differences, score less the baseline's score, example by example. Its standard
  // error is that of paired samples, far smaller than the scores' own where both answer alike.
  MeanScore score_change;
  std::optional<TaskParting> parting;  // where all predictions have tokens
};
// Both of the same examples, at least one.
TaskChange ChangeFrom(std::span<const TaskPrediction> baseline,
                      std::span<const TaskPrediction> predictions);

}  // namespace kvlathe
