#include "evaluation/task_runs/longbench.h"

#include <algorithm>
#include <string_view>

#include "evaluation/task_runs/task_lines.h"

namespace kvlathe {
namespace {

// A set, with the prompt that LongBench publishes for it.
struct LongSet {
  std::string_view name;
  TaskMetric metric;
  int most_tokens;          // of an answer
  std::string_view prompt;  // {context} and {input} stand for fields of a line
  std::string_view stop;    // what another example of the prompt's form would begin with
};

// Questions about several passages have one prompt.
constexpr std::string_view kPassages =
    "Answer the question based on the given passages. Only give me the answer and do not output "
    "any other words.\n\nThe following are given passages.\n{context}\n\nAnswer the question based "
    "on the given passages. Only give me the answer and do not output any other words.\n\n"
    "Question: {input}\nAnswer:";
constexpr std::string_view kAnotherQuestion = "\n\nQuestion:";

constexpr LongSet kLongSets[] = {
    {"multi_news", TaskMetric::kRougeLUnion, 512,
     "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n"
     "{context}\n\nNow, write a one-page summary of all the news.\n\nSummary:",
     "\n\nNews:\n"},
    {"gov_report", TaskMetric::kRougeLUnion, 512,
     "You are given a report by a government agency. Write a one-page summary of the report.\n\n"
     "Report:\n{context}\n\nNow, write a one-page summary of the report.\n\nSummary:",
     "\n\nReport:\n"},
    {"qmsum", TaskMetric::kRougeLUnion, 512,
     "You are given a meeting transcript and a query containing a question or instruction. Answer "
     "the query in one or more sentences.\n\nTranscript:\n{context}\n\nNow, answer the query based "
     "on the above meeting transcript in one or more sentences.\n\nQuery: {input}\nAnswer:",
     "\n\nQuery:"},
    {"samsum", TaskMetric::kRougeLUnion, 128,
     "Summarize the dialogue into a few short sentences. The following are some examples.\n\n"
     "{context}\n\n{input}",
     "\n"},
    {"narrativeqa", TaskMetric::kF1, 128,
     "You are given a story, which can be either a novel or a movie script, and a question. Answer "
     "the question asconcisely as you can, using a single phrase if possible. Do not provide any "
     "explanation.\n\nStory: {context}\n\nNow, answer the question based on the story asconcisely "
     "as you can, using a single phrase if possible. Do not provide any explanation.\n\n"
     "Question: {input}\n\nAnswer:",
     kAnotherQuestion},
    {"qasper", TaskMetric::kF1, 128,
     "You are given a scientific article and a question. Answer the question as concisely as you "
     "can, using a single phrase or sentence if possible. If the question cannot be answered based "
     "on the information in the article, write \"unanswerable\". If the question is a yes/no "
     "question, answer \"yes\", \"no\", or \"unanswerable\". Do not provide any explanation.\n\n"
     "Article: {context}\n\n Answer the question based on the above article as concisely as you "
     "can, using a single phrase or sentence if possible. If the question cannot be answered based "
     "on the information in the article, write \"unanswerable\". If the question is a yes/no "
     "question, answer \"yes\", \"no\", or \"unanswerable\". Do not provide any explanation.\n\n"
     "Question: {input}\n\nAnswer:",
     kAnotherQuestion},
    {"multifieldqa_en", TaskMetric::kF1, 64,
     "Read the following text and answer briefly.\n\n{context}\n\nNow, answer the following "
     "question based on the above text, only give me the answer and do not output any other words."
     "\n\nQuestion: {input}\nAnswer:",
     kAnotherQuestion},
    {"hotpotqa", TaskMetric::kF1, 32, kPassages, kAnotherQuestion},
    {"2wikimqa", TaskMetric::kF1, 32, kPassages, kAnotherQuestion},
    {"musique", TaskMetric::kF1, 32, kPassages, kAnotherQuestion},
    {"triviaqa", TaskMetric::kF1, 32,
     "Answer the question based on the given passage. Only give me the answer and do not output "
     "any other words. The following are some examples.\n\n{context}\n\n{input}",
     "\n"},
};

StatusOr<const LongSet*> SetOf(const TaskLine& line) {
  KVL_ASSIGN_OR_RETURN(const std::string name, line.Text("dataset"));
  std::string names;
  for (const LongSet& set : kLongSets) {
    if (set.name == name) return &set;
    names += (names.empty() ? "" : ", ") + std::string(set.name);
  }
  return line.Refuse("LongBench's set \"{}\" is not scored here; there are {}", name, names);
}

// Fields may hold braces themselves, so each is put in once.
std::string Filled(std::string_view prompt, std::string_view context, std::string_view input) {
  std::string text;
  while (!prompt.empty()) {
    const size_t brace = std::min(prompt.find('{'), prompt.size());
    text += prompt.substr(0, brace);
    prompt.remove_prefix(brace);
    if (prompt.empty()) break;
    text += prompt.starts_with("{context}") ? context : input;
    prompt.remove_prefix(prompt.find('}') + 1);
  }
  return text;
}

StatusOr<TaskExample> ReadLongExample(const TaskLine& line, const LongSet& set) {
  TaskExample example{.stop = std::string(set.stop),
                      .room_tokens = set.most_tokens,
                      .most_tokens = set.most_tokens};
  KVL_ASSIGN_OR_RETURN(const std::string context, line.FullText("context"));
  KVL_ASSIGN_OR_RETURN(const std::string input, line.Text("input"));
  KVL_ASSIGN_OR_RETURN(const std::vector<std::string> answers, line.Texts("answers"));
  if (set.prompt.find("{input}") != std::string_view::npos && Trimmed(input).empty()) {
    return line.Refuse("\"input\" is empty; set {} asks something there", set.name);
  }
  example.prompt = Filled(set.prompt, context, input);
  for (const std::string& answer : answers) {
    if (answer.find(set.stop) != std::string::npos) {
      return line.Refuse("an answer contains {}, which ends an output",
                         nlohmann::json(set.stop).dump());
    }
    example.references.push_back(" " + answer);
  }
  return example;
}

}  // namespace

StatusOr<TaskFile> ReadLongBench(const std::string& path) {
  TaskFile file;
  const LongSet* set = nullptr;
  KVL_RETURN_IF_ERROR(ForEachTaskLine(path, [&](const TaskLine& line) -> Status {
    KVL_ASSIGN_OR_RETURN(const LongSet* const its, SetOf(line));
    if (set != nullptr && set != its) {
      return line.Refuse("set {} after lines of set {}; put them in files of their own", its->name,
                         set->name);
    }
    set = its;
    KVL_ASSIGN_OR_RETURN(TaskExample example, ReadLongExample(line, *set));
    file.examples.push_back(std::move(example));
    return OkStatus();
  }));
  KVL_RETURN_IF_ERROR(CheckNotEmpty(path, file));
  file.name = "longbench/" + std::string(set->name);
  file.metric = set->metric;
  file.cuts_middle = true;
  return file;
}

std::string WithoutMiddle(const std::string& prompt, int most_tokens, const Tokenizer& tokenizer) {
  const auto tokenize = [&](const std::string& text) {
    return tokenizer.Tokenize(text, /*add_bos=*/true, /*parse_special=*/false);
  };
  const std::vector<int32_t> ids = tokenize(prompt);
  const size_t n_most = static_cast<size_t>(most_tokens);
  if (ids.size() <= n_most) return prompt;
  const std::span<const int32_t> all(ids);
  for (size_t half = n_most / 2;;) {
    std::string cut = tokenizer.Detokenize(all.first(half)) + tokenizer.Detokenize(all.last(half));
    // What is cut is text, whose tokens where the halves meet may be others and more.
    const size_t n_cut = tokenize(cut).size();
    if (half <= 1 || n_cut <= n_most) return cut;
    half -= std::min(half - 1, (n_cut - n_most + 1) / 2);
  }
}

}  // namespace kvlathe
