#include "load_generation/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace kvlathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Workload> Drawn(PromptSource source, uint64_t seed = 1) {
  auto workload = MakeDrawnWorkload(std::move(source), {6, 4, 9}, {3, 2, 5}, seed);
  EXPECT_TRUE(workload.ok());
  return *std::move(workload);
}

std::vector<int32_t> Ascending(int n) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) ids[static_cast<size_t>(i)] = i;
  return ids;
}

TEST(DrawnWorkloadTest, RandomIdsAreOfTheVocabularyAndBeginDifferently) {
  const auto workload = Drawn(RandomIds{1000});
  std::set<int32_t> first;
  for (int i = 0; i < 500; ++i) {
    const LoadRequest request = workload->RequestAt(i);
    ASSERT_EQ(request.n_input, static_cast<int>(request.prompt_ids.size()));
    ASSERT_TRUE(request.n_input >= 4 && request.n_input <= 9);
    ASSERT_TRUE(request.n_output >= 2 && request.n_output <= 5);
    for (const int32_t id : request.prompt_ids) ASSERT_TRUE(id >= 0 && id < 1000);
    first.insert(request.prompt_ids.front());
  }
  EXPECT_EQ(first.size(), 500u);
}

TEST(DrawnWorkloadTest, WindowsOfATextGoAroundItsEnd) {
  const auto workload = Drawn(TextTokens{Ascending(101)});
  std::set<int32_t> first;
  bool went_around = false;
  for (int i = 0; i < 101; ++i) {
    const std::vector<int32_t> ids = workload->RequestAt(i).prompt_ids;
    for (size_t t = 1; t < ids.size(); ++t) {
      ASSERT_EQ(ids[t], (ids[t - 1] + 1) % 101);
      went_around |= ids[t] == 0;
    }
    first.insert(ids.front());
  }
  EXPECT_EQ(first.size(), 101u);  // every place once
  EXPECT_TRUE(went_around);
}

TEST(DrawnWorkloadTest, TextIsCutBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 60; ++i)
    text +=
        "Gr\xc3\xb6\xc3\x9f"
        "e \xe2\x82\xac" +
        std::to_string(i) + " ";
  const auto workload = Drawn(PlainText{text, 3.5});
  for (int i = 0; i < 200; ++i) {
    const LoadRequest request = workload->RequestAt(i);
    EXPECT_TRUE(request.prompt_ids.empty());
    EXPECT_NEAR(static_cast<double>(request.prompt.size()), 3.5 * request.n_input, 4);
    EXPECT_NE(static_cast<unsigned char>(request.prompt[0]) & 0xc0, 0x80);
    // A character of three bytes is whole at the end.
    const size_t euro = request.prompt.rfind('\xe2');
    if (euro != std::string::npos) {
      EXPECT_LE(euro + 3, request.prompt.size());
    }
  }
}

TEST(DrawnWorkloadTest, TheSeedDecides) {
  const auto ids = [](uint64_t seed) {
    return Drawn(RandomIds{50000}, seed)->RequestAt(17).prompt_ids;
  };
  EXPECT_EQ(ids(3), ids(3));
  EXPECT_NE(ids(3), ids(4));
}

TEST(DrawnWorkloadTest, AnEmptyTextIsRefused) {
  EXPECT_EQ(MakeDrawnWorkload(TextTokens{}, {1, 1, 1}, {1, 1, 1}, 0).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(FileWorkloadTest, ReadsLinesInTheirOrderAndAgain) {
  const auto workload = MakeFileWorkload(
      "{\"prompt\": \"one two\", \"output_len\": 5}\n\n"
      "{\"prompt\": [7, 8, 9], \"output_tokens\": 6, \"more\": true}\r\n{\"prompt\": \"x\"}",
      "f.jsonl", 11, 4);
  ASSERT_TRUE(workload.ok()) << workload.status();
  EXPECT_EQ((*workload)->RequestAt(0).prompt, "one two");
  EXPECT_EQ((*workload)->RequestAt(0).n_output, 5);
  EXPECT_EQ((*workload)->RequestAt(0).n_input, 2);
  EXPECT_THAT((*workload)->RequestAt(1).prompt_ids, ElementsAre(7, 8, 9));
  EXPECT_EQ((*workload)->RequestAt(1).n_output, 6);
  EXPECT_EQ((*workload)->RequestAt(2).n_output, 11);
  EXPECT_EQ((*workload)->RequestAt(3).prompt, "one two");
}

TEST(FileWorkloadTest, ReadsConversations) {
  const auto workload = MakeFileWorkload(
      R"([{"id": "a", "conversations": [{"from": "human", "value": "question"}, {"from": "gpt", "value": "an answer of 24 bytes..."}]},
          {"conversations": []}, {"conversations": [{"value": 1}, {"value": 2}]}, 5])",
      "s.json", 0, 4);
  ASSERT_TRUE(workload.ok()) << workload.status();
  EXPECT_EQ((*workload)->RequestAt(0).prompt, "question");
  EXPECT_EQ((*workload)->RequestAt(0).n_output, 6);
  EXPECT_EQ((*workload)->RequestAt(1).prompt, "question");
}

TEST(FileWorkloadTest, ErrorsNameTheLine) {
  const auto error = [](std::string_view text) {
    return MessageOf(MakeFileWorkload(text, "f", 0, 4).status());
  };
  EXPECT_THAT(error("{\"prompt\": \"x\", \"output_len\": 1}\n{\"prompt\": }"),
              HasSubstr("f:2: not JSON"));
  EXPECT_THAT(error("{\"text\": 1}"), HasSubstr("f:1: not an object with a \"prompt\""));
  EXPECT_THAT(error("{\"prompt\": [1, -1], \"output_len\": 1}"),
              HasSubstr("f:1: \"prompt\" must be"));
  EXPECT_THAT(error("{\"prompt\": \"x\", \"output_len\": 0}"), HasSubstr("from 1 to"));
  EXPECT_THAT(error("{\"prompt\": \"x\"}"), HasSubstr("--output-len"));
  EXPECT_THAT(error(" \n"), HasSubstr("no requests"));
  EXPECT_THAT(error("[{]"), HasSubstr("neither JSON Lines nor"));
}

}  // namespace
}  // namespace kvlathe
