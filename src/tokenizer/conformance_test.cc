// Reference ids of published tokenizers and of the two small models; needs shared data that the
// repository does not hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "io/files.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {
namespace {

const std::string kShared = std::string(KVLATHE_SOURCE_DIR) + "/../shared/";

struct Case {
  const char* texts;      // conformance/NAME
  const char* directory;  // under tokenizers/
  const char* pre;
};

class ConformanceTest : public testing::TestWithParam<Case> {};

std::vector<std::string> SplitTexts(const std::string& contents) {
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> texts;
  size_t pos = 0;
  for (size_t hit; (hit = contents.find(separator, pos)) != std::string::npos;) {
    texts.push_back(contents.substr(pos, hit - pos));
    pos = hit + separator.size();
  }
  return texts;
}

std::vector<int32_t> ParseIds(const std::string& line) {
  std::istringstream in(line);
  std::vector<int32_t> ids;
  for (int32_t id; in >> id;) ids.push_back(id);
  return ids;
}

TEST_P(ConformanceTest, IdsEqualTheReference) {
  const std::string root = kShared + "tokenizers/";
  if (!DirectoryExists(root)) GTEST_SKIP() << "no " << root;
  auto tokenizer = Tokenizer::Load(root + GetParam().directory, {.pre = GetParam().pre});
  ASSERT_TRUE(tokenizer.ok()) << MessageOf(tokenizer.status());
  const std::string name = root + "conformance/" + GetParam().texts;
  const std::vector<std::string> texts = SplitTexts(*ReadTextFile(name + ".inp"));
  ASSERT_EQ(texts.size(), 46u);
  std::istringstream references(*ReadTextFile(name + ".out"));
  for (const std::string& text : texts) {
    std::string line;
    ASSERT_TRUE(std::getline(references, line));
    const std::vector<int32_t> ids = (*tokenizer)->Tokenize(text, /*add_bos=*/false);
    EXPECT_EQ(ids, ParseIds(line)) << "text: \"" << text << "\"";
    EXPECT_EQ((*tokenizer)->Detokenize(ids), text);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ConformanceTest,
    testing::Values(Case{"gpt-2", "gpt2", ""}, Case{"gpt-2", "gpt2", "gpt2"},
                    Case{"llama-spm", "llama2", ""}, Case{"llama-spm", "phi-3", ""},
                    Case{"llama-spm", "llama2-sp", ""}, Case{"llama-bpe", "llama3.2-bpe", "llama3"},
                    Case{"llama-bpe", "llama3-tiktoken", ""}, Case{"qwen2", "qwen2", ""}));

TEST(SharedTokenizerTest, LatheNanoGivesTheGoldenIds) {
  const std::string directory = kShared + "models/lathe-nano";
  if (!DirectoryExists(directory)) GTEST_SKIP() << "no " << directory;
  auto tokenizer = Tokenizer::Load(directory);
  ASSERT_TRUE(tokenizer.ok()) << MessageOf(tokenizer.status());
  const auto golden = ReadJsonFile(directory + "/golden.json");
  ASSERT_TRUE(golden.ok());
  ASSERT_FALSE((*golden)["tokenizer"].empty());
  for (const auto& item : (*golden)["tokenizer"]) {
    const auto text = item["text"].get<std::string>();
    auto ids = item["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ((*tokenizer)->Tokenize(text, /*add_bos=*/false), ids);
    EXPECT_EQ((*tokenizer)->Detokenize(ids), text);
    ids.insert(ids.begin(), 1);
    EXPECT_EQ((*tokenizer)->Tokenize(text, /*add_bos=*/true), ids);
  }
}

TEST(SharedTokenizerTest, TinystoriesRoundTrips) {
  const std::string directory = kShared + "models/tinystories-656k";
  if (!DirectoryExists(directory)) GTEST_SKIP() << "no " << directory;
  auto tokenizer = Tokenizer::Load(directory);
  ASSERT_TRUE(tokenizer.ok()) << MessageOf(tokenizer.status());
  EXPECT_EQ((*tokenizer)->bos_id(), 1);
  EXPECT_EQ((*tokenizer)->eos_id(), 2);
  const std::string text = "One day, a small fox found a red kite.\nIt asked, \"Is it yours?\"";
  const auto ids = (*tokenizer)->Tokenize(text, /*add_bos=*/true);
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ((*tokenizer)->Detokenize(ids), text);
}

TEST(SharedTokenizerTest, EveryTokenizerLoads) {
  const std::string root = kShared + "tokenizers";
  if (!DirectoryExists(root)) GTEST_SKIP() << "no " << root;
  int n_loaded = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (!entry.is_directory() || entry.path().filename() == "conformance") continue;
    const bool has_class = FileExists(entry.path().string() + "/tokenizer_config.json") ||
                           FileExists(entry.path().string() + "/tokenizer.json");
    const auto tokenizer =
        Tokenizer::Load(entry.path().string(), {.pre = has_class ? "" : "llama3"});
    EXPECT_TRUE(tokenizer.ok()) << MessageOf(tokenizer.status());
    ++n_loaded;
  }
  EXPECT_GE(n_loaded, 8);
}

// Vocabularies that Python packages bring along; tests/golden/make_ids.py writes the folder.
TEST(PackagedTokenizerTest, IdsEqualThoseOfTheAuthorsPackages) {
  const std::string root = std::string(KVLATHE_SOURCE_DIR) + "/../data/tokenizers";
  if (!DirectoryExists(root)) GTEST_SKIP() << "no " << root;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const std::string directory = entry.path().string();
    SCOPED_TRACE(entry.path().filename().string());
    const auto golden = ReadJsonFile(directory + "/ids.json");
    ASSERT_TRUE(golden.ok()) << golden.status();
    const std::string gguf = directory + "/model.gguf";
    const auto tokenizer = Tokenizer::Load(FileExists(gguf) ? gguf : directory,
                                           {.pre = (*golden)["pre"].get<std::string>()});
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    int n_different = 0;
    for (size_t i = 0; i < (*golden)["texts"].size(); ++i) {
      const auto text = (*golden)["texts"][i].get<std::string>();
      const auto expected = (*golden)["ids"][i].get<std::vector<int32_t>>();
      const auto ids = (*tokenizer)->TryTokenize(text, /*add_bos=*/false, (*golden)["special"]);
      ASSERT_TRUE(ids.ok()) << ids.status();
      if (*ids == expected) continue;
      const auto differ = std::ranges::mismatch(*ids, expected);
      ADD_FAILURE() << "text " << i << " from token " << differ.in1 - ids->begin() << ": \""
                    << text.substr(0, 200) << "\"";
      if (++n_different == 5) break;
    }
  }
}

}  // namespace
}  // namespace kvlathe
