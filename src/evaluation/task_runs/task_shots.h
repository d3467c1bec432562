// Solved questions, out of the same file, stand before the one that is asked.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/status.h"
#include "evaluation/task_runs/task_files.h"
#include "evaluation/tasks/task.h"

namespace kvlathe {

// How many; at most one of the two is more than 0.
struct ShotRule {
  int count = 0;
  int min_tokens = 0;  // as few as it takes until the prompt, question included, has these tokens

  bool asks_for_any() const { return count > 0 || min_tokens > 0; }
};

// The example whose solved text is shot k (k < n - 1) of example i out of n: they begin half a file
// away, go round at its end, and pass over example i. So every example has shots, none sees its own
// answer, and which ones it sees does not depend on how many examples are run.
size_t ShotOf(size_t i, size_t n, size_t k);

// An example as it reads when it has been answered: the prompt, of a choice the right one's, with
// the first reference behind it.
std::string SolvedText(const TaskExample& example);

// kInvalidArgument when the file has no solved questions to offer, or too few.
Status CheckShots(const TaskFile& file, const ShotRule& rule);

struct ShotExamples {
  std::vector<TaskExample> examples;
  double mean_shots = 0;  // those that the file already had before its examples included
};

// The first examples of the file with shots before them, a blank line between one and the next.
// `count_tokens` counts those of a prompt. kInvalidArgument as CheckShots, and when all shots of an
// example are too few.
StatusOr<ShotExamples> AddShots(const TaskFile& file, size_t n_examples, const ShotRule& rule,
                                const TokenCounter& count_tokens);

}  // namespace kvlathe
