// The tasks with parameters: what their parameters do, and that each answer follows from the
// prompt.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "evaluation/tasks/haystack.h"
#include "evaluation/tasks/solvers.h"
#include "evaluation/tasks/task.h"
#include "evaluation/tasks/tool_solver.h"

namespace kvlathe {
namespace {

using Strings = std::vector<std::string>;

TaskExample Make(const std::string& text, const TaskOptions& options, uint64_t index,
                 const std::string& haystack = "") {
  const auto task = MakeTask(text, haystack);
  EXPECT_TRUE(task.ok()) << task.status();
  StatusOr<TaskExample> example = (*task)->Generate(options, index, CountTokens);
  EXPECT_TRUE(example.ok()) << example.status();
  return *std::move(example);
}

// What the text that the question is about says, behind the worked example.
std::string AskedText(const std::string& prompt) {
  const size_t begin = prompt.rfind("\n\nText: ");
  return begin == std::string::npos ? prompt : prompt.substr(begin);
}

Strings Matches(const std::string& text, const std::string& pattern, int group = 0) {
  const std::regex regex(pattern);
  Strings matches;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) {
    matches.push_back((*it)[group]);
  }
  return matches;
}

// Every solver gives the set of texts that has to stand in the answer.
std::set<std::string> SolveNeedle(const std::string& prompt) {
  const std::string text = AskedText(prompt);
  const size_t question = text.rfind("Question:");
  std::set<std::string> values;
  const std::regex statement(R"(secret \w+ of the (\w+ \w+) is ([-\w]+)\.)");
  for (std::sregex_iterator it(text.begin(), text.end(), statement), end; it != end; ++it) {
    const std::string key = (*it)[1];
    if (text.find("the " + key, question) != std::string::npos) values.insert((*it)[2]);
  }
  return values;
}

std::set<std::string> SolveVariables(const std::string& prompt) {
  const std::string text = AskedText(prompt);
  std::string value = text.substr(text.rfind("value ") + 6);
  value.resize(value.find(' '));
  std::map<std::string, std::string> values;
  const std::regex assignment(R"(VAR (\w+) = (VAR )?(\w+)\.)");
  std::set<std::string> names;
  for (std::sregex_iterator it(text.begin(), text.end(), assignment), end; it != end; ++it) {
    const std::string from = (*it)[3];
    values[(*it)[1]] = (*it)[2].matched ? values.at(from) : from;
    if (values[(*it)[1]] == value) names.insert((*it)[1]);
  }
  return names;
}

std::map<std::string, int> CountWords(const std::string& prompt) {
  std::string list = prompt.substr(prompt.rfind("Words: ") + 7);
  list.resize(list.find('\n'));
  std::istringstream stream(list);
  std::map<std::string, int> counts;
  for (std::string word; stream >> word;) ++counts[word];
  return counts;
}

// As many of the most frequent words as the worked example has.
std::set<std::string> SolveFrequent(const std::string& prompt) {
  const std::string shown = Matches(prompt, R"(most often (is|are)([ ,\w]+)\.)", 2)[0];
  const size_t n_words = std::count(shown.begin(), shown.end(), ',') + 1;
  std::vector<std::pair<int, std::string>> order;
  for (const auto& [word, count] : CountWords(prompt)) order.push_back({-count, word});
  std::ranges::sort(order);
  std::set<std::string> words;
  for (size_t i = 0; i < n_words; ++i) words.insert(order[i].second);
  return words;
}

std::string JsonValue(const std::string& sentence, const std::string& key) {
  static const std::map<std::string, std::string> patterns = {
      {"age", R"(is (\d+) years old)"},   {"city", R"(lives in (\w+)\.)"},
      {"job", R"(works as a (\w+)\.)"},   {"pet", R"(keeps a (\w+)\.)"},
      {"children", R"(has (\d+) child)"}, {"salary", R"(earns (\d+) a month)"}};
  if (key == "name") return sentence.substr(0, sentence.find(' '));
  if (key == "married") return sentence.find("not married") == std::string::npos ? "true" : "false";
  return Matches(sentence, patterns.at(key), 1).at(0);
}

// The keys and the quotes are those of the first worked example.
std::set<std::string> SolveJson(const std::string& prompt) {
  const std::string sentences = prompt.substr(prompt.rfind("Text: ") + 6);
  std::string shown = prompt.substr(prompt.find('{'));
  shown.resize(shown.find('}') + 1);
  std::string object = " {";
  const std::regex field(R"re("(\w+)": ("?))re");
  for (std::sregex_iterator it(shown.begin(), shown.end(), field), end; it != end; ++it) {
    const std::string quote = (*it)[2], key = (*it)[1];
    object += (object.size() > 2 ? ", \"" : "\"") + key + "\": " + quote +
              JsonValue(sentences, key) + quote;
  }
  return {object + "}"};
}

struct Case {
  const char* text;
  std::set<std::string> (*solve)(const std::string& prompt);
  size_t n_references;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.text; }

class EveryVariant : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    Tasks, EveryVariant,
    testing::Values(
        Case{"needle", SolveNeedle, 1}, Case{"needle(keys=4)", SolveNeedle, 1},
        Case{"needle(values=3)", SolveNeedle, 3}, Case{"needle(queries=2)", SolveNeedle, 2},
        Case{"needle(keys=100,queries=10,values=10)", SolveNeedle, 100},
        Case{"needle(kind=words,keys=3,values=2,queries=2)", SolveNeedle, 4},
        Case{"needle(kind=uuids,depth=0.25)", SolveNeedle, 1}, Case{"variables", SolveVariables, 3},
        Case{"variables(hops=0,chains=3)", SolveVariables, 1},
        Case{"variables(hops=10,chains=20)", SolveVariables, 11},
        Case{"frequent", SolveFrequent, 3}, Case{"frequent(words=1,ratio=2)", SolveFrequent, 1},
        Case{"frequent(words=10,ratio=20)", SolveFrequent, 10}, Case{"json", SolveJson, 1},
        Case{"json(fields=2)", SolveJson, 1}, Case{"json(fields=8)", SolveJson, 1},
        Case{"tools", SolveTools, 1}, Case{"tools(count=4)", SolveTools, 1},
        Case{"tools(count=8)", SolveTools, 1}));

TEST_P(EveryVariant, AnswersFollowFromThePrompt) {
  const auto task = *MakeTask(GetParam().text);
  for (const int length : {task->min_length(), task->default_length()}) {
    for (const TaskSplit split : {TaskSplit::kTrain, TaskSplit::kTest}) {
      for (uint64_t index = 0; index < 10; ++index) {
        const TaskExample example =
            Make(GetParam().text, {.split = split, .length = length}, index);
        std::set<std::string> wanted;
        for (const std::string& reference : example.references) {
          ASSERT_EQ(reference.front(), ' ');
          wanted.insert(task->metric() == TaskMetric::kFound ? reference.substr(1) : reference);
        }
        ASSERT_EQ(wanted.size(), GetParam().n_references);
        ASSERT_EQ(GetParam().solve(example.prompt), wanted) << example.prompt;
      }
    }
  }
}

TEST_P(EveryVariant, TheCanonicalAnswerHasAllReferencesAndNoStop) {
  for (uint64_t index = 0; index < 20; ++index) {
    const TaskExample example = Make(GetParam().text, {}, index);
    const std::string& answer = CanonicalAnswer(example);
    for (const std::string& reference : example.references) {
      EXPECT_NE(answer.find(reference), std::string::npos);
    }
    EXPECT_EQ(answer.find(example.stop), std::string::npos);
    EXPECT_EQ(answer.front(), ' ');
    EXPECT_NE(example.prompt.back(), ' ');
  }
}

// A sentence of the template prose, a round of words or a worked example of eight fields.
constexpr int kLongestPart = 110;

TEST_P(EveryVariant, FillsTheLengthFromBelow) {
  const int shortest = (*MakeTask(GetParam().text))->min_length();
  for (const int length : {shortest, shortest + 150, 2 * shortest, shortest + 3000}) {
    for (uint64_t index = 0; index < 10; ++index) {
      const TaskExample example = Make(GetParam().text, {.length = length}, index);
      const int tokens = CountTokens(example.prompt + CanonicalAnswer(example));
      ASSERT_LE(tokens, length) << example.prompt;
      if (length > shortest) {
        ASSERT_GE(tokens, length - kLongestPart) << example.prompt;
      }
    }
  }
}

TEST_P(EveryVariant, SameArgumentsGiveTheSameExample) {
  const std::string text = GetParam().text;
  const TaskExample a = Make(text, {.seed = 5}, 7), b = Make(text, {.seed = 5}, 7);
  EXPECT_EQ(a.prompt, b.prompt);
  EXPECT_EQ(a.references, b.references);
  EXPECT_NE(a.references, Make(text, {.seed = 5}, 8).references);
  EXPECT_NE(a.references, Make(text, {.seed = 6}, 7).references);
}

TEST_P(EveryVariant, SurvivesCountersThatMakeNoSense) {
  const auto task = *MakeTask(GetParam().text);
  for (const int constant : {-5, 0, 1000000}) {
    const auto example = task->Generate({}, 0, [&](std::string_view) { return constant; });
    ASSERT_TRUE(example.ok());
    EXPECT_EQ(GetParam().solve(example->prompt).size(), GetParam().n_references);
  }
}

TEST(Needle, StandsAtTheDepthAskedFor) {
  for (const double depth : {0.0, 0.3, 0.5, 1.0}) {
    for (uint64_t index = 0; index < 20; ++index) {
      const TaskExample example =
          Make("needle(depth=" + std::to_string(depth) + ")", {.length = 3000}, index);
      const size_t begin = example.prompt.find("\n\n") + 2, end = example.prompt.rfind("\n\n");
      const size_t at = example.prompt.find("The secret number");
      EXPECT_NEAR(static_cast<double>(at - begin) / static_cast<double>(end - begin), depth, 0.05);
    }
  }
}

TEST(Needle, StandsAnywhereWithoutADepth) {
  int by_quarter[4] = {};
  for (uint64_t index = 0; index < 400; ++index) {
    const std::string prompt = Make("needle", {.length = 1500}, index).prompt;
    ++by_quarter[4 * prompt.find("The secret number") / prompt.size()];
  }
  for (const int count : by_quarter) EXPECT_NEAR(count, 100, 40);
}

TEST(Needle, ValuesAndDepthsLeaveEachOtherAlone) {
  const TaskExample early = Make("needle(depth=0.1)", {}, 4),
                    late = Make("needle(depth=0.9)", {}, 4);
  EXPECT_EQ(early.references, late.references);
  EXPECT_NE(early.prompt, late.prompt);
}

TEST(Needle, KeysAndValuesAreAllDifferent) {
  for (const std::string kind : {"numbers", "words", "uuids"}) {
    const std::string prompt =
        Make("needle(keys=100,kind=" + kind + ")", {.length = 9000}, 1).prompt;
    const std::string statement = R"(of the (\w+) (\w+) is ([-\w]+)\.)";
    for (const int group : {2, 3}) {
      const Strings all = Matches(prompt, statement, group);
      EXPECT_EQ(all.size(), 100u);
      EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), 100u) << kind;
    }
  }
}

TEST(Needle, NumbersHaveSevenDifferentDigits) {
  for (uint64_t index = 0; index < 200; ++index) {
    const std::string number = Make("needle", {.length = 500}, index).references[0].substr(1);
    EXPECT_EQ(number.size(), 7u);
    EXPECT_EQ(std::set<char>(number.begin(), number.end()).size(), 7u);
    EXPECT_NE(number[0], '0');
  }
}

TEST(Frequent, WordsComeAsManyTimesMoreOftenAsAskedFor) {
  const auto counts = CountWords(Make("frequent(words=2,ratio=5)", {.length = 3000}, 2).prompt);
  std::vector<int> order;
  for (const auto& [word, count] : counts) order.push_back(count);
  std::ranges::sort(order, std::greater<>());
  EXPECT_EQ(order.size(), 2u + 20u);
  EXPECT_EQ(order[0], order[1]);
  EXPECT_NEAR(order[2] * 5, order[0], 5);
}

TEST(Tools, OfferAsManyAsAskedForAndAskForAllInTurn) {
  std::set<std::string> asked;
  int n_earlier = 0;
  for (uint64_t index = 0; index < 200; ++index) {
    const TaskExample example = Make("tools(count=5)", {}, index);
    const Strings offered = Matches(example.prompt, R"x(\n\{"name": "(\w+)", "description")x", 1);
    EXPECT_EQ(offered.size(), 5u);
    EXPECT_EQ(std::set<std::string>(offered.begin(), offered.end()).size(), 5u);
    const std::string tool = Matches(example.references[0], R"x("name": "(\w+)")x", 1).at(0);
    EXPECT_EQ(std::ranges::count(offered, tool), 1);
    asked.insert(tool);
    n_earlier += Matches(example.prompt, R"(Request: .* is (the|my) .*\.\nCall:$)").size() == 1;
  }
  EXPECT_EQ(asked.size(), 15u);
  // 11 of the 15 tools have a value that the conversation says.
  EXPECT_NEAR(n_earlier, 200 * 11 / 15, 30);
}

TEST(TaskText, SentencesComeInTheirOrderFromAnyPlaceRoundAndRound) {
  const std::string haystack = "One a. Two b!  \"Three c?\" Mr. Four\nd.\n\nFive e\n\nSix f.";
  const Strings sentences = {"One a.", "Two b!", "\"Three c?\"", "Mr. Four d.", "Five e", "Six f."};
  std::set<size_t> starts;
  for (uint64_t index = 0; index < 60; ++index) {
    const std::string prompt = Make("needle(depth=1)", {.length = 600}, index, haystack).prompt;
    size_t at = prompt.find("\n\n") + 2;
    const auto first = std::ranges::find_if(sentences, [&](const std::string& sentence) {
      return prompt.compare(at, sentence.size(), sentence) == 0;
    });
    ASSERT_NE(first, sentences.end()) << prompt;
    size_t next = first - sentences.begin();
    starts.insert(next);
    for (int i = 0; i < 20; ++i, next = (next + 1) % sentences.size()) {
      ASSERT_EQ(prompt.substr(at, sentences[next].size() + 1), sentences[next] + " ");
      at += sentences[next].size() + 1;
    }
  }
  EXPECT_EQ(starts.size(), sentences.size());
}

TEST(TaskText, AnyBytesAreCutIntoSentencesWithoutLoss) {
  Random rng(3, 0);
  for (int i = 0; i < 200; ++i) {
    std::string text = "x";
    const size_t n = rng.Below(3000);
    while (text.size() < n) {
      const bool is_byte = rng.Below(3) == 0;
      text += is_byte ? static_cast<char>(rng.Below(256)) : ". \n\"abc"[rng.Below(7)];
    }
    const auto haystack = Haystack::FromText(text);
    ASSERT_TRUE(haystack.ok());
    const TaskRequest request{TaskSplit::kTest, 100, 1, CountTokens};
    for (const std::string& sentence : haystack->Draw(request, 0, 50)) {
      EXPECT_FALSE(sentence.empty());
      EXPECT_LE(sentence.size(), 810u);
    }
  }
}

TEST(MakeTask, GivesTasksWithoutParametersAsTheyAre) {
  for (const Task* task : BuiltInTasks()) {
    EXPECT_EQ(MakeTask(task->name())->get(), task);
    EXPECT_TRUE(task->parameters().empty());
  }
  EXPECT_EQ((*MakeTask("passkey()"))->name(), "passkey");
}

TEST(MakeTask, NamesTasksAsTheyWereAskedFor) {
  EXPECT_EQ((*MakeTask(" needle( keys = 4 , kind=words ) "))->name(), "needle(keys=4,kind=words)");
  EXPECT_EQ((*MakeTask("needle()"))->name(), "needle");
  const auto tasks = ParameterTasks();
  ASSERT_EQ(tasks.size(), 5u);
  for (const auto& task : tasks) {
    EXPECT_FALSE(task->parameters().empty());
    EXPECT_LE(task->min_length(), task->default_length());
    // No corpus is made of them.
    EXPECT_FALSE(FindTask(task->name()).ok());
  }
}

TEST(MakeTask, SaysWhatIsWrongAndWhatThereIs) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "there are passkey"},
      {"nedle", "needle, variables, frequent, json, tools"},
      {"needle(", "bracket"},
      {"needle(keys=4", "bracket"},
      {"needle(keys=4) ()", "bracket"},
      {"needle(keys)", "key=value"},
      {"needle(=4)", "key=value"},
      {"needle(keys=)", "key=value"},
      {"needle(,)", "key=value"},
      {"needle(keys=4,keys=5)", "twice"},
      {"needle(keys=0)", "keys=0 is not one of 1..100"},
      {"needle(keys=101)", "1..100"},
      {"needle(keys=99999999999999999999)", "1..100"},
      {"needle(keys=4x)", "1..100"},
      {"needle(values=-1)", "1..10"},
      {"needle(keys=2,queries=3)", "queries=3"},
      {"needle(kind=letters)", "numbers|words|uuids"},
      {"needle(depth=1.5)", "0..1"},
      {"needle(depth=nan)", "0..1"},
      {"needle(depth=inf)", "0..1"},
      {"needle(hops=1)", "no parameter 'hops'; it takes queries=1..10"},
      {"variables(hops=11)", "hops=0..10"},
      {"frequent(words=11)", "words=1..10"},
      {"json(fields=9)", "fields=2..8"},
      {"tools(count=9)", "count=4..8"},
      {"passkey(keys=1)", "no parameters"},
  };
  for (const auto& [text, part] : cases) {
    const auto task = MakeTask(text);
    ASSERT_FALSE(task.ok()) << text;
    EXPECT_NE(MessageOf(task.status()).find(part), std::string::npos) << task.status();
  }
}

TEST(MakeTask, RefusesHaystacksThatNothingCanBeHiddenIn) {
  EXPECT_EQ(MakeTask("nothing", "A text.").status().code(), StatusCode::kNotFound);
  for (const char* text : {"json", "frequent", "passkey"}) {
    EXPECT_EQ(MakeTask(text, "A text.").status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(MakeTask("needle", " \n\n\t ").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvlathe
