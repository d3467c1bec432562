#include "evaluation/audit/answer_log.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace kvlathe {
namespace {

LoggedAnswer Logged(const std::string& id) {
  return {.id = id,
          .model_hash = "abc",
          .kv = "int8",
          .rate = std::nullopt,
          .answer = {.tokens = {5, 6, 7}, .n_read = 2, .n_cache_prompt = 1, .n_generated = 9}};
}

std::string LineOf(const LoggedAnswer& logged) {
  nlohmann::ordered_json line = {{"time", "now"}, {"event", kAnswerEvent}};
  line.update(ToJson(logged));
  return line.dump() + "\n";
}

class AnswerLogTest : public ::testing::Test {
 protected:
  void SetUp() override { path_ = ::testing::TempDir() + "/answer_log_test.log"; }
  void TearDown() override { std::filesystem::remove(path_); }
  void Write(const std::string& text) { std::ofstream(path_) << text; }
  // The error of the first line that has one.
  Status ErrorOf(const std::string& text) {
    Write(text);
    auto reader = AnswerLogReader::Open(path_);
    EXPECT_TRUE(reader.ok()) << reader.status();
    for (;;) {
      const auto logged = reader->Next();
      if (!logged.ok()) return logged.status();
      if (!logged->has_value()) return OkStatus();
    }
  }
  std::string path_;
};

TEST_F(AnswerLogTest, GivesAnswersBackAndPassesOverTheRest) {
  LoggedAnswer second = Logged("b");
  second.rate = 0.5;
  Write("kvlathe: note: a line for people\n" + LineOf(Logged("a")) +
        "{\"event\": \"listening\", \"port\": 1}\n\n" + LineOf(second));
  auto reader = AnswerLogReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto a = reader->Next();
  ASSERT_TRUE(a.ok() && a->has_value()) << a.status();
  EXPECT_EQ((*a)->id, "a");
  EXPECT_EQ((*a)->kv, "int8");
  EXPECT_FALSE((*a)->rate.has_value());
  EXPECT_EQ((*a)->answer.tokens, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ((*a)->answer.n_read, 2);
  EXPECT_EQ((*a)->answer.n_cache_prompt, 1);
  EXPECT_EQ((*a)->answer.n_generated, 9);
  EXPECT_EQ(reader->line_number(), 2);
  const auto b = reader->Next();
  ASSERT_TRUE(b.ok() && b->has_value()) << b.status();
  EXPECT_EQ((*b)->rate, 0.5);
  EXPECT_EQ(reader->line_number(), 5);
  const auto end = reader->Next();
  EXPECT_TRUE(end.ok() && !end->has_value());
}

TEST_F(AnswerLogTest, ADamagedLineIsAnErrorWithItsPlace) {
  const std::string good = LineOf(Logged("a"));
  for (const std::string& bad :
       {good.substr(0, good.size() / 2) + "\n", good.substr(0, 1), std::string("{\"event\": \n")}) {
    const Status status = ErrorOf(good + bad);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << bad;
    EXPECT_NE(MessageOf(status).find(path_ + ":2:"), std::string::npos) << status;
  }
}

TEST_F(AnswerLogTest, AnAnswerLacksNoField) {
  const nlohmann::ordered_json whole = ToJson(Logged("a"));
  for (const auto& [name, unused] : whole.items()) {
    nlohmann::ordered_json line = whole;
    line["event"] = kAnswerEvent;
    line.erase(name);
    const Status status = ErrorOf(line.dump());
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << name;
    EXPECT_NE(MessageOf(status).find("\"" + name + "\""), std::string::npos) << status;
    line[name] = true;
    EXPECT_FALSE(ErrorOf(line.dump()).ok()) << name;
  }
  nlohmann::ordered_json line = whole;
  line["event"] = kAnswerEvent;
  for (const nlohmann::ordered_json& tokens :
       {nlohmann::ordered_json{1, -1}, {1, "2"}, {1, int64_t{1} << 40}}) {
    line["tokens"] = tokens;
    EXPECT_FALSE(ErrorOf(line.dump()).ok()) << tokens;
  }
}

TEST_F(AnswerLogTest, AFolderIsNoLog) {
  for (const std::string& path : {::testing::TempDir(), path_ + ".missing"}) {
    EXPECT_EQ(AnswerLogReader::Open(path).status().code(), StatusCode::kNotFound) << path;
  }
}

}  // namespace
}  // namespace kvlathe
