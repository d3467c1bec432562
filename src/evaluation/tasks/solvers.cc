#include "evaluation/tasks/solvers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <sstream>

#include "evaluation/tasks/words.h"

namespace kvlathe {
namespace {

using Strings = std::vector<std::string>;

Strings SplitBy(const std::string& text, const std::string& separator) {
  Strings parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string::npos;) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::string ReplaceAll(const std::string& text, const std::string& from, const std::string& to) {
  return fmt::format("{}", fmt::join(SplitBy(text, from), to));
}

Strings Words(const std::string& text) {
  std::istringstream stream(text);
  Strings words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// The text between the last `before` and the first `after` behind it; empty when there is none.
std::string Between(const std::string& text, const std::string& before, const std::string& after) {
  const size_t at = text.rfind(before);
  if (at == std::string::npos) return "";
  const size_t begin = at + before.size();
  return text.substr(begin, text.find(after, begin) - begin);
}

Solution SolvePasskey(const std::string& prompt) {
  const std::string key = Between(prompt, "The pass key is ", ".");
  return {" " + key, {key}};
}

// The words of a record before the three of its value.
std::string KeyOf(const Strings& record) {
  return fmt::format("{}", fmt::join(record.begin(), record.end() - 3, " "));
}

Solution SolveRecall(const std::string& prompt) {
  std::map<std::string, std::string> values;
  Solution solution;
  bool is_asking = false;
  for (const std::string& line : SplitBy(prompt, "\n")) {
    if (line == "recall") {
      is_asking = true;
      continue;
    }
    const Strings words = SplitBy(line, " ");
    if (is_asking) {
      // The last question has no answer yet.
      const bool is_open = words.size() < 4;
      const std::string key = is_open ? line : KeyOf(words);
      solution.contents.push_back(key + values.at(key));
      solution.answer = values.at(key);
    } else {
      const std::string key = KeyOf(words);
      values[key] = line.substr(key.size());
    }
  }
  return solution;
}

Solution SolveMultihop(const std::string& prompt) {
  std::map<std::string, std::string> outer_of;
  for (const std::string& sentence : SplitBy(ReplaceAll(prompt, "\n", " "), " . ")) {
    const Strings sides = SplitBy(sentence, " is in the ");
    if (sides.size() == 2 && sides[0].starts_with("the ")) outer_of[sides[0].substr(4)] = sides[1];
  }
  std::string thing = Between(prompt, "where is the ", " ?");
  Solution solution{.contents = {thing}};
  while (outer_of.contains(thing)) {
    const std::string& outer = outer_of.at(thing);
    solution.answer +=
        solution.answer.empty() ? " " + outer : fmt::format(" , the {} is in the {}", thing, outer);
    solution.contents[0] += ">" + outer;
    thing = outer;
  }
  return solution;
}

Solution SolveArithmetic(const std::string& prompt) {
  Solution solution;
  for (const std::string& line : SplitBy(prompt, "\n")) {
    const Strings words = Words(line);
    int result = std::stoi(words[1]);
    std::string expression = words[1];
    solution.answer.clear();
    for (size_t i = 2; words[i] != ":"; i += 2) {
      const int next = result + std::stoi(words[i] + words[i + 1]);
      expression += " " + words[i] + " " + words[i + 1];
      solution.answer += fmt::format(" {} {} {} = {} ,", result, words[i], words[i + 1], next);
      result = next;
    }
    solution.answer += fmt::format(" answer {}", result);
    solution.contents.push_back(expression);
  }
  return solution;
}

Solution SolveSort(const std::string& prompt) {
  Solution solution;
  for (const std::string& line : SplitBy(prompt, "\n")) {
    std::set<int> numbers;
    for (const std::string& word : Words(Between(line, "sort ", " :"))) {
      numbers.insert(std::stoi(word));
    }
    solution.contents.push_back(fmt::format("{}", fmt::join(numbers, " ")));
    solution.answer = " " + solution.contents.back();
  }
  return solution;
}

Solution SolveCopy(const std::string& prompt) {
  const std::string words = Between(prompt, "copy :", "\n");
  Strings leading = Words(words);
  leading.resize(8);
  return {words, {fmt::format(" {}", fmt::join(leading, " "))}};
}

// What the words of a review say, each turned round by a "not" in front.
int PraiseOf(const std::string& review) {
  int sum = 0, sign = 1;
  for (const std::string& word : Words(review)) {
    const auto praise =
        std::ranges::count(GoodWords(), word) - std::ranges::count(BadWords(), word);
    sum += sign * static_cast<int>(praise);
    sign = word == "not" ? -1 : 1;
  }
  return sum;
}

// The houses' kinds stand behind the first word of long names.
std::string NameOf(const std::string& line) {
  const Strings words = SplitBy(line, " ");
  const std::set<std::string> kinds = {"inn", "hotel", "lodge", "tavern"};
  const bool is_long = words.size() > 1 && kinds.contains(words[1]);
  return is_long ? words[0] + " " + words[1] : words[0];
}

Solution SolveClassify(const std::string& prompt) {
  Solution solution;
  std::map<std::string, std::string> reviews;
  bool is_asking = false;
  for (const std::string& line : SplitBy(prompt, "\n")) {
    if (line == "verdict") {
      is_asking = true;
    } else if (!is_asking) {
      reviews[NameOf(line)] = line;
    } else {
      const std::string name = NameOf(line);
      const std::string& review = reviews.at(name);
      solution.contents.push_back(review);
      solution.answer = PraiseOf(review.substr(name.size())) > 0 ? " good" : " bad";
    }
  }
  return solution;
}

Solution SolveSummary(const std::string& prompt) {
  Solution solution;
  for (const std::string& paragraph : SplitBy(prompt, "\n")) {
    const std::string point = Between(paragraph, "the main point is that ", " .");
    if (point.empty()) continue;
    solution.contents.push_back(point + " .");
    solution.answer += " " + point + " .";
  }
  return solution;
}

struct CodeField {
  std::string name, type, initial;
};

// A function without its field: <name>, <type> and <default> stand for what is the field's.
std::string ModelOf(const std::string& function, const CodeField& field) {
  std::string model = ReplaceAll(function.substr(function.find('\n')), field.name, "<name>") + "\n";
  for (const std::string after : {"\n", ":", ")", " "}) {
    model = ReplaceAll(model, "= " + field.initial + after, "= <default>" + after);
    model = ReplaceAll(model, " " + field.type + after, " <type>" + after);
  }
  model.pop_back();
  return model;
}

// Rewrites the first function for each other field.
Solution SolveCode(const std::string& prompt) {
  Strings blocks = SplitBy(prompt, "\n\n");
  std::vector<CodeField> fields;
  for (const std::string& line : SplitBy(blocks[0], "\n")) {
    const size_t colon = line.find(": "), equals = line.find(" = ");
    if (equals == std::string::npos) continue;
    fields.push_back({line.substr(2, colon - 2), line.substr(colon + 2, equals - colon - 2),
                      line.substr(equals + 3)});
  }
  const auto field_of = [&](const std::string& function) {
    return *std::ranges::find_if(fields, [&](const CodeField& field) {
      return function.find("_" + field.name + "(") != std::string::npos;
    });
  };
  const std::string model = ModelOf(blocks[1], field_of(blocks[1]));
  blocks.back() += "\n";
  Solution solution;
  for (size_t i = 1; i < blocks.size(); ++i) {
    const CodeField field = field_of(blocks[i]);
    solution.answer = ReplaceAll(model, "<name>", field.name);
    solution.answer = ReplaceAll(solution.answer, "<default>", field.initial);
    solution.answer = ReplaceAll(solution.answer, "<type>", field.type);
    const std::string indent = "\n    ";
    solution.contents.push_back(Between(blocks[i], "  def ", ":\n") +
                                solution.answer.substr(indent.size()));
  }
  return solution;
}

Solution SolveRules(const std::string& prompt) {
  std::map<std::string, Strings> facts;
  for (const std::string& sentence : SplitBy(ReplaceAll(prompt, "\n", " "), " . ")) {
    const Strings words = Words(sentence);
    if (sentence.find(" and lives in the ") != std::string::npos) {
      facts[words[1]] = {words[3], words[8]};
    }
  }
  const Strings order = SplitBy(Between(prompt, "order : ", " .\n"), " , ");
  const int first = std::stoi(Between(prompt, "count from ", " to "));
  const int last = std::stoi(Between(prompt, " to ", " . each"));
  Solution solution{.contents = {std::to_string(first)}};
  for (const std::string& name : order) {
    solution.contents[0] += fmt::format("the {} is {} and lives in the {} . ", name,
                                        facts.at(name)[0], facts.at(name)[1]);
  }
  for (int number = first; number <= last; ++number) {
    const std::string& name = order[(number - first) % order.size()];
    solution.answer += fmt::format("{}{} , {} , {} , {} .", number == first ? " " : "\n", number,
                                   name, facts.at(name)[0], facts.at(name)[1]);
  }
  return solution;
}

}  // namespace

int CountTokens(std::string_view text) {
  int tokens = 0, letters = 0;
  bool in_number = false;
  for (const unsigned char c : text) {
    if (std::isalpha(c)) {
      tokens += letters++ % 5 == 0;
      in_number = false;
      continue;
    }
    letters = 0;
    if (std::isdigit(c)) tokens += in_number ? 1 : 2;
    in_number = std::isdigit(c);
    if (!in_number && c != ' ') ++tokens;
  }
  return tokens;
}

Solution Solve(std::string_view task, const std::string& prompt) {
  static const std::map<std::string_view, Solution (*)(const std::string&)> solvers = {
      {"passkey", SolvePasskey},   {"recall", SolveRecall},
      {"multihop", SolveMultihop}, {"arithmetic", SolveArithmetic},
      {"sort", SolveSort},         {"copy", SolveCopy},
      {"classify", SolveClassify}, {"summary", SolveSummary},
      {"code", SolveCode},         {"rules", SolveRules}};
  return solvers.at(task)(prompt);
}

}  // namespace kvlathe
