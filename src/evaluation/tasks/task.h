// The synthetic task suite generates examples from a seed, so that accuracy under a compressed
// cache can be measured without any data set. The tasks mirror, at small scale, the workloads of
// the papers: retrieval from a long context, reasoning in steps, and long generation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/text_range.h"

namespace kvlathe {

// Train and test never share an example: what an answer depends on is hashed, and the hash decides
// to which of the two it belongs.
enum class TaskSplit { kTrain, kTest };

// How an output is scored against the references; every score lies in [0, 1].
enum class TaskMetric {
  kExactMatch,      // after trimming and collapsing white space
  kF1,              // bag of words, as in SQuAD
  kRouge1,          // F-measure
  kRougeL,          // F-measure
  kRougeLUnion,     // F-measure of the sentences' common words, as LongBench has it
  kEditSimilarity,  // 1 - Levenshtein distance / longer length, in characters
  // The choice with the highest log-likelihood is the reference, and so at each of the earlier
  // answers, given those before it.
  kChoice,
  kFinalAnswer,   // the number that the output says is the answer is the reference's
  kOptionLetter,  // the option that the output says is the answer, A to E, is the reference's
  kLineMatch,     // share of the reference's lines that the output has at the same place
  kFound,         // share of the references that stand somewhere in the output, as whole words
  // Share of the fields of the reference, a JSON object, that the output's first JSON object has
  // with equal values; 0 where it does not parse.
  kJsonFields,
  // What the output says is the answer ("So the answer is X.") is what the reference says, word for
  // word.
  kStatedAnswer,
  // The output begins with a JSON object with the "name" and the "arguments" of the reference.
  kToolCall,
};

struct TaskExample {
  std::string prompt;
  // What may follow the prompt, byte for byte (white space included); the first one is canonical:
  // training text is prompt + references[0] + stop.
  // For kFound: what has to stand in the answer.
  std::vector<std::string> references;
  // An answer with all references in it, where references[0] is not one. Empty otherwise.
  std::string whole_answer;
  // For kChoice: continuations to weigh, references[0] among them. Empty otherwise.
  std::vector<std::string> choices;
  // Generation ends before this text. Never empty, never part of a reference.
  std::string stop = "\n\n";
  // Texts that end it as well, none of them empty or part of a reference.
  std::vector<std::string> more_stops;
  // An answer may have so many tokens, however short the references are.
  int room_tokens = 0;
  // And no more than these, however long the references are; 0 sets no limit.
  int most_tokens = 0;
  // What of the prompt answers earlier questions of the task: training examples ask several.
  std::vector<TextRange> earlier_answers;
  // For kChoice where the choices differ before the question and not behind it (WinoGrande): the
  // prompt of each choice, [choices.size()]; `prompt` is then what all of them begin with, and
  // every choice is the same text. Empty otherwise.
  std::vector<std::string> choice_prompts;
  // For kChoice: the index of the right choice. Without it (-1) it is the choice that equals
  // references[0]; where choice_prompts is used it is always given.
  int answer = -1;
};

// Tokens of a text in the tokenizer of the model that is evaluated.
using TokenCounter = std::function<int(std::string_view)>;

struct TaskOptions {
  TaskSplit split = TaskSplit::kTest;
  uint64_t seed = 1;
  // Tokens that prompt and canonical answer should fill together: reached from below, to within a
  // filler sentence or record. 0 takes the task's own default.
  int length = 0;
};

class Task {
 public:
  virtual ~Task() = default;

  virtual std::string_view name() const = 0;
  virtual std::string_view description() const = 0;  // one line
  // What MakeTask takes in brackets behind the name: "keys=1..100, kind=numbers|words|uuids". Empty
  // when there is nothing.
  virtual std::string_view parameters() const = 0;
  virtual TaskMetric metric() const = 0;
  // The score of an answer drawn blindly from the answers that fit the form.
  virtual double chance() const = 0;
  virtual int default_length() const = 0;
  // The shortest length at which an example still is one of this task.
  virtual int min_length() const = 0;

  // Example `index` of a stream: the same arguments give the same example everywhere.
  // kInvalidArgument when options.length is below min_length().
  virtual StatusOr<TaskExample> Generate(const TaskOptions& options, uint64_t index,
                                         const TokenCounter& count_tokens) const = 0;
};

// What a perfect model writes: whole_answer or references[0].
const std::string& CanonicalAnswer(const TaskExample& example);

// The built-in tasks without parameters, in the order of the documentation.
std::span<const Task* const> BuiltInTasks();
// kInvalidArgument with the list of names when there is none of this name.
StatusOr<const Task*> FindTask(std::string_view name);

// The built-in tasks that take parameters, with their defaults.
std::vector<std::shared_ptr<const Task>> ParameterTasks();
// Any built-in task as it is asked for: "passkey", "needle(keys=4, kind=words)". Its name() is the
// text without white space. `haystack` is the text in which tasks hide things; empty: prose from
// templates. kNotFound when there is no such task and kInvalidArgument when there is no such
// parameter or value (the message says what there is), when the haystack has no words, or when one
// is given to a task that hides nothing.
StatusOr<std::shared_ptr<const Task>> MakeTask(std::string_view text,
                                               const std::string& haystack = "");

}  // namespace kvlathe
