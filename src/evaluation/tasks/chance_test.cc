// Measures what a blind answer of the right form scores, against the chance() that tasks state.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <sstream>

#include "evaluation/tasks/solvers.h"
#include "evaluation/tasks/task.h"

namespace kvlathe {
namespace {

constexpr int kExamples = 1000;

std::vector<TaskExample> Examples(std::string_view name) {
  std::vector<TaskExample> examples;
  for (int i = 0; i < kExamples; ++i) {
    examples.push_back(*(*FindTask(name))->Generate({}, i, CountTokens));
  }
  return examples;
}

double Chance(std::string_view name) { return (*FindTask(name))->chance(); }

// The mean score of each example's answer as the answer of the next example.
template <typename Score>
double ScoreOfNeighbours(std::string_view name, Score score) {
  const std::vector<TaskExample> examples = Examples(name);
  double sum = 0;
  for (int i = 0; i < kExamples; ++i) {
    sum += score(examples[i].references[0], examples[(i + 1) % kExamples].references[0]);
  }
  return sum / kExamples;
}

std::vector<std::string> WordsOf(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) {
    if (std::isalnum(static_cast<unsigned char>(word[0]))) words.push_back(word);
  }
  return words;
}

double Rouge1(const std::string& a, const std::string& b) {
  std::map<std::string, int> left;
  const std::vector<std::string> a_words = WordsOf(a), b_words = WordsOf(b);
  for (const std::string& word : a_words) ++left[word];
  int shared = 0;
  for (const std::string& word : b_words) shared += left[word]-- > 0;
  return 2.0 * shared / static_cast<double>(a_words.size() + b_words.size());
}

double EditSimilarity(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return 1 - static_cast<double>(row.back()) / static_cast<double>(std::max(a.size(), b.size()));
}

double LineMatch(const std::string& a, const std::string& b) {
  std::istringstream a_lines(a), b_lines(b);
  int matches = 0, lines = 0;
  for (std::string line, other; std::getline(b_lines, line); ++lines) {
    matches += std::getline(a_lines, other) && line == other;
  }
  return static_cast<double>(matches) / lines;
}

// One of the candidates in the prompt; the mean over examples of one by their number.
template <typename CountCandidates>
double OneOf(std::string_view name, CountCandidates count) {
  double sum = 0;
  for (const TaskExample& example : Examples(name)) sum += 1.0 / count(example.prompt);
  return sum / kExamples;
}

int Occurrences(const std::string& text, std::string_view part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Chance, SummaryIsTheScoreOfAnotherAnswer) {
  EXPECT_NEAR(ScoreOfNeighbours("summary", Rouge1), Chance("summary"), 0.02);
}

TEST(Chance, CodeIsTheScoreOfAnotherAnswer) {
  EXPECT_NEAR(ScoreOfNeighbours("code", EditSimilarity), Chance("code"), 0.02);
}

TEST(Chance, RulesIsTheScoreOfAnotherAnswer) {
  EXPECT_NEAR(ScoreOfNeighbours("rules", LineMatch), Chance("rules"), 0.001);
}

TEST(Chance, OfListsIsNone) {
  for (const std::string_view name : {"sort", "copy"}) {
    EXPECT_EQ(ScoreOfNeighbours(name, std::equal_to<>()), Chance(name));
  }
}

TEST(Chance, ArithmeticIsThatOfTwoEqualResults) {
  std::map<std::string, int> counts;
  for (const TaskExample& example : Examples("arithmetic")) {
    ++counts[example.references[0].substr(example.references[0].rfind(' '))];
  }
  double sum = 0;
  for (const auto& [unused, count] : counts) sum += count * (count - 1.0);
  EXPECT_NEAR(sum / (kExamples * (kExamples - 1.0)), Chance("arithmetic"), 0.001);
}

TEST(Chance, ClassifyIsEightEvenVerdicts) {
  const std::vector<TaskExample> examples = Examples("classify");
  int n_good = 0;
  for (const TaskExample& example : examples) {
    ASSERT_EQ(example.earlier_answers.size(), 7u);
    for (const auto& [begin, end] : example.earlier_answers) {
      n_good += example.prompt.substr(begin, end - begin) == " good";
    }
    n_good += example.references[0] == " good";
  }
  const double share = n_good / 8.0 / kExamples;
  EXPECT_NEAR(share, 0.5, 0.02);
  EXPECT_NEAR(std::pow(share, 8), Chance("classify"), 0.002);
}

TEST(Chance, RecallIsOneOfTheValues) {
  const auto n_records = [](const std::string& prompt) {
    return Occurrences(prompt.substr(0, prompt.find("\nrecall\n") + 1), "\n");
  };
  EXPECT_NEAR(OneOf("recall", n_records), Chance("recall"), 0.3 * Chance("recall"));
}

TEST(Chance, MultihopIsOneOfTheChains) {
  // Things that are inside something but hold nothing are as many as chains.
  const auto n_chains = [](const std::string& prompt) {
    const std::string text = prompt.substr(0, prompt.find('\n'));
    int n = 0;
    for (size_t at = text.find(" is in the "); at != std::string::npos;
         at = text.find(" is in the ", at + 1)) {
      const size_t begin = text.rfind("the ", at) + 4;
      n += text.find(" is in the " + text.substr(begin, at - begin) + " .") == std::string::npos;
    }
    return n;
  };
  EXPECT_NEAR(OneOf("multihop", n_chains), Chance("multihop"), 1e-9);
}

TEST(Chance, PasskeyIsOneOfFiveDigits) { EXPECT_DOUBLE_EQ(Chance("passkey"), 1.0 / 90000); }

}  // namespace
}  // namespace kvlathe
