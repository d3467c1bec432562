#include "hub/fetch_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "hub/hub_fixture.h"
#include "io/file_size_limit.h"
#include "io/files.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

std::string BytesOf(size_t n, int seed = 1) {
  std::string bytes;
  uint32_t state = static_cast<uint32_t>(seed);
  for (size_t i = 0; i < n; ++i)
    bytes += static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

class FetchModelTest : public testing::Test {
 protected:
  StatusOr<std::string> Fetch(const std::string& named = "hf:owner/model") {
    return Fetch(named, hub_.Options(folder_ / "hub"));
  }
  StatusOr<std::string> Fetch(const std::string& named, const HubOptions& options) {
    KVL_ASSIGN_OR_RETURN(const HubModel model, ParseHubModel(named));
    HubNews news{.progress = [this](const std::string&, double done) { shares_.push_back(done); },
                 .on_note = [this](const std::string& note) { notes_.push_back(note); },
                 .on_begun = [this](const std::string& what) { begun_.push_back(what); },
                 .on_done = [this](const std::string& what) { done_.push_back(what); }};
    return FetchModel(model, options, news);
  }
  void ExpectFetched(const StatusOr<std::string>& path, const std::string& bytes) {
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_EQ(ReadTextFile(*path).value(), bytes);
  }
  // One line of an error, with the code and the words.
  template <typename Matcher>
  void ExpectRefused(const StatusOr<std::string>& path, StatusCode code, Matcher matcher) {
    ASSERT_FALSE(path.ok()) << *path;
    EXPECT_EQ(path.status().code(), code) << path.status();
    EXPECT_THAT(MessageOf(path.status()), AllOf(matcher, Not(HasSubstr("\n"))));
  }
  std::string Root() const { return folder_ / "hub/models--owner--model"; }
  std::vector<std::string> PartFiles() const {
    std::vector<std::string> parts;
    for (const auto& entry : std::filesystem::directory_iterator(Root() + "/blobs")) {
      if (entry.path().extension() == ".incomplete") parts.push_back(entry.path().string());
    }
    return parts;
  }

  ScratchFolder folder_;
  FakeHub hub_;
  std::vector<double> shares_;
  std::vector<std::string> notes_, begun_, done_;
};

TEST_F(FetchModelTest, FetchesTheOnlyGgufFileIntoTheUsualPlaces) {
  const std::string bytes = BytesOf(300'000);
  hub_.Put("model-q8_0.gguf", bytes);
  hub_.Put("README.md", "A model.", /*is_large=*/false);
  const auto path = Fetch();
  ExpectFetched(path, bytes);
  EXPECT_EQ(*path, Root() + "/snapshots/" + FakeHub::Commit() + "/model-q8_0.gguf");
  EXPECT_EQ(ReadTextFile(Root() + "/refs/main").value(), FakeHub::Commit());
  const std::string target = std::filesystem::read_symlink(*path).string();
  EXPECT_EQ(target.substr(0, 12), "../../blobs/");
  EXPECT_THAT(target.substr(12), SizeIs(64));
  EXPECT_THAT(PartFiles(), testing::IsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "hub/.locks/models--owner--model"));
  ASSERT_THAT(begun_, SizeIs(1));
  EXPECT_THAT(begun_[0], AllOf(HasSubstr("model-q8_0.gguf"), HasSubstr("293 KiB")));
  ASSERT_THAT(done_, SizeIs(1));
  EXPECT_THAT(done_[0], HasSubstr(*path));
  ASSERT_FALSE(shares_.empty());
  EXPECT_TRUE(std::is_sorted(shares_.begin(), shares_.end()));
  EXPECT_EQ(shares_.back(), 1);
}

TEST_F(FetchModelTest, WhatIsInTheCacheNeedsNoHub) {
  hub_.Put("model.gguf", BytesOf(1000));
  ExpectFetched(Fetch(), BytesOf(1000));
  HubOptions options = hub_.Options(folder_ / "hub");
  options.endpoint = "http://127.0.0.1:1";
  ExpectFetched(Fetch("hf:owner/model", options), BytesOf(1000));
  ExpectFetched(Fetch("hf:owner/model:model.gguf", options), BytesOf(1000));
  options.is_offline = true;
  ExpectFetched(Fetch("hf:owner/model", options), BytesOf(1000));
  ExpectRefused(Fetch("hf:owner/other", options), StatusCode::kNotFound,
                AllOf(HasSubstr("hf:owner/other is not in"), HasSubstr("HF_HUB_OFFLINE")));
  EXPECT_THAT(done_, SizeIs(1));
}

TEST_F(FetchModelTest, TheTokenGoesToTheHubAlone) {
  hub_.Put("model.gguf", BytesOf(1000));
  hub_.manners().cuts = {100, 100};
  HubOptions options = hub_.Options(folder_ / "hub");
  options.token = "hf_secret";
  ExpectFetched(Fetch("hf:owner/model", options), BytesOf(1000));
  EXPECT_THAT(hub_.requests(), Each(HasSubstr("Authorization: Bearer hf_secret\r\n")));
  EXPECT_THAT(hub_.requests_for_large_files(), SizeIs(3));
  EXPECT_THAT(hub_.requests_for_large_files(), Each(Not(HasSubstr("hf_secret"))));
  for (const auto& said : {notes_, begun_, done_}) {
    EXPECT_THAT(said, Each(Not(HasSubstr("hf_secret"))));
  }
}

TEST_F(FetchModelTest, GoesOnWhereItWasInterrupted) {
  const std::string bytes = BytesOf(100'000);
  hub_.Put("model.gguf", bytes);
  hub_.manners().cuts = {30'000, 0, 20'000};
  ExpectFetched(Fetch(), bytes);
  const std::vector<std::string> requests = hub_.requests_for_large_files();
  ASSERT_THAT(requests, SizeIs(4));
  EXPECT_THAT(requests[0], Not(HasSubstr("Range:")));
  EXPECT_THAT(requests[1], HasSubstr("Range: bytes=30000-\r\n"));
  EXPECT_THAT(requests[3], HasSubstr("Range: bytes=50000-\r\n"));
}

TEST_F(FetchModelTest, AFurtherCallGoesOnWhereTheLastGaveUp) {
  const std::string bytes = BytesOf(100'000);
  hub_.Put("model.gguf", bytes);
  hub_.manners().cuts = {30'000, 0, 0, 0};
  ExpectRefused(Fetch(), StatusCode::kUnavailable,
                AllOf(HasSubstr("hf:owner/model: "), HasSubstr("ended early"),
                      HasSubstr("the same command goes on")));
  ASSERT_THAT(PartFiles(), SizeIs(1));
  EXPECT_EQ(std::filesystem::file_size(PartFiles()[0]), 30'000);
  ExpectFetched(Fetch(), bytes);
  EXPECT_THAT(hub_.requests_for_large_files().back(), HasSubstr("Range: bytes=30000-\r\n"));
  EXPECT_THAT(begun_.back(), HasSubstr("68.36 KiB of 97.66 KiB"));
}

TEST_F(FetchModelTest, AServerWithoutRangesSendsAllAgain) {
  const std::string bytes = BytesOf(100'000);
  hub_.Put("model.gguf", bytes);
  hub_.manners().knows_ranges = false;
  hub_.manners().cuts = {30'000};
  ExpectFetched(Fetch(), bytes);
}

TEST_F(FetchModelTest, APartThatIsTooLongIsFetchedAnew) {
  const std::string bytes = BytesOf(1000);
  hub_.Put("model.gguf", bytes);
  hub_.manners().cuts = {10, 0, 0, 0};
  EXPECT_FALSE(Fetch().ok());
  ASSERT_THAT(PartFiles(), SizeIs(1));
  std::ofstream(PartFiles()[0]) << std::string(5000, 'x');
  ExpectFetched(Fetch(), bytes);
}

TEST_F(FetchModelTest, ABusyServerIsAskedAgain) {
  hub_.Put("model.gguf", BytesOf(1000));
  hub_.manners().busy_answers = 2;
  ExpectFetched(Fetch(), BytesOf(1000));
}

TEST_F(FetchModelTest, BytesOfAnotherHashAreRemoved) {
  hub_.Put("model.gguf", BytesOf(1000));
  hub_.Pretend("model.gguf", std::string(64, 'a'), 1000);
  ExpectRefused(Fetch(), StatusCode::kDataLoss,
                AllOf(HasSubstr("model.gguf"), HasSubstr("SHA-256"), HasSubstr("removed")));
  EXPECT_TRUE(std::filesystem::is_empty(Root() + "/blobs"));
  EXPECT_FALSE(FileExists(Root() + "/refs/main"));
  // Half of a damaged part and half of the right bytes are not right either.
  hub_.Put("model.gguf", BytesOf(1000, 2));
  hub_.manners().cuts = {};
  hub_.Pretend("model.gguf", std::string(64, 'b'), 1000);
  std::ofstream(Root() + "/blobs/" + std::string(64, 'b') + ".incomplete") << BytesOf(500);
  EXPECT_EQ(Fetch().status().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(std::filesystem::is_empty(Root() + "/blobs"));
}

TEST_F(FetchModelTest, AServerThatSendsLessOrMoreIsRefused) {
  hub_.Put("model.gguf", BytesOf(1000));
  hub_.manners().ends = {400, 100, 0, 0, 0};
  ExpectRefused(Fetch(), StatusCode::kUnavailable,
                HasSubstr("the hub sent 500 of the 1000 bytes of model.gguf"));
  hub_.Put("model.gguf", BytesOf(1000));
  hub_.Pretend("model.gguf", std::string(64, 'a'), 900);
  hub_.manners().ends = {};
  ExpectRefused(Fetch(), StatusCode::kDataLoss,
                AllOf(HasSubstr("more of model.gguf than the 900 bytes"), HasSubstr("removed")));
  hub_.Pretend("model.gguf", std::string(64, 'd'), 2000);
  ExpectRefused(Fetch(), StatusCode::kDataLoss,
                HasSubstr("fewer bytes of model.gguf than the 2000"));
}

TEST_F(FetchModelTest, ASilentServerIsGivenUp) {
  hub_.Put("model.gguf", BytesOf(1000));
  hub_.manners().wait_ms = 3000;
  HubOptions options = hub_.Options(folder_ / "hub");
  options.stall_seconds = 1;
  ExpectRefused(Fetch("hf:owner/model", options), StatusCode::kUnavailable,
                HasSubstr("sent nothing for 1 s"));
}

TEST_F(FetchModelTest, WithoutANetworkOneLineSaysSo) {
  HubOptions options = hub_.Options(folder_ / "hub");
  options.endpoint = "http://127.0.0.1:1";
  ExpectRefused(Fetch("hf:owner/model", options), StatusCode::kUnavailable,
                AllOf(HasSubstr("hf:owner/model is not in"),
                      HasSubstr("127.0.0.1:1 cannot be reached"), HasSubstr("HF_ENDPOINT")));
  options.endpoint = "http://no-such-host.invalid";
  ExpectRefused(Fetch("hf:owner/model", options), StatusCode::kUnavailable,
                HasSubstr("no-such-host.invalid cannot be reached"));
}

TEST_F(FetchModelTest, ARefusalSaysWhatToDo) {
  hub_.manners() = {.refusal = 401, .refusal_code = "GatedRepo"};
  ExpectRefused(Fetch(), StatusCode::kNotFound,
                AllOf(HasSubstr("accept them at " + hub_.Endpoint() + "/owner/model"),
                      HasSubstr("set HF_TOKEN")));
  HubOptions options = hub_.Options(folder_ / "hub");
  options.token = "hf_secret";
  hub_.manners().refusal = 403;
  ExpectRefused(Fetch("hf:owner/model", options), StatusCode::kNotFound,
                AllOf(HasSubstr("the account that the token in HF_TOKEN belongs to"),
                      Not(HasSubstr("hf_secret"))));
  hub_.manners() = {.refusal = 401, .refusal_code = "RepoNotFound"};
  ExpectRefused(Fetch(), StatusCode::kNotFound,
                AllOf(HasSubstr("no such model"), HasSubstr("or set HF_TOKEN")));
  hub_.manners() = {.refusal = 404, .refusal_code = "RepoNotFound"};
  ExpectRefused(Fetch("hf:owner/model", options), StatusCode::kNotFound,
                HasSubstr("check the name and the token"));
  hub_.manners() = {.refusal = 429};
  ExpectRefused(Fetch(), StatusCode::kUnavailable,
                AllOf(HasSubstr("answers 429"), HasSubstr("asked too often")));
}

TEST_F(FetchModelTest, RedirectsThatLeadNowhereEnd) {
  hub_.Put("model.gguf", BytesOf(1000));
  hub_.manners().redirects_forever = true;
  ExpectRefused(Fetch(), StatusCode::kDataLoss, HasSubstr("without end"));
  hub_.manners() = {.location = "file:///etc/passwd"};
  ExpectRefused(Fetch(), StatusCode::kDataLoss, HasSubstr("no address of HTTP"));
}

TEST_F(FetchModelTest, WhatSaysNoSizeIsNoHub) {
  hub_.Put("model.gguf", BytesOf(1000));
  hub_.manners().has_sizes = false;
  ExpectRefused(Fetch(), StatusCode::kDataLoss, HasSubstr("does not say the size and the ETag"));
  hub_.manners() = {.listing = "<html>Log in</html>"};
  ExpectRefused(Fetch(), StatusCode::kDataLoss, HasSubstr("no list of files"));
}

TEST_F(FetchModelTest, TwoAtOnceFetchOnce) {
  const std::string bytes = BytesOf(200'000);
  hub_.Put("model.gguf", bytes);
  hub_.manners().wait_ms = 300;
  StatusOr<std::string> paths[2] = {Error(StatusCode::kInternal, "-"),
                                    Error(StatusCode::kInternal, "-")};
  std::vector<std::thread> threads;
  for (StatusOr<std::string>& path : paths) {
    threads.emplace_back([&] {
      path = FetchModel({"owner", "model", ""}, hub_.Options(folder_ / "hub"), {});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& path : paths) ExpectFetched(path, bytes);
  EXPECT_THAT(hub_.requests_for_large_files(), SizeIs(1));
}

TEST_F(FetchModelTest, AFullDiskIsKnownBefore) {
  hub_.Put("model.gguf", BytesOf(1000));
  hub_.Pretend("model.gguf", std::string(64, 'a'), int64_t{1} << 55);
  ExpectRefused(Fetch(), StatusCode::kResourceExhausted,
                AllOf(HasSubstr("are still to be fetched"), HasSubstr("HF_HUB_CACHE")));
  EXPECT_THAT(hub_.requests_for_large_files(), testing::IsEmpty());
}

TEST_F(FetchModelTest, ADiskThatFillsUpKeepsWhatCame) {
  const std::string bytes = BytesOf(100'000);
  hub_.Put("model.gguf", bytes);
  {
    const FileSizeLimit limit(40'000);
    ExpectRefused(Fetch(), StatusCode::kResourceExhausted, HasSubstr(".incomplete"));
  }
  ExpectFetched(Fetch(), bytes);
  EXPECT_THAT(hub_.requests_for_large_files().back(), HasSubstr("Range: bytes=40000-\r\n"));
}

TEST_F(FetchModelTest, HostileNamesFetchNothing) {
  for (const char* name : {"../../evil.gguf", "/etc/evil.gguf", "a/../../evil.gguf", "a//b.gguf",
                           "a\\\\..\\\\b.gguf", "a\\nb.gguf", ""}) {
    hub_.manners().listing = fmt::format(
        R"({{"sha":"{}","siblings":[{{"rfilename":"good.gguf"}},{{"rfilename":"{}"}}]}})",
        FakeHub::Commit(), name);
    ExpectRefused(Fetch(), StatusCode::kDataLoss, HasSubstr("no path inside of a model"));
  }
  hub_.manners().listing = R"({"sha":"../../..","siblings":[{"rfilename":"good.gguf"}]})";
  ExpectRefused(Fetch(), StatusCode::kDataLoss, HasSubstr("no list of files"));
  hub_.manners() = {};
  hub_.Put("model.gguf", BytesOf(10));
  hub_.Pretend("model.gguf", "../../evil", 10);
  ExpectRefused(Fetch(), StatusCode::kDataLoss, HasSubstr("ETag"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "evil.gguf"));
}

TEST_F(FetchModelTest, ALinkInPlaceOfAPartIsNotFollowed) {
  hub_.Put("model.gguf", BytesOf(1000));
  hub_.Pretend("model.gguf", std::string(64, 'a'), 1000);
  std::filesystem::create_directories(Root() + "/blobs");
  std::filesystem::create_symlink(folder_ / "elsewhere",
                                  Root() + "/blobs/" + std::string(64, 'a') + ".incomplete");
  EXPECT_FALSE(Fetch().ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "elsewhere"));
}

TEST_F(FetchModelTest, OfSeveralOneIsPreferredOrMustBeNamed) {
  hub_.Put("a-Q2_K.gguf", BytesOf(100));
  hub_.Put("a-Q8_0.gguf", BytesOf(3000));
  hub_.Put("mmproj-a.gguf", BytesOf(10));
  ExpectRefused(Fetch(), StatusCode::kInvalidArgument,
                AllOf(HasSubstr("a-Q2_K.gguf (100 B)"), HasSubstr("a-Q8_0.gguf (2.93 KiB)"),
                      Not(HasSubstr("mmproj"))));
  ExpectFetched(Fetch("hf:owner/model:a-Q2_K.gguf"), BytesOf(100));
  hub_.Put("sub/a-q4_k_m.gguf", BytesOf(700));
  ExpectFetched(Fetch("hf:owner/model:q4_k_m"), BytesOf(700));
  ExpectFetched(Fetch(), BytesOf(700));
  EXPECT_THAT(notes_.back(), HasSubstr("of which sub/a-q4_k_m.gguf is taken"));
  ExpectRefused(Fetch("hf:owner/model:Q5_K_M"), StatusCode::kNotFound,
                AllOf(HasSubstr("no GGUF file 'Q5_K_M'"), HasSubstr("a-Q8_0.gguf (2.93 KiB)")));
}

TEST_F(FetchModelTest, PartsAreFetchedTogether) {
  hub_.Put("d/m-00001-of-00003.gguf", BytesOf(50'000, 1));
  hub_.Put("d/m-00002-of-00003.gguf", BytesOf(60'000, 2));
  hub_.Put("d/m-00003-of-00003.gguf", BytesOf(10, 3));
  const auto path = Fetch("hf:owner/model:d/m-00002-of-00003.gguf");
  ExpectFetched(path, BytesOf(50'000, 1));
  EXPECT_TRUE(path->ends_with("/d/m-00001-of-00003.gguf"));
  EXPECT_EQ(ReadTextFile(path->substr(0, path->size() - 20) + "-00003-of-00003.gguf").value(),
            BytesOf(10, 3));
  EXPECT_THAT(begun_, SizeIs(1));
  // Half of it is not what is asked for.
  std::filesystem::remove(path->substr(0, path->size() - 20) + "-00002-of-00003.gguf");
  ExpectFetched(Fetch(), BytesOf(50'000, 1));
  EXPECT_TRUE(FileExists(path->substr(0, path->size() - 20) + "-00002-of-00003.gguf"));
}

TEST_F(FetchModelTest, WithoutGgufADirectoryIsFetched) {
  hub_.Put("config.json", "{}", false);
  hub_.Put("tokenizer.json", BytesOf(2000), true);
  hub_.Put("pytorch_model.bin", BytesOf(2000), true);
  hub_.Put("onnx/model.safetensors", BytesOf(5), true);
  hub_.Put("model.safetensors.index.json",
           R"({"weight_map":{"a":"model-00001-of-00002.safetensors",)"
           R"("b":"model-00002-of-00002.safetensors","c":"model-00001-of-00002.safetensors"}})",
           false);
  hub_.Put("model-00001-of-00002.safetensors", BytesOf(4000), true);
  hub_.Put("model-00002-of-00002.safetensors", BytesOf(3000), true);
  hub_.Put("consolidated.safetensors", BytesOf(7000), true);
  const auto path = Fetch();
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(*path, Root() + "/snapshots/" + FakeHub::Commit());
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(*path)) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre(
                         "config.json", "tokenizer.json", "model.safetensors.index.json",
                         "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"));
  HubOptions options = hub_.Options(folder_ / "hub");
  options.is_offline = true;
  EXPECT_EQ(Fetch("hf:owner/model", options).value_or("-"), *path);
  // A directory without one of its weights is none.
  std::filesystem::remove(*path + "/model-00002-of-00002.safetensors");
  EXPECT_FALSE(Fetch("hf:owner/model", options).ok());
  EXPECT_EQ(Fetch().value_or("-"), *path);
  EXPECT_EQ(ReadTextFile(*path + "/model-00002-of-00002.safetensors").value(), BytesOf(3000));
}

TEST_F(FetchModelTest, AnIndexMayOnlyNameFilesBesideIt) {
  hub_.Put("config.json", "{}", false);
  hub_.Put("model.safetensors.index.json", R"({"weight_map":{"a":"../x.safetensors"}})", false);
  ExpectRefused(Fetch(), StatusCode::kDataLoss, HasSubstr("no file beside it"));
  hub_.Put("model.safetensors.index.json", R"({"weight_map":{"a":"x.safetensors"}})", false);
  ExpectRefused(Fetch(), StatusCode::kNotFound,
                HasSubstr("has the model, but no x.safetensors of it"));
}

TEST_F(FetchModelTest, WhatIsNoModelIsRefused) {
  hub_.Put("README.md", "A data set.", false);
  ExpectRefused(Fetch(), StatusCode::kNotFound, HasSubstr("no model that kvlathe reads"));
  ExpectRefused(Fetch("hf:owner/model:x.gguf"), StatusCode::kNotFound,
                HasSubstr("has no GGUF files"));
}

}  // namespace
}  // namespace kvlathe
