// Grammars of calls take what templates render, and nothing else.
#include "structured/call_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "chat/call_discovery.h"
#include "chat/sample_answers.h"
#include "io/files.h"
#include "io/scratch_folder.h"
#include "structured/answer_structure.h"
#include "structured/grammars.h"
#include "tokenizer/sample_tokenizers.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

std::vector<CallableTool> Tools() {
  std::vector<CallableTool> tools;
  for (const Json& tool : SampleTools()) {
    tools.push_back({tool["function"]["name"], tool["function"]["parameters"]});
  }
  return tools;
}

class CallGrammar : public testing::Test {
 protected:
  CallGrammar() {
    EXPECT_TRUE(
        WriteFileAtomically(folder_.path() + "/tokenizer.json", ByteLevelSample().dump()).ok());
    tokenizer_ = *Tokenizer::Load(folder_.path());
    end_id_ = tokenizer_->Tokenize("<|end|>", false).front();
    GrammarOptions options;
    options.n_logits = tokenizer_->vocab_size();
    options.end_ids = {end_id_};
    grammars_ = *Grammars::Make(*tokenizer_, options);
    for (int32_t id = 0; id < 256; ++id) {
      const std::string byte = tokenizer_->TokenBytes(id);
      if (byte.size() == 1) id_of_byte_[static_cast<unsigned char>(byte[0])] = id;
    }
  }

  // Whether an answer may be this text, to its end.
  bool Takes(const Json& structure, const std::string& text) {
    const auto constraint = grammars_->Constrain(structure);
    EXPECT_TRUE(constraint.ok()) << constraint.status();
    if (!constraint.ok()) return false;
    std::vector<float> logits;
    const auto allows = [&](int32_t id) {
      logits.assign(static_cast<size_t>(tokenizer_->vocab_size()), 0);
      (*constraint)->Mask(logits);
      return !std::isinf(logits[static_cast<size_t>(id)]);
    };
    for (size_t i = 0; i < text.size(); ++i) {
      const int32_t id = id_of_byte_[static_cast<unsigned char>(text[i])];
      if (allows(id) && (*constraint)->Accept(id).ok()) continue;
      refused_at_ = text.substr(0, i) + " | " + text.substr(i);
      return false;
    }
    refused_at_ = text + " |";
    return allows(end_id_);
  }

  struct Asked {
    Json structure;
    std::string text;
    std::string last_name;  // of the calls that are printed
  };
  // The grammar for an answer and what the template makes of it. Nothing: it prints no call of it.
  std::optional<Asked> Ask(const ChatTemplate& made, const SampleAnswer& answer, bool must_call) {
    auto sample = RenderSample(made, answer);
    if (!sample) return std::nullopt;
    CallRules rules = {.must_call = must_call, .has_many_calls = answer.calls.size() > 1};
    if (sample->format.thoughts && sample->format.thoughts->is_open) {
      rules.thoughts_end = TrimBlanks(sample->format.thoughts->end);
    } else {
      DropEmptyThoughts(sample->format.thoughts, &sample->text);
    }
    const auto structure = ToolCalls(*sample->format.calls, Tools(), rules);
    EXPECT_TRUE(structure.ok()) << structure.status();
    if (!structure.ok()) return std::nullopt;
    return Asked{*structure, sample->text, sample->printed.calls.back().first};
  }

  // How many answers were looked at.
  int Check(const ChatTemplate& made, bool escapes_texts = true) {
    int n_answers = 0;
    for (const auto& [name, answer] : SampleAnswers()) {
      if (!answer.content.empty() || !answer.thoughts.empty() || name == "empty") continue;
      if (!escapes_texts && name == "odd") continue;
      const auto asked = Ask(made, answer, /*must_call=*/true);
      if (!asked) continue;
      ++n_answers;
      EXPECT_TRUE(Takes(asked->structure, asked->text)) << name << ": " << refused_at_;
      // Not to its end.
      const size_t half = asked->text.rfind(asked->last_name);
      EXPECT_FALSE(Takes(asked->structure, asked->text.substr(0, half))) << refused_at_;
    }
    const auto right = Ask(made, SampleAnswers().front().second, /*must_call=*/true);
    const std::pair<const char*, SampleAnswer> wrong[] = {
        {"no tool", {.calls = {{"wether", {{"city", "Oslo"}, {"days", 3}}}}}},
        {"no number", {.calls = {{"weather", {{"city", "Oslo"}, {"days", "soon"}}}}}},
        {"no truth", {.calls = {{"weather", {{"city", "Oslo"}, {"exact", {1, 2}}}}}}}};
    for (const auto& [name, answer] : wrong) {
      const auto asked = Ask(made, answer, /*must_call=*/true);
      if (!asked || !right) continue;
      ++n_answers;
      EXPECT_FALSE(Takes(right->structure, asked->text)) << name << ": " << asked->text;
    }
    return n_answers;
  }

  ScratchFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Grammars> grammars_;
  int32_t end_id_ = 0;
  int32_t id_of_byte_[256] = {};
  std::string refused_at_;
};

TEST_F(CallGrammar, TakesCallsOfEveryKind) {
  for (const CallKind& kind : kCallKinds) {
    SCOPED_TRACE(kind.name);
    const auto made = ChatTemplate::Make({.place = kind.name, .text = TemplateOf(kind, false)}, {});
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(Check(*made), 9);
  }
}

TEST_F(CallGrammar, TextMayStandInFrontOfCalls) {
  for (const CallKind& kind : kCallKinds) {
    if (kind.is_bare || kind.begins_with_name) continue;
    SCOPED_TRACE(kind.name);
    const auto made = ChatTemplate::Make({.place = kind.name, .text = TemplateOf(kind, false)}, {});
    ASSERT_TRUE(made.ok()) << made.status();
    const auto asked = Ask(*made, {.content = "I look.", .calls = {{"weather", {{"days", 3}}}}},
                           /*must_call=*/false);
    ASSERT_TRUE(asked);
    EXPECT_TRUE(Takes(asked->structure, asked->text)) << refused_at_;
    EXPECT_TRUE(Takes(asked->structure, "I look.")) << refused_at_;
    const auto wrong = Ask(*made, {.content = "I look.", .calls = {{"weather", {{"days", "x"}}}}},
                           /*must_call=*/false);
    EXPECT_FALSE(Takes(asked->structure, wrong->text)) << wrong->text;
  }
}

TEST_F(CallGrammar, TakesCallsOfFetchedTemplates) {
  int n_templates = 0, n_answers = 0;
  const std::string folder = KVLATHE_SOURCE_DIR "/build/jinja/templates";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    SCOPED_TRACE(entry.path().stem());
    const auto made =
        ChatTemplate::Make({.place = entry.path(), .text = *ReadTextFile(entry.path(), 1 << 20)},
                           {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    ASSERT_TRUE(made.ok()) << made.status();
    if (!made->answer_format(true).calls) continue;
    ++n_templates;
    n_answers += Check(*made, entry.path().stem() != "LFM2.5-8B-A1B");
  }
  EXPECT_GE(n_templates, 58);
  EXPECT_GE(n_answers, 450);
}

}  // namespace
}  // namespace kvlathe
