#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "io/files.h"
#include "tokenizer/gguf/sample_gguf_tokenizers.h"
#include "training/corpus/corpus.h"
#include "training/corpus_building/corpus_builder.h"
#include "training/corpus_building/source_text.h"
#include "training/corpus_building/task_rows.h"

namespace kvlathe {
namespace {

const char* const kTokenizer = KVLATHE_SOURCE_DIR "/models/lathe-nano";

class CorpusBuilding : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/kvlathe_corpus_building_" +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_ + "/books");
    Write("books/b.txt", "The second book.\n");
    Write("books/a.txt", "The first book.\n");
    Write("books/notes.md", "Not a book.\n");
    Write("lines.jsonl", "{\"q\": \"one?\", \"a\": \"1\"}\n\n{\"q\": \"two?\", \"a\": \"2\"}\n");
    Write("stories.json", "[\"A story.\", {\"text\": \"Another.\"}]");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(directory_ + "/" + name, text).ok());
  }
  StatusOr<CorpusRecipe> Recipe(const std::string& json) {
    Write("recipe.json", json);
    return LoadCorpusRecipe(directory_ + "/recipe.json");
  }
  StatusOr<std::vector<std::string>> Documents(const std::string& file,
                                               const std::string& document) {
    SourceRecipe source;
    source.files = {file};
    source.document = document;
    std::vector<std::string> documents;
    const Status status = ForEachDocument(source, directory_, [&](std::string_view text) {
      documents.emplace_back(text);
      return true;
    });
    if (!status.ok()) return status;
    return documents;
  }

  std::string directory_;
};

TEST_F(CorpusBuilding, ReadsTextLinesAndArrays) {
  EXPECT_EQ(*Documents("books/*.txt", "{text}"),
            (std::vector<std::string>{"The first book.\n", "The second book.\n"}));
  EXPECT_EQ(*Documents("lines.jsonl", "Q {q} A {a}."),
            (std::vector<std::string>{"Q one? A 1.", "Q two? A 2."}));
  EXPECT_EQ(*Documents("stories.json", "{text}"),
            (std::vector<std::string>{"A story.", "Another."}));
}

TEST_F(CorpusBuilding, NamesThePlaceOfABadEntry) {
  EXPECT_EQ(Documents("poems/*.txt", "{text}").status().code(), StatusCode::kNotFound);
  Write("lines.jsonl", "{\"q\": \"one?\"}\n{\"q\": \n");
  const Status bad = Documents("lines.jsonl", "{q}").status();
  EXPECT_EQ(bad.code(), StatusCode::kDataLoss);
  EXPECT_NE(MessageOf(bad).find("lines.jsonl:2"), std::string::npos) << bad;
  EXPECT_EQ(Documents("stories.json", "{title}").status().code(), StatusCode::kDataLoss);
  Write("stories.json", "{\"text\": 1}");
  EXPECT_EQ(Documents("stories.json", "{text}").status().code(), StatusCode::kDataLoss);
}

TEST_F(CorpusBuilding, RefusesRecipes) {
  for (const char* json : {
           "[]",
           "{}",
           "{\"corpus\": {}}",
           "{\"corpus\": {\"a\": {}}}",
           "{\"corpus\": {\"a\": {\"files\": [\"x\"], \"tasks\": {\"sort\": 1}}}}",
           "{\"corpus\": {\"a\": {\"tasks\": {\"sort\": 1}}}}",
           "{\"corpus\": {\"a\": {\"files\": 3}}}",
           "{\"corpus\": {\"a\": {\"files\": [\"x\"], \"colour\": 1}}}",
           "{\"corpus\": {\"a\": {\"files\": [\"x\"], \"answers_only\": true}}}",
           "{\"corpus\": {\"a\": {\"tasks\": {\"sort\": 1}, \"context\": 1, \"n_tokens\": 9}}}",
       }) {
    const auto recipe = Recipe(json);
    EXPECT_EQ(recipe.status().code(), StatusCode::kInvalidArgument) << json << recipe.status();
  }
}

TEST_F(CorpusBuilding, RowsHoldWholeExamples) {
  auto tokenizer = Tokenizer::Load(kTokenizer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  auto packer = TaskRowPacker::Create({{"sort", 1}, {"arithmetic", 2}}, 400, 7, tokenizer->get());
  ASSERT_TRUE(packer.ok()) << packer.status();
  const auto bos = static_cast<uint32_t>(*(*tokenizer)->bos_id());
  std::vector<uint32_t> row;
  int64_t n_bytes = 0, n_filler = 0;
  int n_examples = 0;
  constexpr int kRows = 30;
  for (int i = 0; i < kRows; ++i) {
    ASSERT_TRUE(packer->NextRow(&row, &n_bytes).ok());
    ASSERT_EQ(row.size(), 400u);
    EXPECT_EQ(row[0], bos);
    size_t last = 0;
    for (size_t t = 0; t < row.size(); ++t) {
      if (row[t] != bos) continue;
      ++n_examples;
      last = t;
    }
    // Every example but the last one of a row ends as its task says.
    const std::vector<int32_t> ids(row.begin(), row.begin() + last);
    const std::string text = (*tokenizer)->Detokenize(ids);
    if (last > 0) {
      EXPECT_EQ(text.back(), '\n') << text;
    }
    n_filler += static_cast<int64_t>(row.size() - last);
  }
  EXPECT_GT(n_examples, 2 * kRows) << "rows of one example";
  EXPECT_LT(n_filler, int64_t{kRows} * 150);
  EXPECT_GT(n_bytes, int64_t{kRows} * 400);
  EXPECT_EQ(TaskRowPacker::Create({{"rules", 1}}, 100, 7, tokenizer->get()).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(TaskRowPacker::Create({{"juggling", 1}}, 100, 7, tokenizer->get()).status().code(),
            StatusCode::kInvalidArgument);
}

// A row of `recall`: records, "recall", then questions, each a record again whose words after the
// key are the answer.
TEST_F(CorpusBuilding, MarksAllButAnswers) {
  auto tokenizer = Tokenizer::Load(kTokenizer);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  auto packer = TaskRowPacker::Create({{"recall", 1}}, 300, 7, tokenizer->get());
  ASSERT_TRUE(packer.ok()) << packer.status();
  packer->LearnAnswersOnly();
  std::vector<uint32_t> row;
  int64_t n_bytes = 0;
  int n_answers = 0;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(packer->NextRow(&row, &n_bytes).ok());
    std::string text, learned;
    for (const uint32_t token : row) {
      const bool is_learned = (token & kNotLearned) == 0;
      const std::string bytes = (*tokenizer)->TokenBytes(token & ~kNotLearned);
      text += bytes;
      learned += is_learned ? bytes : "";
    }
    std::string expected;
    bool is_asking = false;
    for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
      const std::string line = text.substr(at, end - at);
      // The first record of an example has the space that the tokenizer adds.
      if (line.starts_with(' ')) is_asking = false;
      if (is_asking) expected += line.substr(line.find(' ')) + "\n";
      n_answers += is_asking;
      is_asking = is_asking || line == "recall";
    }
    EXPECT_TRUE(learned.starts_with(expected)) << text << "\n---\n" << learned << expected;
    EXPECT_LT(learned.size(), expected.size() + 40) << "more than one answer that was cut off";
  }
  EXPECT_GT(n_answers, 60);
}

TEST_F(CorpusBuilding, BuildsACorpusThatOpens) {
  const auto recipe = Recipe(
      "{\"corpus\": {\"books\": {\"files\": [\"books/*.txt\"]},"
      "\"tasks\": {\"tasks\": {\"sort\": 1}, \"context\": 128, \"n_tokens\": 1000}}}");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  const std::string out = directory_ + "/corpus";
  std::map<std::string, int64_t> reported;
  const Status built = BuildCorpus(
      *recipe, directory_, kTokenizer, out,
      [&](const std::string& name, int64_t n_tokens, int64_t) { reported[name] = n_tokens; });
  ASSERT_TRUE(built.ok()) << built;
  auto corpus = Corpus::Open(out);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(reported["books"], corpus->Find("books")->n_tokens);
  EXPECT_EQ(corpus->Find("tasks")->row_tokens, 129);
  EXPECT_EQ(corpus->Find("tasks")->n_tokens, 8 * 129);
  EXPECT_EQ(corpus->Find("books")->n_bytes, 33);
  EXPECT_EQ(corpus->Find("music"), nullptr);

  // The tokenizer goes with the corpus, and its ids give the text back.
  auto tokenizer = Tokenizer::Load(out);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto tokens = corpus->tokens("books");
  std::vector<int64_t> wide(static_cast<size_t>(tokens.size()));
  tokens.Copy(0, wide);
  const std::vector<int32_t> ids(wide.begin(), wide.end());
  EXPECT_EQ(ids[0], corpus->info().bos_id);
  const std::string text = (*tokenizer)->Detokenize(ids);
  EXPECT_NE(text.find("The first book."), std::string::npos) << text;
  EXPECT_NE(text.find("The second book."), std::string::npos) << text;

  EXPECT_FALSE(BuildCorpus(*recipe, directory_, directory_ + "/books", out, [](auto&&...) {}).ok());
}

// Of a tokenizer in a GGUF file the corpus has files of its own; texts begin without BOS if it adds
// none.
TEST_F(CorpusBuilding, TakesTheTokenizerOfAGgufFile) {
  GgufTokenizerSample sample = GgufByteLevelSample("smollm");
  sample.ids["bos"] = sample.Add("<|im_start|>", 3);
  sample.Write(directory_ + "/model.gguf");
  const auto recipe = Recipe("{\"corpus\": {\"books\": {\"files\": [\"books/*.txt\"]}}}");
  const std::string out = directory_ + "/corpus";
  const Status built =
      BuildCorpus(*recipe, directory_, directory_ + "/model.gguf", out, [](auto&&...) {});
  ASSERT_TRUE(built.ok()) << built;
  auto corpus = Corpus::Open(out);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(corpus->info().bos_id, -1);
  auto tokenizer = Tokenizer::Load(out);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<int64_t> wide(static_cast<size_t>(corpus->tokens("books").size()));
  corpus->tokens("books").Copy(0, wide);
  EXPECT_EQ((*tokenizer)->Detokenize(std::vector<int32_t>(wide.begin(), wide.end())),
            "The first book.\nThe second book.\n");
  EXPECT_EQ(
      BuildCorpus(*recipe, directory_, directory_ + "/none.gguf", out, [](auto&&...) {}).code(),
      StatusCode::kNotFound);
}

TEST_F(CorpusBuilding, WritesTextsForATokenizerWithAShareOfEveryDocument) {
  const auto recipe = Recipe(
      "{\"corpus\": {\"books\": {\"files\": [\"books/*.txt\"]},"
      "\"tasks\": {\"tasks\": {\"sort\": 1, \"copy\": 1}, \"context\": 256, \"n_tokens\": 1000}}}");
  ASSERT_TRUE(recipe.ok());
  const auto paths = WriteTrainingTexts(*recipe, directory_, directory_ + "/texts", 16);
  ASSERT_TRUE(paths.ok()) << paths.status();
  ASSERT_EQ(paths->size(), 2u);
  // 16 of 33 bytes: 7 of the first and 8 of the second.
  EXPECT_EQ(*ReadTextFile((*paths)[0]), "The fir\nThe seco\n");
  const std::string tasks = *ReadTextFile((*paths)[1]);
  EXPECT_NE(tasks.find("sort "), std::string::npos);
  EXPECT_NE(tasks.find("copy : "), std::string::npos);
}

}  // namespace
}  // namespace kvlathe
