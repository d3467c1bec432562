#include "evaluation/task_runs/word_problems.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "evaluation/metrics.h"
#include "io/files.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

class WordProblemsTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, std::string_view text) {
    EXPECT_TRUE(WriteFileAtomically(folder_ / name, text).ok());
    return folder_ / name;
  }
  ScratchFolder folder_;
};

constexpr std::string_view kTwoProblems =
    R"({"question":"What is 3 times 4?","answer":"3 * 4 = <<3*4=12>>12.\n#### 12"})"
    "\n"
    R"({"question":"And 1,000 more?","answer":"12 + 1000 = $<<12+1000=1012>>1012.\n\nSo.\n#### 1,012"})";

TEST_F(WordProblemsTest, ReadsGsm8kWithoutShots) {
  const auto file = ReadGsm8k(Write("test.jsonl", kTwoProblems), {});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->name, "gsm8k");
  EXPECT_EQ(file->metric, TaskMetric::kFinalAnswer);
  ASSERT_EQ(file->examples.size(), 2u);
  EXPECT_EQ(file->examples[0].prompt, "Q: What is 3 times 4?\nA:");
  EXPECT_EQ(file->examples[0].room_tokens, 512);
  EXPECT_EQ(file->examples[0].references[0], " 3 * 4 = 12.\n#### 12");
  EXPECT_EQ(file->examples[1].references[0], " 12 + 1000 = $1012.\nSo.\n#### 1,012");
}

TEST_F(WordProblemsTest, ShotsOfATrainSetAreItsFirstEight) {
  std::string train;
  for (int i = 0; i < 10; ++i) {
    train += fmt::format(R"({{"question":"q{}?","answer":"a.\n#### {}"}})", i, i) + "\n";
  }
  const auto shots = ReadFewShots(Write("train.jsonl", train));
  ASSERT_TRUE(shots.ok()) << shots.status();
  EXPECT_TRUE(shots->text.starts_with("Q: q0?\nA: a.\n#### 0\n\nQ: q1?\nA: "));
  EXPECT_TRUE(shots->text.ends_with("Q: q7?\nA: a.\n#### 7\n\n"));
  EXPECT_EQ(shots->count, kFileShots);
  const auto file = ReadGsm8k(Write("test.jsonl", kTwoProblems), *shots);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->examples[0].prompt, shots->text + "Q: What is 3 times 4?\nA:");
}

TEST_F(WordProblemsTest, ShotsOfAPromptFileGiveTheForm) {
  const auto labelled =
      ReadFewShots(Write("a.txt", "Q: one?\nAnswer: 1.\n\n\nQ: two?\nAnswer: 2.\n"));
  ASSERT_TRUE(labelled.ok()) << labelled.status();
  EXPECT_EQ(labelled->text, "Q: one?\nAnswer: 1.\n\nQ: two?\nAnswer: 2.\n\n");
  EXPECT_EQ(labelled->question, "Q:");
  EXPECT_EQ(labelled->cue, "Answer:");

  const auto cued = ReadFewShots(Write(
      "b.txt", "Question: one?\nLet us think\nIt is 1.\n\nQuestion: two?\nLet us think\n2.\n"));
  ASSERT_TRUE(cued.ok()) << cued.status();
  EXPECT_EQ(cued->question, "Question:");
  EXPECT_EQ(cued->cue, "Let us think\n");
  const auto file = ReadGsm8k(Write("test.jsonl", kTwoProblems), *cued);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(
      file->examples[0].prompt.ends_with("2.\n\nQuestion: What is 3 times 4?\nLet us think\n"));
  EXPECT_EQ(file->examples[0].references[0], "3 * 4 = 12.\n#### 12");

  for (const char* text :
       {"", "\n\n\n", "no label\nhere", "Q: only a question", "Q: a\nA: 1\n\nR: b\nA: 2",
        "Q: a\nA: 1\n\nQ: b\nB: 2", "Q: a\nsome answer"}) {
    const auto shots = ReadFewShots(Write("c.txt", text));
    EXPECT_EQ(shots.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(MessageOf(shots.status()).find("c.txt"), std::string::npos);
  }
}

TEST_F(WordProblemsTest, Gsm8kRefusesWhatHasNoFinalAnswer) {
  for (const char* line :
       {R"({"question":"q","answer":"12"})", R"({"question":"q","answer":"12 #### none"})",
        R"({"question":"","answer":"#### 1"})", R"({"question":"q"})", R"({"answer":"#### 1"})"}) {
    const auto file = ReadGsm8k(Write("g.jsonl", line), {});
    EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument) << line;
    EXPECT_NE(MessageOf(file.status()).find("g.jsonl:1: "), std::string::npos);
    EXPECT_FALSE(ReadFewShots(folder_ / "g.jsonl").ok());
  }
}

constexpr std::string_view kTwoChoices =
    R"({"question":"2 + 2?","options":["A)3","B)4","C)5"],"rationale":"It is 4.\n\nAnswer: B\n","correct":"B"})"
    "\n"
    R"({"question":"1 + 0?","options":["A)1","B)2"],"rationale":"","correct":"A"})";

TEST_F(WordProblemsTest, ReadsAquaWithoutShots) {
  const auto file = ReadAqua(Write("dev.json", kTwoChoices), AquaForm());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->name, "aqua");
  EXPECT_EQ(file->metric, TaskMetric::kOptionLetter);
  EXPECT_TRUE(file->takes_shots);
  ASSERT_EQ(file->examples.size(), 2u);
  EXPECT_EQ(file->examples[0].prompt,
            "Question: 2 + 2?\nOption:\nA)3\nB)4\nC)5\nLet's think step by step\n");
  EXPECT_EQ(file->examples[0].references[0], "It is 4.\nAnswer: B\nThe answer is B).");
  EXPECT_EQ(file->examples[1].references[0], "The answer is A).");
  EXPECT_EQ(file->n_options, (std::vector<int>{3, 2}));
  EXPECT_DOUBLE_EQ(ChanceOf(*file, 2).value_or(-1), (1.0 / 3 + 0.5) / 2);
}

// Blocks as they are published: a stray cue behind the last option, spaces at the ends of lines.
constexpr std::string_view kAquaPrompt =
    "Question: 3 + 3?\nOption:\nA)6\nB)7\\nThe answer is\nThink\n3 and 3 \nThe answer is A). \n\n"
    "Question: 4 + 4?\nOption:\nA)9\nB)8\nThink\nThe answer is B).\n";

TEST_F(WordProblemsTest, AquaShotsOfAPromptFileAreTakenAsTheyAre) {
  const auto shots = ReadAquaShots(Write("prompt.txt", kAquaPrompt));
  ASSERT_TRUE(shots.ok()) << shots.status();
  EXPECT_EQ(shots->text, std::string(kAquaPrompt) + "\n");
  EXPECT_EQ(shots->question, "Question:");
  EXPECT_EQ(shots->options, "Option:");
  EXPECT_EQ(shots->cue, "Think\n");
  EXPECT_EQ(shots->count, 2);
  const auto file = ReadAqua(Write("dev.json", kTwoChoices), *shots);
  EXPECT_EQ(file->n_shots, 2);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->examples[1].prompt, shots->text + "Question: 1 + 0?\nOption:\nA)1\nB)2\nThink\n");
}

TEST_F(WordProblemsTest, AquaShotsOfASetHaveTheFormOfTheQuestions) {
  const auto shots = ReadAquaShots(Write("dev.json", kTwoChoices));
  ASSERT_TRUE(shots.ok()) << shots.status();
  EXPECT_EQ(shots->text,
            "Question: 2 + 2?\nOption:\nA)3\nB)4\nC)5\nLet's think step by step\nIt is 4.\nAnswer: "
            "B\nThe answer is B).\n\n"
            "Question: 1 + 0?\nOption:\nA)1\nB)2\nLet's think step by step\nThe answer is A).\n\n");
  EXPECT_EQ(shots->cue, AquaForm().cue);
}

TEST_F(WordProblemsTest, PromptFilesOfTheOtherSetAreRefused) {
  const std::string aqua = Write("aqua.txt", kAquaPrompt);
  const auto as_gsm8k = ReadFewShots(aqua);
  EXPECT_EQ(as_gsm8k.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(MessageOf(as_gsm8k.status()).find("have options"), std::string::npos);
  for (const char* text :
       {"", "Q: one?\nA: 1.\n\nQ: two?\nA: 2.", "Question: a\nOption:\nA)1\nB)2",
        "Question: a\nOption:\nA)1\nThink\nx\n\nQuestion: b\nOption:\nA)1\nPonder\nx"}) {
    const auto shots = ReadAquaShots(Write("c.txt", text));
    EXPECT_EQ(shots.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(MessageOf(shots.status()).find("c.txt"), std::string::npos);
  }
}

TEST_F(WordProblemsTest, AquaRefusesWithLineAndRemedy) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"question":"q","options":["A)1","B)2"],"rationale":"r"})", "no \"correct\""},
      {R"({"question":"q","options":["A)1","B)2"],"correct":"A"})", "no \"rationale\""},
      {R"({"question":"q","rationale":"r","correct":"A"})", "no \"options\""},
      {R"({"options":["A)1","B)2"],"rationale":"r","correct":"A"})", "no \"question\""},
      {R"({"question":" ","options":["A)1","B)2"],"rationale":"r","correct":"A"})", "is empty"},
      {R"({"question":"q","options":[],"rationale":"r","correct":"A"})", "one or more"},
      {R"({"question":"q","options":["A)1"],"rationale":"r","correct":"A"})", "2 to 5"},
      {R"({"question":"q","options":["A)1","B)2","C)3","D)4","E)5","F)6"],"rationale":"r","correct":"A"})",
       "2 to 5"},
      {R"({"question":"q","options":["A)1","2"],"rationale":"r","correct":"A"})", "option 2"},
      {R"({"question":"q","options":["A)1","B)2"],"rationale":"r","correct":"C"})", "A to B"},
      {R"({"question":"q","options":["A)1","B)2"],"rationale":"r","correct":""})", "A to B"},
      {R"({"question":"q","options":["A)1","B)2"],"rationale":"r)", "not a JSON object"},
  };
  for (const auto& [text, needle] : cases) {
    const auto file =
        ReadAqua(Write("a.json", fmt::format("{}\n{}", kTwoChoices, text)), AquaForm());
    EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(MessageOf(file.status()).find("a.json:3: "), std::string::npos) << file.status();
    EXPECT_NE(MessageOf(file.status()).find(needle), std::string::npos) << file.status();
  }
  EXPECT_NE(MessageOf(ReadAqua(Write("a.json", ""), AquaForm()).status()).find("no examples"),
            std::string::npos);
}

// The sets as they are published: KVLATHE_TEST_DATA names a folder with gsm8k/test.jsonl,
// gsm8k/train.jsonl, aqua/test.json and the prompts of both in cot_prompts.
TEST(PublishedWordProblemsTest, AreReadWhole) {
  const char* folder = std::getenv("KVLATHE_TEST_DATA");
  if (folder == nullptr) GTEST_SKIP() << "KVLATHE_TEST_DATA names no folder with data sets";
  const std::string data = folder;
  for (const std::string& shots_path :
       {data + "/gsm8k/train.jsonl", data + "/cot_prompts/gsm8k_prompt_original.txt"}) {
    const auto shots = ReadFewShots(shots_path);
    ASSERT_TRUE(shots.ok()) << shots.status();
    const auto file = ReadGsm8k(data + "/gsm8k/test.jsonl", *shots);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->examples.size(), 1319u);
    for (const TaskExample& example : file->examples) {
      EXPECT_EQ(example.references[0].find(example.stop), std::string::npos);
    }
  }
  const auto shots = ReadAquaShots(data + "/cot_prompts/aqua_cot_prompt_8shots.txt");
  ASSERT_TRUE(shots.ok()) << shots.status();
  EXPECT_EQ(shots->cue, AquaForm().cue);
  EXPECT_EQ(shots->options, AquaForm().options);
  const auto aqua = ReadAqua(data + "/aqua/test.json", *shots);
  ASSERT_TRUE(aqua.ok()) << aqua.status();
  EXPECT_EQ(aqua->examples.size(), 254u);
  EXPECT_NEAR(ChanceOf(*aqua, 254).value_or(-1), 0.2, 1e-9);
  for (const TaskExample& example : aqua->examples) {
    EXPECT_EQ(example.references[0].find(example.stop), std::string::npos);
    EXPECT_TRUE(OptionLetter(example.references[0]).has_value());
  }
}

}  // namespace
}  // namespace kvlathe
