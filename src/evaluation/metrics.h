// Metrics score an output against references. Every function returns a value in [0, 1], higher is
// better, for any bytes. No function looks at the locale: letters are lower-cased in ASCII only.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "evaluation/tasks/task.h"

namespace kvlathe {

// The name in JSON and on the command line: "exact_match", "f1", "rouge1", "rougeL",
// "rouge_l_union", "edit_similarity", "choice", "final_answer", "option_letter", "line_match",
// "found", "json_fields", "stated_answer", "tool_call".
std::string_view MetricName(TaskMetric metric);
// kInvalidArgument with the list of names.
StatusOr<TaskMetric> ParseMetric(std::string_view name);

// The highest score over the references, for kFound their mean; 0 without one. White space around
// outputs and references does not count, whatever the metric.
double Score(TaskMetric metric, std::string_view output, std::span<const std::string> references);

// Equal after trimming and with every run of white space read as one space.
bool IsExactMatch(std::string_view output, std::string_view reference);

// F1 of the bags of words after SQuAD's normalisation: lower case, no ASCII punctuation, no
// articles. Two texts without words match (SQuAD 2.0).
double F1(std::string_view output, std::string_view reference);

// As Google's rouge_score computes them without a stemmer: words are runs of [a-z0-9] after lower
// casing; F-measure of common words (ROUGE-1) and of the longest common subsequence (ROUGE-L).
// 0 when either text has no words.
double Rouge1(std::string_view output, std::string_view reference);
double RougeL(std::string_view output, std::string_view reference);

// ROUGE-L of summaries as the Python package `rouge` 1.0.1 computes it, which LongBench scores
// with: texts are cut into sentences at full stops and these into words at white space, as they are
// written. F-measure of the different words of each text and those that stand in a longest common
// subsequence of any two sentences. 0 when either text has nothing but full stops.
double RougeLUnion(std::string_view output, std::string_view reference);

// 1 - Levenshtein distance / longer length, in code points (a byte that is not UTF-8 counts as one
// of its own). 1 for two empty texts.
double EditSimilarity(std::string_view output, std::string_view reference);

// The number that a text says is the answer: the first one behind "####" on its line, without one
// the first one behind "answer is" (a model may write on behind its answer), without that the last
// number of the text. In canonical form ("-1,250.50" gives "-1250.5"), so that equal numbers are
// equal strings. A minus belongs to a number unless something is subtracted ("16-3" ends in 3);
// commas join groups of three digits only.
std::optional<std::string> FinalAnswer(std::string_view text);

// The option, 'A' to 'E', that a text says is the answer: that of the last "answer is X", however
// "(B)" or "**B" is marked, else the last such letter that stands alone ("A" as a word is taken for
// one too). Letters are capital; "answer is b)" is read as well.
std::optional<char> OptionLetter(std::string_view text);

// What a text says is the answer: what stands behind the first "so the answer is", or without one
// behind the first "answer is", up to the end of the sentence or of the line: "(B)", "24", "costume
// counterpart oven". A model may write on behind its answer, and then answer other questions.
// Nothing where no such words have anything behind them.
struct StatedText {
  std::string answer;
  bool is_whole = false;  // more text would not change it
};
std::optional<StatedText> FindStatedAnswer(std::string_view text);
std::optional<std::string> StatedAnswer(std::string_view text);

// Share of the reference's lines that the output has at the same place, each compared as
// IsExactMatch does. More lines than the reference has change nothing.
double LineMatch(std::string_view output, std::string_view reference);

// Whether the reference stands in the output as whole words: no letter or digit next to it. Letters
// are equal in either case, and any run of white space is one space. False for an empty reference.
bool StandsIn(std::string_view output, std::string_view reference);

// Share of the fields of the reference, a JSON object, that the output's object has with equal
// values; fields beyond those change nothing. The output's object goes from its first '{' to the
// brace that closes it. 0 where either does not parse as an object or the reference has no fields.
double JsonFields(std::string_view output, std::string_view reference);

// What of a call of a tool, {"name": ..., "arguments": {...}}, is as it should be. The call is the
// object that the output begins with; what a model writes behind it does not count. Orders of keys
// are free.
struct CallMarks {
  bool is_json = false;        // the output begins with a JSON object
  bool names_tool = false;     // "name" is the reference's
  bool has_arguments = false;  // "arguments" has the reference's values and no others

  bool is_right() const { return names_tool && has_arguments; }
};
CallMarks JudgeCall(std::string_view output, std::string_view reference);

}  // namespace kvlathe
