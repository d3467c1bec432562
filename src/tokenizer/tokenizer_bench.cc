// Bytes per second of the three models on generated prose; the words repeat more than a book's.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>

#include "io/files.h"
#include "tokenizer/sample_tokenizers.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {
namespace {

void BenchTokenize(benchmark::State& state, const std::string& file, const std::string& contents) {
  std::string folder = (std::filesystem::temp_directory_path() / "kvlathe-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return state.SkipWithError("no temporary folder");
  const Status written = WriteFileAtomically(folder + "/" + file, contents);
  auto tokenizer = Tokenizer::Load(folder);
  std::filesystem::remove_all(folder);
  if (!written.ok() || !tokenizer.ok()) return state.SkipWithError("no tokenizer");
  const std::string text = SampleText(size_t{1} << 20);
  for (auto _ : state) benchmark::DoNotOptimize((*tokenizer)->Tokenize(text, /*add_bos=*/true));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

void BM_ByteLevelBpe(benchmark::State& state) {
  BenchTokenize(state, "tokenizer.json", ByteLevelSample().dump());
}
void BM_CharLevelBpe(benchmark::State& state) {
  BenchTokenize(state, "tokenizer.json", CharLevelSample().dump());
}
void BM_SentencePiece(benchmark::State& state) {
  BenchTokenize(state, "tokenizer.model", SentencePieceSample());
}
BENCHMARK(BM_ByteLevelBpe)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_CharLevelBpe)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_SentencePiece)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvlathe
