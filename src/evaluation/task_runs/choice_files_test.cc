#include "evaluation/task_runs/choice_files.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "evaluation/task_runs/task_shots.h"
#include "io/files.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

using Strings = std::vector<std::string>;
using Reader = StatusOr<TaskFile> (*)(const std::string& path);

class ChoiceFilesTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, std::string_view text) {
    EXPECT_TRUE(WriteFileAtomically(folder_ / name, text).ok());
    return folder_ / name;
  }
  TaskFile Read(Reader read, std::string_view text) {
    auto file = read(Write("set.jsonl", text));
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? *std::move(file) : TaskFile();
  }
  // The message that refuses each text holds the place and the other text.
  void ExpectRefused(Reader read, std::string_view text, const std::string& place,
                     const std::string& needle) {
    const auto file = read(Write("set.jsonl", text));
    EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument) << text;
    const std::string message = MessageOf(file.status());
    EXPECT_NE(message.find(place), std::string::npos) << text << ": " << message;
    EXPECT_NE(message.find(needle), std::string::npos) << text << ": " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
  ScratchFolder folder_;
};

TEST_F(ChoiceFilesTest, HellaSwagFromJsonLines) {
  const TaskFile file = Read(
      ReadHellaSwag,
      R"({"activity_label":"Baking","ctx_a":"A man bakes.","ctx_b":"the Man then","ctx":"unused","endings":["eats [title] it.","[step] sings.  Loud. ","sleeps.","a  b   c [open"],"label":"2"})"
      "\n\n"
      R"({"activity_label":"Roof","ctx":"he is [now] here [end]","endings":["x","y","z","w"],"label":0})"
      "\n"
      R"({"activity_label":"How to fly","ctx_a":"[header] How to fly [title] Jump.","ctx_b":"","endings":["x","y","z","w"],"label":3})");
  EXPECT_EQ(file.name, "hellaswag");
  EXPECT_EQ(file.metric, TaskMetric::kChoice);
  EXPECT_TRUE(file.norm_leads);
  ASSERT_EQ(file.examples.size(), 3u);
  EXPECT_EQ(file.examples[0].prompt, "Baking: A man bakes. The man then");
  EXPECT_EQ(file.examples[0].choices,
            (Strings{" eats. it.", "  sings. Loud.", " sleeps.", " a b  c [open"}));
  EXPECT_EQ(file.examples[0].answer, 2);
  EXPECT_EQ(file.examples[0].references, Strings{" sleeps."});
  // Of the spaces that a cut leaves two are made one, and the prompt does not end in one.
  EXPECT_EQ(file.examples[1].prompt, "Roof: he is here");
  EXPECT_EQ(file.examples[2].prompt, "How to fly: How to fly. Jump.");
  EXPECT_EQ(SolvedText(file.examples[1]), "Roof: he is here x");
  EXPECT_DOUBLE_EQ(ChanceOf(file, 3).value_or(-1), 0.25);
}

constexpr std::string_view kHellaSwagText =
    "Roof: A man sits. he\n3\nis one.\nis two.\nis three [x].\nis four.\n"
    "Caf\xC3\xA9: \xE2\x80\x9CHi\xE2\x80\x9D\r\n0\r\nis a.\r\nis b.\r\nis c.\r\nis d.\r\n";

TEST_F(ChoiceFilesTest, HellaSwagFromPlainText) {
  const TaskFile file = Read(ReadHellaSwag, kHellaSwagText);
  ASSERT_EQ(file.examples.size(), 2u);
  EXPECT_EQ(file.examples[0].prompt, "Roof: A man sits. he");
  EXPECT_EQ(file.examples[0].choices,
            (Strings{" is one.", " is two.", " is three .", " is four."}));
  EXPECT_EQ(file.examples[0].answer, 3);
  EXPECT_EQ(file.examples[1].prompt, "Caf\xC3\xA9: \xE2\x80\x9CHi\xE2\x80\x9D");
  EXPECT_EQ(file.examples[1].references, Strings{" is a."});
}

TEST_F(ChoiceFilesTest, HellaSwagTextThatIsNoneIsRefused) {
  const std::string whole(kHellaSwagText);
  const auto refused = [&](const std::string& text, const char* place, const char* needle) {
    ExpectRefused(ReadHellaSwag, text, place, needle);
  };
  refused("", "set.jsonl: ", "no examples");
  refused(" \n\n", "set.jsonl: ", "no examples");
  refused(whole + "One: more\n1\na\nb\n", "set.jsonl:17: ", "ends inside a task");
  refused(whole + "One: more\n4\na\nb\nc\nd\n", "set.jsonl:14: ", "0 to 3");
  refused(whole + "One: more\n-1\na\nb\nc\nd\n", "set.jsonl:14: ", "\"-1\" where the label");
  refused(whole + "One: more\n1\na\n\nc\nd\n", "set.jsonl:16: ", "empty line");
  refused(whole + "\nOne: more\n1\na\nb\nc\nd\n", "set.jsonl:13: ", "empty line");
  refused("[all]\n1\na\nb\nc\nd\n", "set.jsonl:1: ", "the context is empty");
  refused("One: more\n1\na\n[b]\nc\nd\n", "set.jsonl:1: ", "choice 2 is empty");
  refused("BZh91AY&SY", "set.jsonl: ", "bunzip2");
}

TEST_F(ChoiceFilesTest, HellaSwagLinesThatAreNoneAreRefused) {
  const auto refused = [&](const char* line, const char* needle) {
    const std::string good = R"({"activity_label":"a","ctx":"b","endings":["x","y"],"label":1})"
                             "\n";
    ExpectRefused(ReadHellaSwag, good + line, "set.jsonl:2: ", needle);
  };
  refused(R"({"ctx":"b","endings":["x","y"],"label":1})", "no \"activity_label\"");
  refused(R"({"activity_label":"a","endings":["x","y"],"label":1})", "no \"ctx\"");
  refused(R"({"activity_label":"a","ctx":"","endings":["x","y"],"label":1})", "\"ctx\" is empty");
  refused(R"({"activity_label":"a","ctx_a":"b","endings":["x","y"],"label":1})", "no \"ctx_b\"");
  refused(R"({"activity_label":"a","ctx":"b","label":1})", "no \"endings\"");
  refused(R"({"activity_label":"a","ctx":"b","endings":[],"label":0})", "one or more strings");
  refused(R"({"activity_label":"a","ctx":"b","endings":["x"],"label":0})", "two or more");
  refused(R"({"activity_label":"a","ctx":"b","endings":["x"," "],"label":0})", "choice 2 is empty");
  refused(R"({"activity_label":"a","ctx":"b","endings":["x","y"]})", "no \"label\"");
  refused(R"({"activity_label":"a","ctx":"b","endings":["x","y"],"label":""})", "with answers");
  refused(R"({"activity_label":"a","ctx":"b","endings":["x","y"],"label":"1x"})", "whole number");
  refused(R"({"activity_label":"a","ctx":"b","endings":["x","y"],"label":1.5})", "whole number");
  refused(R"({"activity_label":"a","ctx":"b","endings":["x","y"],"label":2})", "there are 2");
  refused(R"({"activity_label":"a","ctx":"b","endings":["x","y"],"label":-1})", "with answers");
  refused(R"({"activity_label":"a","ctx":"b","endings":["x","y"],"label":18446744073709551615})",
          "whole number");
  refused(R"({"activity_label":"a","ctx":"b","endings":["x","y"])", "not a JSON object");
}

TEST_F(ChoiceFilesTest, PiqaWithLabelsOnItsLines) {
  const TaskFile file =
      Read(ReadPiqa, R"({"goal":"Cut it","sol1":"knife ","sol2":"spoon","label":0})"
                     "\n"
                     R"({"goal":"Caf\u00e9","sol1":"a","sol2":"\u201cb\u201d","label":1})");
  EXPECT_EQ(file.name, "piqa");
  EXPECT_TRUE(file.norm_leads);
  EXPECT_TRUE(file.takes_shots);
  EXPECT_EQ(file.examples[0].prompt, "Question: Cut it\nAnswer:");
  // Solutions are taken with the spaces that they have.
  EXPECT_EQ(file.examples[0].choices, (Strings{" knife ", " spoon"}));
  EXPECT_EQ(file.examples[0].answer, 0);
  EXPECT_EQ(SolvedText(file.examples[1]),
            "Question: Caf\xC3\xA9\nAnswer: \xE2\x80\x9C"
            "b\xE2\x80\x9D");
}

TEST_F(ChoiceFilesTest, PiqaWithLabelsBesideIt) {
  const std::string lines = R"({"goal":"g","sol1":"a","sol2":"b"})"
                            "\n"
                            R"({"goal":"h","sol1":"c","sol2":"d"})"
                            "\n";
  ExpectRefused(ReadPiqa, lines, "set.jsonl:1: ", "set-labels.lst");
  Write("set-labels.lst", "1\n0\n");
  const TaskFile file = Read(ReadPiqa, lines);
  EXPECT_EQ(file.examples[0].references, Strings{" b"});
  EXPECT_EQ(file.examples[1].references, Strings{" c"});
  Write("set-labels.lst", "1\n");
  ExpectRefused(ReadPiqa, lines, "set.jsonl:2: ", "example 2 has no label");
  Write("set-labels.lst", "1\n0\n0\n");
  ExpectRefused(ReadPiqa, lines, "set-labels.lst: ", "3 labels for 2 examples");
  Write("set-labels.lst", "1\n2\n");
  ExpectRefused(ReadPiqa, lines, "set-labels.lst:2: ", "0 or 1");
}

TEST_F(ChoiceFilesTest, PiqaLinesThatAreNoneAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"sol1":"a","sol2":"b","label":0})", "no \"goal\""},
      {R"({"goal":" ","sol1":"a","sol2":"b","label":0})", "\"goal\" is empty"},
      {R"({"goal":"g","sol1":"a","label":0})", "no \"sol2\""},
      {R"({"goal":"g","sol1":"a","sol2":7,"label":0})", "\"sol2\" is no string"},
      {R"({"goal":"g","sol1":"","sol2":"b","label":0})", "choice 1 is empty"},
      {R"({"goal":"g","sol1":"a","sol2":"b","label":2})", "there are 2"},
      {R"({"goal":"g","sol1":"a","sol2":"b","label":-1})", "with answers"},
      {R"({"goal":"g","sol1":"a","sol2":"b","label":null})", "whole number"},
      {R"({"goal":"g","sol1":"a","so)", "not a JSON object"},
  };
  for (const auto& [text, needle] : cases) ExpectRefused(ReadPiqa, text, "set.jsonl:1: ", needle);
  ExpectRefused(ReadPiqa, "", "set.jsonl: ", "no examples");
  EXPECT_EQ(ReadPiqa(folder_ / "none.jsonl").status().code(), StatusCode::kNotFound);
}

TEST_F(ChoiceFilesTest, ArcInBothForms) {
  const TaskFile file = Read(
      ReadArc,
      R"({"id":"1","question":"Why?","choices":{"text":["sun","rain","ice"],"label":["1","2","3"]},"answerKey":"3"})"
      "\n"
      R"({"centerpiece":"How?","options":["so","thus"],"correct_options":["A"],"correct_options_idx":[0]})");
  EXPECT_EQ(file.name, "arc");
  EXPECT_TRUE(file.norm_leads);
  ASSERT_EQ(file.examples.size(), 2u);
  EXPECT_EQ(file.examples[0].prompt, "Question: Why?\nAnswer:");
  EXPECT_EQ(file.examples[0].choices, (Strings{" sun", " rain", " ice"}));
  EXPECT_EQ(file.examples[0].answer, 2);
  EXPECT_EQ(SolvedText(file.examples[1]), "Question: How?\nAnswer: so");
  EXPECT_DOUBLE_EQ(ChanceOf(file, 2).value_or(-1), (1.0 / 3 + 0.5) / 2);
}

TEST_F(ChoiceFilesTest, ArcLinesThatAreNoneAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"choices":{"text":["a","b"],"label":["A","B"]},"answerKey":"A"})", "no \"question\""},
      {R"({"question":"q","choices":{"text":["a","b"],"label":["A","B"]}})", "no \"answerKey\""},
      {R"({"question":"q","answerKey":"A"})", "\"choices\" is no object"},
      {R"({"question":"q","choices":["a","b"],"answerKey":"A"})", "\"choices\" is no object"},
      {R"({"question":"q","choices":{"label":["A","B"]},"answerKey":"A"})", "no \"text\""},
      {R"({"question":"q","choices":{"text":["a","b"]},"answerKey":"A"})", "no \"label\""},
      {R"({"question":"q","choices":{"text":[],"label":[]},"answerKey":"A"})", "one or more"},
      {R"({"question":"q","choices":{"text":["a"],"label":["A"]},"answerKey":"A"})", "two or more"},
      {R"({"question":"q","choices":{"text":["a","b"],"label":["A"]},"answerKey":"A"})",
       "1 labels for 2 choices"},
      {R"({"question":"q","choices":{"text":["a","b"],"label":["A","B"]},"answerKey":"C"})",
       "the label \"C\""},
      {R"({"centerpiece":"q","options":["a","b"]})", "list of one index"},
      {R"({"centerpiece":"q","options":["a","b"],"correct_options_idx":[0,1]})",
       "list of one index"},
      {R"({"centerpiece":"q","options":["a","b"],"correct_options_idx":[]})", "list of one index"},
      {R"({"centerpiece":"q","options":["a","b"],"correct_options_idx":[2]})", "there are 2"},
      {R"({"centerpiece":"q","options":["a","b"],"correct_options_idx":["x"]})", "whole number"},
      {R"({"centerpiece":"q","options":[],"correct_options_idx":[0]})", "one or more"},
      {R"({"centerpiece":"q","correct_options_idx":[0]})", "no \"options\""},
      {R"({"centerpiece":"","options":["a","b"],"correct_options_idx":[0]})", "is empty"},
  };
  for (const auto& [text, needle] : cases) ExpectRefused(ReadArc, text, "set.jsonl:1: ", needle);
}

TEST_F(ChoiceFilesTest, WinoGrandeInBothForms) {
  const TaskFile file = Read(
      ReadWinoGrande,
      R"({"sentence":"Ann met Bea and _ was late .","option1":"Ann","option2":"Bea","answer":"2"})"
      "\n"
      R"({"centerpiece":"_'s cat ran.","options":["Bo","Cy"],"correct_options_idx":[0]})");
  EXPECT_EQ(file.name, "winogrande");
  EXPECT_FALSE(file.norm_leads);
  ASSERT_EQ(file.examples.size(), 2u);
  const TaskExample& example = file.examples[0];
  EXPECT_EQ(example.prompt, "Ann met Bea and");
  EXPECT_EQ(example.choice_prompts, (Strings{"Ann met Bea and Ann", "Ann met Bea and Bea"}));
  EXPECT_EQ(example.choices, (Strings{" was late .", " was late ."}));
  EXPECT_EQ(example.answer, 1);
  EXPECT_EQ(SolvedText(example), "Ann met Bea and Bea was late .");
  EXPECT_EQ(file.examples[1].prompt, "");
  EXPECT_EQ(file.examples[1].choice_prompts, (Strings{"Bo", "Cy"}));
  EXPECT_EQ(file.examples[1].choices, (Strings{" 's cat ran.", " 's cat ran."}));
  EXPECT_DOUBLE_EQ(ChanceOf(file, 2).value_or(-1), 0.5);
}

TEST_F(ChoiceFilesTest, WinoGrandeLinesThatAreNoneAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"option1":"a","option2":"b","answer":"1"})", "no \"sentence\""},
      {R"({"sentence":"x is y","option1":"a","option2":"b","answer":"1"})", "has no \"_\""},
      {R"({"sentence":"x is _ ","option1":"a","option2":"b","answer":"1"})", "nothing follows"},
      {R"({"sentence":"x _ y","option1":"a","answer":"1"})", "no \"option2\""},
      {R"({"sentence":"x _ y","option1":"a","option2":"","answer":"1"})", "choice 2 is empty"},
      {R"({"sentence":"x _ y","option1":"a","option2":"b"})", "no \"answer\""},
      {R"({"sentence":"x _ y","option1":"a","option2":"b","answer":""})", "with answers"},
      {R"({"sentence":"x _ y","option1":"a","option2":"b","answer":"0"})", "give 1 or 2"},
      {R"({"sentence":"x _ y","option1":"a","option2":"b","answer":"3"})", "give 1 or 2"},
      {R"({"centerpiece":"x y","options":["a","b"],"correct_options_idx":[0]})", "has no \"_\""},
      {R"({"centerpiece":"x _ y","options":["a","b"],"correct_options_idx":[5]})", "there are 2"},
  };
  for (const auto& [text, needle] : cases) {
    ExpectRefused(ReadWinoGrande, text, "set.jsonl:1: ", needle);
  }
}

// The sets as they are published: KVLATHE_TEST_DATA names a folder with piqa, arc and winogrande;
// HellaSwag is packed there and passed over.
TEST(PublishedChoicesTest, AreReadWhole) {
  const char* folder = std::getenv("KVLATHE_TEST_DATA");
  if (folder == nullptr) GTEST_SKIP() << "KVLATHE_TEST_DATA names no folder with data sets";
  const std::string data = folder;
  struct Set {
    std::string path;
    Reader read;
    size_t n_examples;
  };
  for (const Set& set : {Set{"/piqa/valid.jsonl", ReadPiqa, 1838},
                         {"/arc/arc-easy/test.json", ReadArc, 2376},
                         {"/arc/arc-challenge/test.json", ReadArc, 1172},
                         {"/winogrande/test.json", ReadWinoGrande, 1267}}) {
    const auto file = set.read(data + set.path);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->examples.size(), set.n_examples) << set.path;
    for (const TaskExample& example : file->examples) {
      EXPECT_FALSE(example.prompt.ends_with(' ')) << example.prompt;
      EXPECT_EQ(example.references[0], example.choices.at(example.answer));
    }
    const auto with = AddShots(*file, file->examples.size(), {.count = 5}, {});
    ASSERT_TRUE(with.ok()) << with.status();
    for (size_t i = 0; i < set.n_examples; ++i) {
      const std::string& prompt = with->examples[i].prompt;
      EXPECT_EQ(prompt.find(SolvedText(file->examples[i])), std::string::npos) << prompt;
    }
  }
}

}  // namespace
}  // namespace kvlathe
