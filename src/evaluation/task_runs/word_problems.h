// Word problems are answered by writing down the way to the answer: GSM8K, whose answers are
// numbers, and AQuA, whose answers are options A to E.
#pragma once

#include <string>

#include "base/status.h"
#include "evaluation/task_runs/task_files.h"

namespace kvlathe {

// Solved questions that stand before the one asked, and the form that they ask in.
struct FewShots {
  std::string text;             // ends in a blank line, unless it is empty
  int count = 0;                // how many the text holds
  std::string question = "Q:";  // what opens a question
  std::string options;          // the line between a question and its options, where it has any
  std::string cue = "A:";       // the line after the question, after which the answer follows
};

// How many lines of a file of solved questions are taken as shots.
inline constexpr int kFileShots = 8;

// From a prompt file: blocks with a blank line between them, each a question line ("Q: ...",
// "Question: ...") and an answer. The cue is the second line where all blocks share it ("Let's
// think step by step"), else the label that opens it ("A:"). From a .jsonl file in the form of
// GSM8K's train set: its first 8 lines.
StatusOr<FewShots> ReadFewShots(const std::string& path);

// {"question", "answer"}, where the answer ends in "#### 18". Metric final_answer, stop "\n\n", and
// room for 512 tokens, here and in AQuA. Calculator annotations ("<<3*4=12>>") and blank lines are
// taken out of answers.
StatusOr<TaskFile> ReadGsm8k(const std::string& path, const FewShots& shots);

// The form of the usual chain-of-thought prompt, without shots: "Question: ...", "Option:", the
// options, "Let's think step by step".
FewShots AquaForm();

// From a prompt file as ReadFewShots reads it, but with a line and options ("A)...") between the
// question and the cue. From a .json or .jsonl file in the form of AQuA: its first 8 lines.
StatusOr<FewShots> ReadAquaShots(const std::string& path);

// {"question", "options": ["A)...", ...], "rationale", "correct": "A"}, 2 to 5 options. Metric
// option_letter, stop "\n\n". The reference is the rationale without blank lines and "The answer is
// A)." behind it.
StatusOr<TaskFile> ReadAqua(const std::string& path, const FewShots& shots);

}  // namespace kvlathe
