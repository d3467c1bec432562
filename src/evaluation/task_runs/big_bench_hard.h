// BIG-Bench Hard: sets of short questions that are answered by writing down the way to the answer.
// A set is a JSON file, and its chain-of-thought prompt a text file, both read as they are
// published (Suzgun et al. 2022).
#pragma once

#include <string>

#include "base/status.h"
#include "evaluation/task_runs/task_files.h"
#include "evaluation/task_runs/word_problems.h"

namespace kvlathe {

// "Q:", and "A: Let's think step by step." as a line of its own behind the question.
FewShots BigBenchHardForm();

// From a prompt file: lines up to "-----", which are dropped, a description of the set, and
// questions ("Q: ..."), each with the line "A: Let's think step by step." and an answer in which
// "the answer is" something. kInvalidArgument with file and line.
StatusOr<FewShots> ReadBigBenchHardShots(const std::string& path);

// {"examples": [{"input", "target"}, ...]}; other fields are passed over. Metric stated_answer,
// room for 512 tokens, and a stop where the next question begins. The reference is "So the answer
// is TARGET.". The task is named "bbh/" and the file's name. kInvalidArgument with file and number
// of the example (from 1), or with line and column where the file is no JSON.
StatusOr<TaskFile> ReadBigBenchHard(const std::string& path, const FewShots& shots);

}  // namespace kvlathe
