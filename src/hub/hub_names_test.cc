// What people, the environment and hubs say, before anything is fetched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hub/file_choice.h"
#include "hub/http_transfer.h"
#include "hub/hub_listing.h"
#include "hub/hub_model.h"
#include "hub/hub_options.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(HubModel, HasAnOwnerANameAndPerhapsAFile) {
  const auto model = ParseHubModel("hf:Qwen/Qwen2.5-Coder-1.5B_x");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->owner, "Qwen");
  EXPECT_EQ(model->name, "Qwen2.5-Coder-1.5B_x");
  EXPECT_EQ(model->file, "");
  EXPECT_EQ(ParseHubModel("hf:o/n:a/b.gguf")->file, "a/b.gguf");
  EXPECT_EQ(ParseHubModel("hf:o/n:a.gguf")->Text(), "hf:o/n:a.gguf");
  for (const char* text :
       {"hf:", "hf:o", "hf:/n", "hf:o/", "hf:o/n/m", "hf:../n", "hf:o/..", "hf:o/n:", "hf:o/n:../x",
        "hf:o/n:/x", "hf:o/a--b", "hf:o/a b", "hf:-o/n", "hf:o/n?x", "hf:o/n\n", "o/n"}) {
    const Status status = ParseHubModel(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(MessageOf(status), Not(HasSubstr("\n")));
  }
}

TEST(HubNames, StayInTheirFolder) {
  for (const char* path : {"a", "a.gguf", "a/b/c", "a..b/c", ".hidden", "\u00e4 b"}) {
    EXPECT_TRUE(IsSafePath(path)) << path;
  }
  for (const char* path : {"", "/", "/a", "a/", "a//b", "..", "a/..", "../a", "a/./b", "a\\b",
                           "a\nb", "a\x7f", "a\u009b1m"}) {
    EXPECT_FALSE(IsSafePath(path)) << path;
  }
  EXPECT_FALSE(IsSafePath(std::string(300, 'a')));
  EXPECT_FALSE(IsSafePath(std::string("a\0b", 3)));
  EXPECT_TRUE(IsSafeWord("0aF-_.9"));
  for (const char* word : {"", ".", "..", ".a", "a/b", "a b", "a\""}) {
    EXPECT_FALSE(IsSafeWord(word)) << word;
  }
}

TEST(HubListing, HasSizesAndHashesWhereTheyAreSaid) {
  const std::string commit(40, '0'), hash(64, 'f');
  const auto listing = ParseHubListing(
      {"o", "n", ""},
      fmt::format(R"({{"sha":"{}","siblings":[{{"rfilename":"b","size":7,"lfs":{{"sha256":"{}",)"
                  R"("size":9}}}},{{"rfilename":"a","size":-3,"lfs":{{"sha256":"{}"}}}}]}})",
                  commit, hash, "no hash"));
  ASSERT_TRUE(listing.ok()) << listing.status();
  EXPECT_EQ(listing->commit, commit);
  ASSERT_EQ(listing->files.size(), 2);
  EXPECT_EQ(listing->files[0].path, "a");
  EXPECT_EQ(listing->files[0].n_bytes, -1);
  EXPECT_EQ(listing->files[0].sha256, "");
  EXPECT_EQ(listing->files[1].n_bytes, 9);
  EXPECT_EQ(listing->files[1].sha256, hash);
  for (const char* text :
       {"", "[]", "3", "{}", R"({"sha":3,"siblings":[]})", R"({"sha":"main","siblings":[]})"}) {
    EXPECT_EQ(ParseHubListing({"o", "n", ""}, text).status().code(), StatusCode::kDataLoss) << text;
  }
}

std::vector<std::string> Chosen(const std::string& file, const std::vector<std::string>& paths) {
  std::vector<HubFile> files;
  for (const std::string& path : paths) files.push_back({.path = path, .n_bytes = 1});
  const auto choice = ChooseFiles({"o", "n", file}, files);
  return choice.ok() ? choice->paths : std::vector<std::string>();
}

TEST(FileChoice, FindsAGgufModelByAPartOfItsName) {
  const std::vector<std::string> paths = {"m-IQ4_XS.gguf", "m-Q4_K_S.gguf", "m.Q4_0.gguf",
                                          "m.q4_k_m.gguf", "f16/m.gguf"};
  EXPECT_THAT(Chosen("", paths), ElementsAre("m.q4_k_m.gguf"));
  EXPECT_THAT(Chosen("Q4_K_S", paths), ElementsAre("m-Q4_K_S.gguf"));
  EXPECT_THAT(Chosen("q4_0", paths), ElementsAre("m.Q4_0.gguf"));
  EXPECT_THAT(Chosen("F16", paths), ElementsAre("f16/m.gguf"));
  EXPECT_THAT(Chosen("Q4_K", paths), ElementsAre());
  EXPECT_THAT(Chosen("Q4_XS", paths), ElementsAre());
  EXPECT_THAT(Chosen("m-IQ4_XS", paths), ElementsAre("m-IQ4_XS.gguf"));
  EXPECT_THAT(Chosen("", {"a.Q4_K_M.gguf", "b.Q4_K_M.gguf"}), ElementsAre());
}

TEST(FileChoice, PartsBelongTogether) {
  EXPECT_THAT(Chosen("", {"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"}),
              ElementsAre("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"));
  EXPECT_THAT(Chosen("", {"m-00001-of-00003.gguf", "m-00003-of-00003.gguf"}), ElementsAre());
  EXPECT_THAT(Chosen("", {"m-00002-of-00002.gguf", "m-00003-of-00002.gguf"}), ElementsAre());
  EXPECT_THAT(Chosen("", {"m-0001-of-00002.gguf"}), ElementsAre("m-0001-of-00002.gguf"));
}

TEST(FileChoice, SaysWhichPartIsMissing) {
  const std::vector<HubFile> files = {{.path = "m-00001-of-00003.gguf"}};
  const Status status = ChooseFiles({"o", "n", ""}, files).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(status), HasSubstr("of the 3 files"));
}

TEST(HttpTransfer, KnowsOriginsAndRelativeAddresses) {
  EXPECT_TRUE(HaveSameOrigin("https://a.b/x", "https://A.b:443/y?z"));
  EXPECT_FALSE(HaveSameOrigin("https://a.b/", "http://a.b/"));
  EXPECT_FALSE(HaveSameOrigin("https://a.b/", "https://a.b:8443/"));
  EXPECT_FALSE(HaveSameOrigin("https://a.b/", "https://a.b.c/"));
  EXPECT_FALSE(HaveSameOrigin("https://a.b/", "https://a.b@c/"));
  EXPECT_FALSE(HaveSameOrigin("", ""));
  EXPECT_EQ(ResolveUrl("https://a/b/c?d", "/e"), "https://a/e");
  EXPECT_EQ(ResolveUrl("https://a/b/c", "https://x/y?z=1#w"), "https://x/y?z=1");
  EXPECT_EQ(ResolveUrl("https://a/b/c", "file:///etc/passwd"), "");
  EXPECT_EQ(ResolveUrl("https://a/b/c", ""), "");
  EXPECT_EQ(EncodePath("a b/%\u00e4#?"), "a%20b/%25%C3%A4%23%3F");
}

// Variables that are as they were afterwards.
class HubOptionsTest : public testing::Test {
 protected:
  HubOptionsTest() {
    for (const char* name : kNames) {
      const char* const value = std::getenv(name);
      if (value != nullptr) saved_.emplace_back(name, value);
      ::unsetenv(name);
    }
  }
  ~HubOptionsTest() override {
    for (const char* name : kNames) ::unsetenv(name);
    for (const auto& [name, value] : saved_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  static void Set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

 private:
  static constexpr const char* kNames[] = {"HF_ENDPOINT",  "HF_TOKEN",      "HF_TOKEN_PATH",
                                           "HF_HOME",      "HOME",          "XDG_CACHE_HOME",
                                           "HF_HUB_CACHE", "HF_HUB_OFFLINE"};
  std::vector<std::pair<std::string, std::string>> saved_;
};

TEST_F(HubOptionsTest, AreThoseOfHuggingFacesOwnTools) {
  EXPECT_EQ(HubOptionsFromEnvironment().status().code(), StatusCode::kInvalidArgument);
  Set("HOME", "/home/u");
  HubOptions options = HubOptionsFromEnvironment().value();
  EXPECT_EQ(options.endpoint, "https://huggingface.co");
  EXPECT_EQ(options.cache_folder, "/home/u/.cache/huggingface/hub");
  EXPECT_EQ(options.token, "");
  EXPECT_FALSE(options.is_offline);
  Set("XDG_CACHE_HOME", "/x");
  EXPECT_EQ(HubOptionsFromEnvironment()->cache_folder, "/x/huggingface/hub");
  Set("HF_HOME", "/hf");
  EXPECT_EQ(HubOptionsFromEnvironment()->cache_folder, "/hf/hub");
  Set("HF_HUB_CACHE", "/cache/");
  Set("HF_ENDPOINT", "http://mirror:8080/");
  Set("HF_TOKEN", " hf_x\n");
  Set("HF_HUB_OFFLINE", "yes");
  options = HubOptionsFromEnvironment().value();
  EXPECT_EQ(options.cache_folder, "/cache");
  EXPECT_EQ(options.endpoint, "http://mirror:8080");
  EXPECT_EQ(options.token, "hf_x");
  EXPECT_TRUE(options.is_offline);
}

TEST_F(HubOptionsTest, ATokenMayLieInAFile) {
  const ScratchFolder folder;
  Set("HF_HOME", folder.path());
  EXPECT_EQ(HubOptionsFromEnvironment()->token, "");
  std::ofstream(folder / "token") << "hf_of_file\n";
  EXPECT_EQ(HubOptionsFromEnvironment()->token, "hf_of_file");
  std::ofstream(folder / "other") << "hf_other";
  Set("HF_TOKEN_PATH", folder / "other");
  EXPECT_EQ(HubOptionsFromEnvironment()->token, "hf_other");
  Set("HF_TOKEN", "hf_first");
  EXPECT_EQ(HubOptionsFromEnvironment()->token, "hf_first");
}

TEST_F(HubOptionsTest, RefuseWhatCannotBeRight) {
  Set("HOME", "/home/u");
  for (const char* endpoint : {"huggingface.co", "ftp://a", "https://a b", "https://u:p@a"}) {
    Set("HF_ENDPOINT", endpoint);
    EXPECT_THAT(MessageOf(HubOptionsFromEnvironment().status()), HasSubstr("HF_ENDPOINT"));
  }
  Set("HF_ENDPOINT", "");
  Set("HF_TOKEN", "hf_\r\nX-Evil: 1");
  const Status status = HubOptionsFromEnvironment().status();
  EXPECT_THAT(MessageOf(status), HasSubstr("HF_TOKEN"));
  EXPECT_THAT(MessageOf(status), Not(HasSubstr("Evil")));
}

}  // namespace
}  // namespace kvlathe
