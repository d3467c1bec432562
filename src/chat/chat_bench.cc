// What a turn of a conversation costs before the model sees it: it is rendered, with all turns in
// front of it, and tokenised. A conversation that grew by a turn differs from the last in its end.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "chat/chat_template.h"
#include "chat/template_files.h"
#include "io/files.h"
#include "tokenizer/sample_tokenizers.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

// About 550 bytes a turn.
Json Turns(int n_turns) {
  Json messages = {{{"role", "system"}, {"content", "Be brief and kind."}}};
  for (int i = 0; i < n_turns; ++i) {
    const std::string text = SampleText(4096).substr(static_cast<size_t>(i * 7), 250);
    messages.push_back({{"role", "user"}, {"content", "Question " + std::to_string(i) + text}});
    messages.push_back({{"role", "assistant"}, {"content", std::to_string(i) + text + text}});
  }
  messages.push_back({{"role", "user"}, {"content", "And now?"}});
  return messages;
}

// The byte-level sample, to which the marks between turns are control tokens, as to any model of
// such a template.
nlohmann::json TokenizerWith(std::initializer_list<const char*> marks) {
  nlohmann::json json = ByteLevelSample();
  size_t id = json["model"]["vocab"].size() + json["added_tokens"].size();
  for (const char* const mark : marks) {
    json["added_tokens"].push_back({{"id", id++}, {"content", mark}, {"special", true}});
  }
  return json;
}

void BM_GrownConversation(benchmark::State& state, const char* name,
                          std::initializer_list<const char*> marks) {
  const auto made = LoadChatTemplateFile(
      std::string(KVLATHE_SOURCE_DIR "/share/chat_templates/") + name + ".jinja", {});
  std::string folder = (std::filesystem::temp_directory_path() / "kvlathe-bench-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return state.SkipWithError("no temporary folder");
  const Status written =
      WriteFileAtomically(folder + "/tokenizer.json", TokenizerWith(marks).dump());
  const auto tokenizer = Tokenizer::Load(folder);
  std::filesystem::remove_all(folder);
  if (!made.ok() || !written.ok() || !tokenizer.ok()) {
    return state.SkipWithError("no template or no tokenizer");
  }
  const int n_turns = static_cast<int>(state.range(0));
  Json grown = Turns(n_turns);
  const Json before = Turns(n_turns - 1);
  int n_read = 0;
  const auto read = [&](const Json& messages) {
    const auto text = made->Render({.messages = messages});
    return (*tokenizer)->TokenizeMarked(text->text, true, text->inputs).size();
  };
  for (auto _ : state) {
    state.PauseTiming();
    for (size_t i = grown.size() - 3; i < grown.size(); ++i) {  // nobody has read the last turn
      grown[i]["content"] = std::to_string(++n_read) + SampleText(i + 1 == grown.size() ? 30 : 400);
    }
    benchmark::DoNotOptimize(read(before));
    state.ResumeTiming();
    benchmark::DoNotOptimize(read(grown));
  }
}
BENCHMARK_CAPTURE(BM_GrownConversation, qwen3, "qwen3", {"<|im_start|>", "<|im_end|>"})
    ->Arg(20)
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(BM_GrownConversation, llama3, "llama3",
                  {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"})
    ->Arg(20)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvlathe
