#include "evaluation/metrics.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvlathe {
namespace {

double ScoreOf(TaskMetric metric, const std::string& output, const std::string& reference) {
  return Score(metric, output, std::vector<std::string>{reference});
}

TEST(MetricsTest, NamesGoBothWays) {
  for (const TaskMetric metric :
       {TaskMetric::kExactMatch, TaskMetric::kF1, TaskMetric::kRouge1, TaskMetric::kRougeL,
        TaskMetric::kEditSimilarity, TaskMetric::kChoice, TaskMetric::kFinalAnswer,
        TaskMetric::kLineMatch}) {
    const auto parsed = ParseMetric(MetricName(metric));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, metric);
  }
  const auto wrong = ParseMetric("rouge");
  EXPECT_EQ(wrong.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(wrong.status()).find("rougeL"), std::string::npos);
}

TEST(MetricsTest, ExactMatchIgnoresWhiteSpaceOnly) {
  EXPECT_TRUE(IsExactMatch(" 48213", "48213\n"));
  EXPECT_TRUE(IsExactMatch("a  b\tc", "a b\nc"));
  EXPECT_FALSE(IsExactMatch("48213", "4821"));
  EXPECT_FALSE(IsExactMatch("4 8213", "48213"));
  EXPECT_FALSE(IsExactMatch("Amber", "amber"));
  EXPECT_TRUE(IsExactMatch("", " \n"));
  EXPECT_FALSE(IsExactMatch("", "a"));
}

TEST(MetricsTest, F1NormalisesAsSquad) {
  EXPECT_DOUBLE_EQ(F1("The cat.", "a CAT"), 1);
  EXPECT_DOUBLE_EQ(F1("it's", "its"), 1);
  // Common: "red"; 2 words against 3: 2 * 1 / 5.
  EXPECT_DOUBLE_EQ(F1("the red fox", "red hens run"), 0.4);
  // "x x x" has one x in common with "x y": 2 * 1 / 5.
  EXPECT_DOUBLE_EQ(F1("x x x", "x y"), 0.4);
  EXPECT_DOUBLE_EQ(F1("no", "yes"), 0);
  EXPECT_DOUBLE_EQ(F1("the", "a ."), 1);  // no words on either side
  EXPECT_DOUBLE_EQ(F1("the", "cat"), 0);
}

struct Known {
  const char* output;
  const char* reference;
  double rouge1, rouge_l, edit_similarity;
};

// rouge_score 0.1.2 (use_stemmer=False, fmeasure) and rapidfuzz 3.14.6
// (Levenshtein.normalized_similarity) gave these values.
constexpr Known kKnown[] = {
    {"the cat sat on the mat", "the cat lay on the mat", 0.833333333, 0.833333333, 0.909090909},
    {"The quick brown fox.", "the Quick, brown FOX!", 1, 1, 0.666666667},
    {"a b c d e", "e d c b a", 1, 0.2, 0.555555556},
    {"", "something here", 0, 0, 0},
    {"something here", "", 0, 0, 0},
    {"one one one two", "one two two three", 0.5, 0.5, 0.411764706},
    {"Police killed the gunman", "police kill the gunman", 0.75, 0.75, 0.875},
    {"the gunman kill police", "police killed the gunman", 0.75, 0.5, 0.125},
    {"It's 3.14 and 2,000 units", "Its 3 14 and 2000 units", 0.571428571, 0.571428571, 0.88},
    {"running runs runner", "run running ran", 0.333333333, 0.333333333, 0.368421053},
    {"caf\xC3\xA9 au lait", "cafe au lait", 0.666666667, 0.666666667, 0.916666667},
    {"na\xC3\xAFve co-operation", "naive cooperation", 0, 0, 0.888888889},
    {"line one\nline two\nline three", "line three\nline one", 0.8, 0.4, 0.464285714},
    {"x", "x", 1, 1, 1},
    {"...", "!!!", 0, 0, 0},
    {"def f(x):\n    return x + 1", "def f(y):\n    return y + 1", 0.666666667, 0.666666667,
     0.923076923},
    {"\xC3\xA9\xC3\xA8\xC3\xAA",
     "\xC3\xA9"
     "e\xC3\xAA",
     0, 0, 0.666666667},
    {"\xF0\x9F\x98\x80\xF0\x9F\x98\x81 smile", "\xF0\x9F\x98\x80 smile", 1, 1, 0.875},
    {"the main point is that the river rose and the mill stopped",
     "the mill stopped because the river rose in the night", 0.636363636, 0.454545455, 0.517241379},
    {"kitten", "sitting", 0, 0, 0.571428571},
    {"a long answer that goes on and on and on", "on and on", 0.461538462, 0.461538462, 0.225},
};

TEST(MetricsTest, RougeAndEditSimilarityAgreeWithThePythonPackages) {
  for (const Known& known : kKnown) {
    SCOPED_TRACE(known.output);
    EXPECT_NEAR(Rouge1(known.output, known.reference), known.rouge1, 1e-8);
    EXPECT_NEAR(RougeL(known.output, known.reference), known.rouge_l, 1e-8);
    EXPECT_NEAR(EditSimilarity(known.output, known.reference), known.edit_similarity, 1e-8);
  }
}

TEST(MetricsTest, RougeByHand) {
  // 4 of 6 output words and of 4 reference words: 2 * 4 / 10. In order only "a b d": 2 * 3 / 10.
  EXPECT_DOUBLE_EQ(Rouge1("a b x d c y", "a b c d"), 0.8);
  EXPECT_DOUBLE_EQ(RougeL("a b x d c y", "a b c d"), 0.6);
  EXPECT_DOUBLE_EQ(Rouge1("", ""), 0);
}

TEST(MetricsTest, EditSimilarityByHand) {
  EXPECT_DOUBLE_EQ(EditSimilarity("", ""), 1);
  EXPECT_DOUBLE_EQ(EditSimilarity("abcd", "abed"), 0.75);
  EXPECT_DOUBLE_EQ(EditSimilarity("ab", "abcd"), 0.5);
  // One code point of two differs, whatever its bytes.
  EXPECT_DOUBLE_EQ(EditSimilarity("\xC3\xA9x", "ex"), 0.5);
  // A stray byte is a character of its own and equals none.
  EXPECT_DOUBLE_EQ(EditSimilarity("\xFFx", "\xFFx"), 1);
  EXPECT_DOUBLE_EQ(EditSimilarity("\xFFx", "\xC3\xBFx"), 0.5);
  EXPECT_DOUBLE_EQ(EditSimilarity("a\xE2\x82", "a"), 1.0 / 3);
}

TEST(MetricsTest, FinalAnswerIsTheNumberSaidToBeItElseTheLast) {
  const std::pair<const char*, const char*> cases[] = {
      {"48/2 = 24 clips\n#### 72", "72"},
      {"#### 1,250", "1250"},
      {"about $80,000.00 in all", "80000"},
      {"12,345,678", "12345678"},
      {"lists: 1, 2,3", "3"},
      {"1,2345", "2345"},
      {"1234,567", "567"},
      {"16-3", "3"},
      {"(4)-3", "3"},
      {"x = -3", "-3"},
      {"-$5.50", "-5.5"},
      {"-0.0", "0"},
      {"it is .5", "0.5"},
      {"007", "7"},
      {"the answer is 18.", "18"},
      {"0.125%", "0.125"},
      {"version 3.10.2", "2"},
      {"99999999999999999999999999", "99999999999999999999999999"},
      // What a model writes behind its answer does not change it.
      {"3 * 60 = 180.\nThe answer is 180.Human: A train travels 10", "180"},
      {"THE ANSWER IS: $65,000. Let's check: 5 + 6", "65000"},
      {"The answer is 2. No, the answer is 3.", "2"},
      {"#### 7\n\nQ: 8", "7"},
      {"The answer is 8.\n#### 9", "9"},
      // One that names no number on its line says nothing.
      {"The answer is clear.\n5 and 6.\nThe answer is 11.\n12", "11"},
      {"4 clips. The answer is\n", "4"},
  };
  for (const auto& [text, answer] : cases) {
    EXPECT_EQ(FinalAnswer(text).value_or("none"), answer) << text;
  }
  for (const char* text : {"", "none", ".", "-", "$,", "#### "}) {
    EXPECT_FALSE(FinalAnswer(text).has_value()) << text;
  }
  EXPECT_EQ(ScoreOf(TaskMetric::kFinalAnswer, " So 5 and 13 make 18.00", "#### 18"), 1);
  EXPECT_EQ(ScoreOf(TaskMetric::kFinalAnswer, " 18 or 19", "#### 18"), 0);
  EXPECT_EQ(ScoreOf(TaskMetric::kFinalAnswer, "no", "no number"), 0);
}

TEST(MetricsTest, OptionLetterIsTheOneSaidToBeTheAnswer) {
  const std::pair<const char*, char> cases[] = {
      {"So x is 3. The answer is A).", 'A'},
      {"The answer is (B).", 'B'},
      {"the Answer is: C", 'C'},
      {"The answer is **D)** 12", 'D'},
      {"The answer is\n$\\boxed{E}$", 'E'},
      {"Therefore the answer is b) 12", 'B'},
      // Of several the last, wherever other letters stand.
      {"The answer is A). No, the answer is B), not C", 'B'},
      // One that names no option says nothing.
      {"The answer is D). In numbers, the answer is 42.", 'D'},
      {"The answer is about 3, hence (B)", 'B'},
      {"Option C is right", 'C'},
      {"Between A and E: E", 'E'},
      {"D", 'D'},
      {"B) 10", 'B'},
  };
  for (const auto& [text, letter] : cases) EXPECT_EQ(OptionLetter(text), letter) << text;
  for (const char* text : {"", "42", "The answer is 7", "answer is", "answer is (", "F", "BE ABLE",
                           "A1", "the answer is a",
                           "caf\xC3\xA9"
                           "C"}) {
    EXPECT_FALSE(OptionLetter(text).has_value()) << text;
  }
  EXPECT_EQ(ScoreOf(TaskMetric::kOptionLetter, "It is (B)", "2 + 2 = 4\nThe answer is B)."), 1);
  EXPECT_EQ(ScoreOf(TaskMetric::kOptionLetter, "It is (C)", "2 + 2 = 4\nThe answer is B)."), 0);
  EXPECT_EQ(ScoreOf(TaskMetric::kOptionLetter, "no", "no letter"), 0);
}

TEST(MetricsTest, LineMatchComparesPlaces) {
  const std::string reference = "17 , fox\n18 , owl\n19 , elk\n20 , hen";
  EXPECT_DOUBLE_EQ(LineMatch(reference, reference), 1);
  EXPECT_DOUBLE_EQ(LineMatch("17 ,  fox \n18 , cat\n19 , elk", reference), 0.5);
  // One line left out moves the rest.
  EXPECT_DOUBLE_EQ(LineMatch("18 , owl\n19 , elk\n20 , hen", reference), 0);
  EXPECT_DOUBLE_EQ(LineMatch("\n\n" + reference + "\n21 , fox\n", reference), 1);
  EXPECT_DOUBLE_EQ(LineMatch("", reference), 0);
  EXPECT_DOUBLE_EQ(LineMatch("a", ""), 0);
  EXPECT_DOUBLE_EQ(LineMatch(" \n", ""), 1);
}

TEST(MetricsTest, FoundIsTheShareOfReferencesThatStandInTheOutput) {
  const std::vector<std::string> references = {" 123", " old oak"};
  const auto found = [&](std::string_view output) {
    return Score(TaskMetric::kFound, output, references);
  };
  EXPECT_DOUBLE_EQ(found(" 123 and the Old\n oak."), 1);
  EXPECT_DOUBLE_EQ(found("(123)"), 0.5);
  EXPECT_DOUBLE_EQ(found("1234, 0123, x123, 123\xC3\xA9, oldoak, bold oak"), 0);
  // Behind one that is only a part of a word.
  EXPECT_DOUBLE_EQ(found("1123 123"), 0.5);
  EXPECT_DOUBLE_EQ(found(""), 0);
  EXPECT_DOUBLE_EQ(Score(TaskMetric::kFound, "123", {}), 0);
  EXPECT_TRUE(StandsIn("in C++, say", "C++,"));
  EXPECT_FALSE(StandsIn("anything", " "));
}

TEST(MetricsTest, JsonFieldsComparesValues) {
  const std::string reference = R"({"name": "Ann {x}", "age": 30, "tags": [1, 2], "ok": true})";
  const auto fields = [&](std::string_view output) { return JsonFields(output, reference); };
  EXPECT_DOUBLE_EQ(fields(reference), 1);
  EXPECT_DOUBLE_EQ(fields(R"(Here: {"ok":true,"tags":[1,2],"age":30.0,"name":"Ann {x}","b":{}} {)"),
                   1);
  EXPECT_DOUBLE_EQ(fields(R"({"name": "Ann", "age": "30", "tags": [2, 1], "ok": true})"), 0.25);
  EXPECT_DOUBLE_EQ(fields(R"({"name": "Ann \"{x}", "age": 30})"), 0.25);
  // Nothing that does not parse has fields.
  for (const char* output :
       {"", "none", "{", "}", R"({"name": "Ann {x}", "age": 30)", "[30]",
        R"({"name": "Ann {x}", "age": 30, })", R"({"age": 030})", "\xff{\xff}"}) {
    EXPECT_DOUBLE_EQ(fields(output), 0) << output;
  }
  EXPECT_DOUBLE_EQ(JsonFields("{}", "{}"), 0);
  EXPECT_DOUBLE_EQ(JsonFields(reference, "no object"), 0);
}

// The values of the Python package rouge 1.0.1.
TEST(MetricsTest, RougeLUnionIsThatOfThePackage) {
  const struct {
    const char *output, *reference;
    double f;
  } cases[] = {
      {"the cat sat on the mat. the dog ran away.", "the cat was on the mat. a dog ran far away.",
       0.7777777728},
      {"A b c d. e f g", "b a c. d f e g", 0.7142857093},
      {"x y z", "p q", 0},
      {"Police killed the gunman. The gunman was police",
       "police ended the gunman. The man, police said, was  a gunman.\nThe end", 0.3529411716},
      {"a b d c. ", "a c b. d ... e", 0.5999999950},
      {"d f c .ba.e f d d .f", "f .. cd cf . abcae a", 0.1999999950},
      {"e .. . . .c bac.d e", ". e . f .  f . d  ae c", 0.5999999950},
      {"f bd e e bb..b b. c", "ae . . baa.  f e f d a", 0.3076923027},
      {"e abbf ad . e e ca", "c. . .f . f bf e . d e", 0.1999999952},
  };
  for (const auto& c : cases) {
    EXPECT_NEAR(RougeLUnion(c.output, c.reference), c.f, 2e-8) << c.output;
  }
  EXPECT_EQ(RougeLUnion("", "a"), 0);
  EXPECT_EQ(RougeLUnion("...", "a"), 0);
  EXPECT_EQ(RougeLUnion("One text. Of two.", "One text. Of two."), 1);
}

TEST(MetricsTest, StatedAnswersStandBehindTheFirstStatement) {
  const struct {
    const char *text, *answer;
    bool is_whole;
  } cases[] = {
      {"So the answer is 8", "8", false},
      {"So the answer is 8.", "8", false},  // it could become 8.5
      {"So the answer is 8.5. Q", "8.5", true},
      {"So the answer is 8.\n", "8", true},
      {"So the answer is 8\n", "8", true},
      {"The answer is 7, no. So the answer is (B).Human: So the answer is (C).", "(B)", true},
      {"the Answer is: costume counterpart oven.  ", "costume counterpart oven", true},
      {"So the answer is -219...", "-219", true},
      {"So the answer is \nSo the answer is 5", "5", false},
  };
  for (const auto& c : cases) {
    const auto stated = FindStatedAnswer(c.text);
    ASSERT_TRUE(stated.has_value()) << c.text;
    EXPECT_EQ(stated->answer, c.answer) << c.text;
    EXPECT_EQ(stated->is_whole, c.is_whole) << c.text;
    EXPECT_EQ(StatedAnswer(c.text), c.answer);
  }
  for (const char* text :
       {"", "answer is", "answer is: .", "answer is\n", "8", "the answer was 8"}) {
    EXPECT_FALSE(StatedAnswer(text).has_value()) << text;
  }
  EXPECT_EQ(
      ScoreOf(TaskMetric::kStatedAnswer, "1 + 1 = 2. So the answer is 2.", "So the answer is 2."),
      1);
  EXPECT_EQ(ScoreOf(TaskMetric::kStatedAnswer, "So the answer is  a  b.", "a b"), 1);
  EXPECT_EQ(ScoreOf(TaskMetric::kStatedAnswer, "2", "So the answer is 2."), 0);
  EXPECT_EQ(ScoreOf(TaskMetric::kStatedAnswer, "So the answer is B.", "So the answer is (B)."), 0);
}

TEST(MetricsTest, ACallIsRightWithItsToolAndItsArguments) {
  const std::string wanted =
      R"({"name": "book", "arguments": {"day": "monday", "guests": 4, "at": "Luna"}})";
  const auto marks_of = [&](const std::string& output) {
    const CallMarks marks = JudgeCall(output, wanted);
    EXPECT_EQ(ScoreOf(TaskMetric::kToolCall, output, wanted),
              marks.names_tool && marks.has_arguments ? 1 : 0);
    return fmt::format("{:d}{:d}{:d}", marks.is_json, marks.names_tool, marks.has_arguments);
  };
  EXPECT_EQ(marks_of(wanted), "111");
  EXPECT_EQ(marks_of(R"( {"arguments":{"at":"Luna","guests":4,"day":"monday"}, "name":"book"} )"),
            "111");
  EXPECT_EQ(
      marks_of(R"({"name": "cook", "arguments": {"day": "monday", "guests": 4, "at": "Luna"}})"),
      "101");
  // A text for a number, one argument too many, one too few.
  for (const char* arguments : {R"({"day": "monday", "guests": "4", "at": "Luna"})",
                                R"({"day": "monday", "guests": 4, "at": "Luna", "place": "bar"})",
                                R"({"day": "monday", "guests": 4})", R"(["day"])", "null"}) {
    EXPECT_EQ(marks_of(fmt::format(R"({{"name": "book", "arguments": {}}})", arguments)), "110")
        << arguments;
  }
  EXPECT_EQ(marks_of(R"({"name": "book"})"), "110");
  EXPECT_EQ(marks_of("{}"), "100");
  EXPECT_EQ(marks_of(wanted + " Request: "), "111");
  for (const std::string& text : {std::string(), std::string("[]"), "call: " + wanted,
                                  wanted.substr(1), wanted.substr(0, 40), std::string("book")}) {
    EXPECT_EQ(marks_of(text), "000") << text;
  }
}

TEST(MetricsTest, TheAnswersOfToolsAreRight) {
  const auto task = *MakeTask("tools");
  for (uint64_t index = 0; index < 50; ++index) {
    const auto example = task->Generate(
        {}, index, [](std::string_view text) { return static_cast<int>(text.size() / 4); });
    ASSERT_TRUE(example.ok()) << example.status();
    EXPECT_EQ(Score(task->metric(), example->references[0], example->references), 1);
  }
}

TEST(MetricsTest, ScoreTakesTheBestReferenceAndTrims) {
  const std::vector<std::string> references = {" red hens run", " the red fox\n"};
  EXPECT_DOUBLE_EQ(Score(TaskMetric::kF1, "red fox", references), 1);
  EXPECT_DOUBLE_EQ(Score(TaskMetric::kExactMatch, "red hens run", references), 1);
  EXPECT_DOUBLE_EQ(Score(TaskMetric::kEditSimilarity, "  the red fox", references), 1);
  EXPECT_DOUBLE_EQ(Score(TaskMetric::kChoice, " the red fox", references), 1);
  EXPECT_DOUBLE_EQ(Score(TaskMetric::kExactMatch, "", {}), 0);
}

TEST(MetricsTest, AnyBytesGiveAScoreBetweenZeroAndOne) {
  Random rng(7, 0);
  const auto text = [&] {
    std::string bytes(rng.Below(40), ' ');
    for (char& c : bytes)
      c = static_cast<char>(rng.Below(4) == 0 ? rng.Below(256) : "1,.-$ a\n"[rng.Below(8)]);
    return bytes;
  };
  for (int i = 0; i < 2000; ++i) {
    const std::string a = text(), b = text();
    for (const TaskMetric metric :
         {TaskMetric::kExactMatch, TaskMetric::kF1, TaskMetric::kRouge1, TaskMetric::kRougeL,
          TaskMetric::kEditSimilarity, TaskMetric::kFinalAnswer, TaskMetric::kOptionLetter,
          TaskMetric::kLineMatch, TaskMetric::kFound, TaskMetric::kJsonFields,
          TaskMetric::kRougeLUnion, TaskMetric::kStatedAnswer, TaskMetric::kToolCall}) {
      const double score = ScoreOf(metric, a, b);
      EXPECT_GE(score, 0);
      EXPECT_LE(score, 1);
    }
    EXPECT_EQ(EditSimilarity(a, a), 1);
    EXPECT_DOUBLE_EQ(EditSimilarity(a, b), EditSimilarity(b, a));
  }
}

}  // namespace
}  // namespace kvlathe
