// Texts are cut where the package tokenizers cuts them (tests/golden/make_splits.py), by every name
// and by the sections of tokenizer.json that say the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/files.h"
#include "tokenizer/files/tokenizer_json.h"
#include "tokenizer/splitting/named_pre_tokenizer.h"

namespace kvlathe {
namespace {

using nlohmann::json;
using Lengths = std::vector<size_t>;
using Runs = std::vector<std::pair<size_t, size_t>>;  // a length, and how often it comes in a row

const json& Golden() {
  static const json kGolden = [] {
    auto golden =
        ReadJsonFile(std::string(KVLATHE_SOURCE_DIR) + "/tests/golden/splits/splits.json");
    EXPECT_TRUE(golden.ok()) << golden.status();
    return golden.ok() ? *std::move(golden) : json();
  }();
  return kGolden;
}

std::string Repeated(std::string_view unit, size_t times) {
  std::string text;
  text.reserve(unit.size() * times);
  for (size_t i = 0; i < times; ++i) text += unit;
  return text;
}

void ForEachLength(const PreTokenizer& pre_tokenizer, std::string_view text, RegexScratch* scratch,
                   absl::FunctionRef<void(size_t)> add) {
  pre_tokenizer.Split(text, /*is_text_start=*/true, scratch,
                      [&](std::string_view piece) { add(piece.size()); });
  const Status failure = scratch->TakeFailure();
  EXPECT_TRUE(failure.ok()) << failure;
}

Lengths LengthsOf(const PreTokenizer& pre_tokenizer, std::string_view text) {
  RegexScratch scratch;
  Lengths lengths;
  ForEachLength(pre_tokenizer, text, &scratch, [&](size_t n) { lengths.push_back(n); });
  return lengths;
}

Runs RunsOf(const PreTokenizer& pre_tokenizer, std::string_view text, RegexScratch* scratch) {
  Runs runs;
  ForEachLength(pre_tokenizer, text, scratch, [&](size_t n) {
    if (runs.empty() || runs.back().first != n) runs.emplace_back(n, 0);
    ++runs.back().second;
  });
  return runs;
}

// The texts, and those that repeat one thing.
void ExpectGoldenPieces(const PreTokenizer& pre_tokenizer, const json& split) {
  const json& texts = Golden()["texts"];
  ASSERT_GE(texts.size(), 40u);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto& text = texts[i].get_ref<const std::string&>();
    EXPECT_EQ(LengthsOf(pre_tokenizer, text), split["pieces"][i].get<Lengths>()) << text;
  }
  const json& units = Golden()["runs"];
  for (size_t i = 0; i < units.size(); ++i) {
    const auto& unit = units[i].get_ref<const std::string&>();
    RegexScratch scratch;
    EXPECT_EQ(RunsOf(pre_tokenizer, Repeated(unit, Golden()["times"]), &scratch),
              split["runs"][i].get<Runs>())
        << "many times \"" << unit << "\"";
  }
}

TEST(GoldenSplits, EveryNameCutsAsThePackageDoes) {
  for (const json& split : Golden()["splits"]) {
    for (const auto& name : split["names"].get<std::vector<std::string>>()) {
      SCOPED_TRACE(name);
      const auto named = FindPreTokenizer(name);
      ASSERT_TRUE(named.ok()) << named.status();
      ExpectGoldenPieces(named->pre_tokenizer, split);
    }
  }
}

TEST(GoldenSplits, TheSectionsOfTokenizerJsonCutAsThePackageDoes) {
  for (const json& split : Golden()["splits"]) {
    SCOPED_TRACE(split["names"][0]);
    bool byte_level = false;
    const auto parsed = ParsePreTokenizer(split["pre_tokenizer"], &byte_level);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_TRUE(byte_level);
    ExpectGoldenPieces(*parsed, split);
  }
}

TEST(GoldenSplits, EveryNameIsAmongThem) {
  std::vector<std::string> tested;
  for (const json& split : Golden()["splits"]) {
    for (const json& name : split["names"]) tested.push_back(name);
  }
  EXPECT_THAT(PreTokenizerNames(), testing::UnorderedElementsAreArray(tested));
  EXPECT_GE(tested.size(), 75u);
}

std::vector<std::string> PiecesOf(const PreTokenizer& pre_tokenizer, std::string_view text) {
  RegexScratch scratch;
  std::vector<std::string> pieces;
  pre_tokenizer.Split(text, /*is_text_start=*/true, &scratch,
                      [&](std::string_view piece) { pieces.emplace_back(piece); });
  EXPECT_TRUE(scratch.TakeFailure().ok());
  return pieces;
}

TEST(GoldenSplits, ExpressionsMeanWhatTheyMeanToOniguruma) {
  for (const json& one : Golden()["expressions"]) {
    const auto pattern = one[0].get<std::string>();
    SCOPED_TRACE(pattern);
    PreTokenizer pre_tokenizer;
    auto step = IsolatedSplit(pattern);
    ASSERT_TRUE(step.ok()) << step.status();
    ASSERT_TRUE(pre_tokenizer.AddStep(*std::move(step)).ok());
    EXPECT_EQ(PiecesOf(pre_tokenizer, one[1].get<std::string>()),
              one[2].get<std::vector<std::string>>());
  }
}

TEST(GoldenSplits, StepsOfTokenizerJsonCutAsThePackageDoes) {
  const json& texts = Golden()["step_texts"];
  for (const json& step : Golden()["steps"]) {
    SCOPED_TRACE(step["pre_tokenizer"].dump());
    bool byte_level = false;
    const auto parsed = ParsePreTokenizer(step["pre_tokenizer"], &byte_level);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(PiecesOf(*parsed, texts[i].get<std::string>()),
                step["pieces"][i].get<std::vector<std::string>>())
          << texts[i];
    }
  }
}

TEST(GoldenSplits, NormalizersOfTokenizerJsonWriteWhatThePackageWrites) {
  const json& texts = Golden()["normalized_texts"];
  for (const json& one : Golden()["normalizers"]) {
    SCOPED_TRACE(one["normalizer"].dump());
    const auto parsed = ParseNormalizer(one["normalizer"]);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    RegexScratch scratch;
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(parsed->Apply(texts[i].get<std::string>(), &scratch),
                one["texts"][i].get<std::string>());
    }
    EXPECT_TRUE(scratch.TakeFailure().ok());
  }
}

TEST(GoldenSplits, WordsWithPrefixesAndSuffixesHaveTheIdsOfThePackage) {
  const json& texts = Golden()["affix_texts"];
  for (const json& one : Golden()["affixes"]) {
    const json& file = one["tokenizer"];
    auto parts = ParseTokenizerJson(file);
    ASSERT_TRUE(parts.ok()) << parts.status();
    const TextTokenizer tokenizer(*std::move(parts));
    for (size_t i = 0; i < texts.size(); ++i) {
      SCOPED_TRACE(file["pre_tokenizer"].dump() + texts[i].dump());
      const auto expected = one["ids"][i].get<std::vector<int32_t>>();
      EXPECT_EQ(tokenizer.Tokenize(texts[i].get<std::string>(), /*add_bos=*/false), expected);
      if (one["decoded"].is_null()) continue;
      EXPECT_EQ(tokenizer.Detokenize(expected, /*keep_special=*/false),
                one["decoded"][i].get<std::string>());
    }
  }
}

// What is longer is cut alike, by searches of which there are no more than pieces.
TEST(GoldenSplits, AMegabyteOfOneThingIsCutBySearchesInProportion) {
  constexpr size_t kMegabyte = size_t{1} << 20;
  // What becomes a piece of its own for each byte is a quarter of one.
  constexpr std::pair<std::string_view, size_t> kTexts[] = {
      {"a", kMegabyte}, {" ", kMegabyte}, {"\n", kMegabyte / 4}, {"7", kMegabyte / 4}};
  for (const json& split : Golden()["splits"]) {
    const std::string name = split["names"][0];
    const auto named = FindPreTokenizer(name);
    ASSERT_TRUE(named.ok()) << named.status();
    const size_t n_steps = std::max<size_t>(named->patterns.size(), 4);
    for (const auto& [unit, n_text_bytes] : kTexts) {
      SCOPED_TRACE(name + " \"" + std::string(unit) + "\"");
      RegexScratch scratch;
      const Runs runs = RunsOf(named->pre_tokenizer, Repeated(unit, n_text_bytes), &scratch);
      size_t n_bytes = 0, n_pieces = 0;
      for (const auto& [n, times] : runs) {
        n_bytes += n * times;
        n_pieces += times;
      }
      EXPECT_EQ(n_bytes, n_text_bytes);
      const json& units = Golden()["runs"];
      const auto unit_idx = std::find(units.begin(), units.end(), unit) - units.begin();
      const Runs golden = split["runs"][unit_idx].get<Runs>();
      const auto longest = [](const Runs& of) { return std::ranges::max(of).first; };
      // Pieces have one length at most (groups of digits), or are as long as the text.
      const bool is_whole = longest(golden) + 1 >= Golden()["times"].get<size_t>();
      const size_t more = is_whole ? n_text_bytes - Golden()["times"].get<size_t>() : 0;
      EXPECT_EQ(longest(runs), longest(golden) + more);
      EXPECT_LE(scratch.n_searches(), static_cast<int64_t>(n_steps * (2 * n_pieces + 2)));
    }
  }
}

}  // namespace
}  // namespace kvlathe
