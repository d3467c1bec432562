// Train examples of the task suite become rows of token ids.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "evaluation/tasks/task.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {

// Fills rows of a fixed number of tokens with whole examples: the length asked of an example is
// drawn up to what is left in the row, so that long rows hold long examples as well.
class TaskRowPacker {
 public:
  // kInvalidArgument for an unknown task, or a row too short for one of them.
  static StatusOr<TaskRowPacker> Create(const std::map<std::string, double>& weights,
                                        int row_tokens, uint64_t seed, const Tokenizer* tokenizer);

  // From here on rows mark all tokens but those of answers and of what ends them (kNotLearned).
  void LearnAnswersOnly() { answers_only_ = true; }

  // The next row: examples, each after BOS if the tokenizer has one; what no example fits into is
  // filled with the beginning of one. Adds the bytes of text to *n_bytes.
  Status NextRow(std::vector<uint32_t>* row, int64_t* n_bytes);

 private:
  struct Choice {
    const Task* task;
    double cumulative;  // of the weights
  };
  const Task& Draw();
  StatusOr<TaskExample> Generate(const Task& task, int length);
  std::vector<uint32_t> Tokens(const TaskExample& example) const;

  std::vector<Choice> choices_;
  int row_tokens_ = 0;
  int shortest_ = 0;  // smallest min_length
  bool answers_only_ = false;
  uint64_t seed_ = 0;
  uint64_t n_generated_ = 0;
  uint64_t n_drawn_ = 0;
  const Tokenizer* tokenizer_ = nullptr;
};

}  // namespace kvlathe
