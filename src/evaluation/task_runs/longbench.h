// LongBench: questions about long contexts and summaries of them, in JSON Lines as they are
// published (Bai et al. 2023), with its prompts, its limits on answers and its scores.
#pragma once

#include <string>

#include "base/status.h"
#include "evaluation/task_runs/task_files.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {

// {"input", "context", "answers": [...], "dataset"}, the same dataset on every line; other fields
// are passed over. Sets of questions (metric f1) and of summaries (rouge_l_union) are read; others,
// whose scores there are not, are refused by name. An answer has no more tokens than LongBench lets
// it have, and ends where the model begins another example of the prompt's form.
StatusOr<TaskFile> ReadLongBench(const std::string& path);

// A prompt of at most `most_tokens` tokens (2 or more), counted with BOS: one that has more loses
// its middle and keeps as many tokens of its beginning as of its end.
std::string WithoutMiddle(const std::string& prompt, int most_tokens, const Tokenizer& tokenizer);

}  // namespace kvlathe
