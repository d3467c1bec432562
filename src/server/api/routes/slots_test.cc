#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "io/files.h"
#include "io/scratch_folder.h"
#include "server/api/api_fixture.h"

namespace kvlathe::api {
namespace {

using ::testing::HasSubstr;

class SlotsTest : public ApiTest {
 protected:
  void SetUp() override {
    StartEngine({.prefix_bytes = int64_t{32} << 20});
    StartService(folder_ / "prompts");
  }
  void StartService(const std::string& folder) {
    ApiContext context = Context();
    context.n_slots = 4;
    context.prompt_folder = folder;
    service_ = std::make_unique<ApiService>(std::move(context));
  }
  Json Ask(const std::string& path, const Json& body, int status = 200,
           const std::string& query = "", const std::string& tenant = "") {
    auto reply = std::make_shared<FakeReply>();
    service_->Handle({.id = "r",
                      .method = "POST",
                      .path = path,
                      .query = query,
                      .body = body.dump(),
                      .tenant = tenant},
                     reply);
    Run({reply});
    EXPECT_EQ(reply->sent.status, status) << reply->sent.body;
    return reply->SentJson();
  }
  Json Act(const std::string& action, int id, const std::string& name, int status = 200,
           const std::string& tenant = "") {
    return Ask("/slots/" + std::to_string(id), {{"filename", name}}, status, "action=" + action,
               tenant);
  }
  Json Complete(const Json& more = Json::object()) {
    Json body = Greedy({{"prompt", std::string(60, 'a')}, {"max_tokens", 4}});
    body.update(more);
    return Ask("/v1/completions", body);
  }
  // Another process: nothing is in memory.
  void Restart() {
    StartEngine({.prefix_bytes = int64_t{32} << 20});
    StartService(folder_ / "prompts");
  }

  const ScratchFolder folder_;
};

TEST_F(SlotsTest, WhatASlotHeldComesBackByName) {
  const Json first = Complete({{"id_slot", 2}});
  const int n_tokens = first["usage"]["total_tokens"];
  const Json saved = Act("save", 2, "a-name.bin");
  EXPECT_EQ(saved["n_saved"], n_tokens);
  EXPECT_GT(saved["n_written"], n_tokens);
  Restart();
  const Json restored = Act("restore", 1, "a-name.bin");
  EXPECT_EQ(restored["id_slot"], 1);
  EXPECT_EQ(restored["n_restored"], n_tokens);
  EXPECT_EQ(restored["n_computed"], n_tokens);  // nothing is on disk here
  const Json again = Complete();
  EXPECT_GE(again["usage"]["prompt_tokens_details"]["cached_tokens"], 16);
  EXPECT_EQ(again["choices"][0]["text"], first["choices"][0]["text"]);
  EXPECT_LT(Act("restore", 3, "a-name.bin")["n_computed"], 4);
  EXPECT_EQ(Act("save", 1, "other")["n_saved"], n_tokens);
}

TEST_F(SlotsTest, ARequestWithoutANumberIsTheLowestFreeSlots) {
  const Json first = Complete();
  EXPECT_EQ(Act("save", 0, "x")["n_saved"], first["usage"]["total_tokens"]);
  EXPECT_EQ(Act("erase", 0, "")["n_erased"], first["usage"]["total_tokens"]);
  EXPECT_EQ(Act("erase", 0, "")["n_erased"], 0);
  EXPECT_THAT(Act("save", 0, "x", 404)["error"]["message"].get<std::string>(),
              HasSubstr("held nothing"));
}

TEST_F(SlotsTest, TenantsHaveSlotsAndNamesOfTheirOwn) {
  const Json body = Greedy({{"prompt", std::string(60, 'b')}, {"max_tokens", 2}, {"id_slot", 1}});
  Ask("/v1/completions", body, 200, "", "one");
  Act("save", 1, "mine", 200, "one");
  Act("save", 1, "mine", 404, "other");
  Act("restore", 1, "mine", 404, "other");
  Act("restore", 1, "mine", 200, "one");
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "prompts")) {
    EXPECT_EQ(entry.status().permissions(), std::filesystem::perms(0600));
  }
}

TEST_F(SlotsTest, WhatCannotBeIsRefused) {
  Complete({{"id_slot", 0}});
  for (const char* name : {"", "../x", ".x", "a/b", "a b", "a\nb"}) Act("save", 0, name, 400);
  Act("save", 0, std::string(200, 'a'), 400);
  Act("restore", 0, "nothing", 404);
  Act("save", 4, "x", 404);
  Ask("/slots/0", {{"filename", "x"}}, 400);
  Ask("/slots/0", Json::object(), 400, "action=save");
  Ask("/slots/zero", {{"filename", "x"}}, 404, "action=save");
  Ask("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}, {"id_slot", 4}}, 400);
  Act("save", 0, "x");
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "prompts")) {
    std::string text = *ReadTextFile(entry.path().string());
    text[text.size() / 2] ^= 1;
    ASSERT_TRUE(WriteFileAtomically(entry.path().string(), text).ok());
  }
  EXPECT_THAT(Act("restore", 0, "x", 500)["error"]["message"].get<std::string>(),
              HasSubstr("damaged"));
  StartService("");
  Complete({{"id_slot", 0}});
  EXPECT_THAT(Act("save", 0, "x", 400)["error"]["message"].get<std::string>(),
              HasSubstr("--prefix-dir"));
}

}  // namespace
}  // namespace kvlathe::api
