#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "io/files.h"
#include "io/scratch_folder.h"
#include "server/api/api_fixture.h"
#include "server/api/fill_marks.h"
#include "tokenizer/sample_tokenizers.h"

namespace kvlathe::api {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class OllamaTest : public ApiTest {
 protected:
  Json Get(const std::string& path) {
    const auto reply = Begin("GET", path);
    EXPECT_EQ(reply->sent.status, 200) << reply->sent.body;
    return reply->SentJson();
  }
  // The lines of a stream that ends.
  std::vector<Json> Lines(const std::string& path, const Json& body) {
    const auto reply = Post(path, body);
    Run({reply});
    EXPECT_TRUE(reply->is_stream && reply->has_ended) << reply->sent.body;
    EXPECT_EQ(reply->stream_kind, http::StreamKind::kJsonLines);
    std::vector<Json> lines;
    std::stringstream stream(reply->stream);
    for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
    return lines;
  }
};

const Json kMessages = {{{"role", "user"}, {"content", "What is in the garden?"}}};
const Json kFewTokens = {{"num_predict", 8}, {"temperature", 0}};

TEST_F(OllamaTest, AChatStreamsUnlessItIsToldNotTo) {
  Json body = {{"model", "nano:latest"}, {"messages", kMessages}, {"options", kFewTokens}};
  const std::vector<Json> lines = Lines("/api/chat", body);
  ASSERT_GE(lines.size(), 2u);
  std::string text;
  for (const Json& line : lines) {
    EXPECT_EQ(line["model"], "nano");
    EXPECT_EQ(line["message"]["role"], "assistant");
    text += line["message"]["content"].get<std::string>();
    EXPECT_EQ(line["done"], &line == &lines.back());
  }
  body["stream"] = false;
  body["keep_alive"] = "5m";
  const Json whole = Answer("/api/chat", body);
  EXPECT_EQ(whole["message"]["content"], text);
  EXPECT_EQ(whole["done_reason"], "length");
  EXPECT_EQ(whole["eval_count"], 8);
  EXPECT_GT(whole["prompt_eval_count"], 5);
  EXPECT_GE(whole["total_duration"], whole["eval_duration"]);
  const Json openai =
      Answer("/v1/chat/completions", Greedy({{"messages", kMessages}, {"max_tokens", 8}}));
  EXPECT_EQ(openai["choices"][0]["message"]["content"], text);
}

TEST_F(OllamaTest, AnAnswerThatHasBegunGoesOn) {
  Json messages = kMessages;
  messages.push_back({{"role", "assistant"}, {"content", "The garden"}});
  const Json ours = Answer("/v1/chat/completions", Greedy({{"messages", messages},
                                                           {"continue_final_message", true},
                                                           {"add_generation_prompt", false},
                                                           {"max_tokens", 8}}));
  const Json theirs = Answer(
      "/api/chat",
      {{"model", "nano"}, {"stream", false}, {"messages", messages}, {"options", kFewTokens}});
  EXPECT_EQ(theirs["message"]["content"], ours["choices"][0]["message"]["content"]);
  EXPECT_EQ(theirs["prompt_eval_count"], ours["usage"]["prompt_tokens"]);
}

TEST_F(OllamaTest, GeneratesByTheTemplateOrRaw) {
  const Json options = {
      {"num_predict", 6}, {"temperature", 0}, {"stop", {"\n\n\n"}}, {"num_ctx", 64}};
  const Json chat = Answer("/api/generate", {{"model", "nano"},
                                             {"stream", false},
                                             {"prompt", "Hello"},
                                             {"system", "Be kind."},
                                             {"options", options}});
  EXPECT_EQ(chat["eval_count"], 6);
  const Json raw = Answer("/api/generate", {{"model", "nano"},
                                            {"stream", false},
                                            {"raw", true},
                                            {"prompt", "Hello"},
                                            {"options", options}});
  EXPECT_LT(raw["prompt_eval_count"], chat["prompt_eval_count"]);
  const Json loaded = Answer("/api/generate", {{"model", "nano"}});
  EXPECT_EQ(loaded["done_reason"], "load");
  EXPECT_EQ(Answer("/api/chat", {{"model", "nano"}, {"messages", Json::array()}})["done"], true);
}

TEST_F(OllamaTest, ErrorsAreTexts) {
  const auto error = [&](const std::string& path, const Json& body, int status = 400) {
    return Answer(path, body, status)["error"].get<std::string>();
  };
  EXPECT_THAT(error("/api/chat", {{"model", "other"}, {"messages", kMessages}}, 404),
              HasSubstr("does not exist"));
  EXPECT_THAT(error("/api/generate", {{"prompt", "x"}}), HasSubstr("model"));
  EXPECT_THAT(error("/api/generate", {{"model", "nano"}, {"prompt", "x"}, {"images", {"aGk="}}}),
              HasSubstr("images"));
  EXPECT_THAT(error("/api/generate", {{"model", "nano"}, {"prompt", "x"}, {"suffix", "y"}}),
              HasSubstr("suffix"));
  EXPECT_THAT(error("/api/generate", {{"model", "nano"}, {"prompt", "x"}, {"context", {1, 2}}}),
              HasSubstr("context"));
  EXPECT_THAT(
      error("/api/chat",
            {{"model", "nano"}, {"messages", kMessages}, {"options", {{"temperature", "hot"}}}}),
      HasSubstr("temperature"));
  EXPECT_THAT(error("/api/chat", {{"model", "nano"}, {"messages", kMessages}, {"format", 3}}),
              HasSubstr("format"));
  EXPECT_THAT(error("/api/show", {{"model", "other"}}, 404), HasSubstr("other"));
}

TEST_F(OllamaTest, TellsOfTheModel) {
  const Json tags = Get("/api/tags")["models"];
  ASSERT_EQ(tags.size(), 2u);
  EXPECT_EQ(tags[0]["name"], "lathe-nano");
  EXPECT_EQ(tags[0]["digest"].get<std::string>().size(), 64u);
  EXPECT_GT(tags[0]["size"], 1000);
  EXPECT_EQ(Get("/api/ps")["models"][1]["model"], "nano");
  EXPECT_TRUE(Get("/api/version").contains("version"));
  const Json shown = Answer("/api/show", {{"model", "lathe-nano:latest"}});
  EXPECT_EQ(shown["model_info"]["llama.context_length"], 256);
  EXPECT_THAT(shown["capabilities"], Contains("completion"));
  EXPECT_THAT(shown["template"].get<std::string>(), HasSubstr("<|im_start|>"));
}

class LlamaCppTest : public OllamaTest {};

TEST_F(LlamaCppTest, SlotsShowWhatRuns) {
  const auto slots = [&] { return Get("/slots"); };
  EXPECT_EQ(slots().size(), 1u);
  EXPECT_EQ(slots()[0]["is_processing"], false);
  const auto reply =
      Post("/v1/completions",
           {{"prompt", {5, 6, 7}}, {"max_tokens", 4}, {"n", 2}, {"ignore_eos", true}});
  engine_->Step();
  engine_->Step();
  const Json busy = slots();
  ASSERT_EQ(busy.size(), 2u);
  EXPECT_EQ(busy[1]["id"], 1);
  EXPECT_EQ(busy[0]["is_processing"], true);
  EXPECT_EQ(busy[0]["id_task"], reply == nullptr ? "" : "r3");
  EXPECT_EQ(busy[0]["n_prompt_tokens"], 3);
  EXPECT_GE(busy[0]["next_token"]["n_decoded"], 1);
  EXPECT_EQ(busy[0]["params"]["n_predict"], 4);
  Run({reply});
  EXPECT_EQ(slots()[0]["is_processing"], false);
}

TEST_F(LlamaCppTest, PropsTellOfTheServer) {
  const Json props = Get("/props");
  EXPECT_EQ(props["total_slots"], 1);
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 256);
  EXPECT_EQ(props["eos_token"], "</s>");
  EXPECT_THAT(props["chat_template"].get<std::string>(), HasSubstr("<|im_start|>"));
}

// A vocabulary with marks in front of lathe-nano's weights, which know nothing of it.
class FillTest : public OllamaTest {
 protected:
  void SetUp() override {
    nlohmann::json sample = ByteLevelSample();
    size_t id = sample["added_tokens"][0]["id"].get<size_t>();
    for (const char* const mark :
         {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>", "<|endoftext|>"}) {
      sample["added_tokens"].push_back({{"id", ++id}, {"content", mark}, {"special", true}});
    }
    ASSERT_TRUE(WriteFileAtomically(folder_.path() + "/tokenizer.json", sample.dump()).ok());
    tokenizer_ = *Tokenizer::Load(folder_.path());
    StartEngine({});
    ApiContext context = Context();
    context.tokenizer = tokenizer_.get();
    service_ = std::make_unique<ApiService>(context);
  }
  std::string Spelled(const std::vector<int32_t>& ids) {
    return tokenizer_->Detokenize(ids, /*keep_special=*/true);
  }

  ScratchFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(FillTest, MarksStandAroundTheTexts) {
  const auto marks = FindFillMarks(*tokenizer_);
  ASSERT_TRUE(marks);
  EXPECT_EQ(marks->ends.size(), 2u);
  EXPECT_EQ(Spelled(*TokensToFill(*tokenizer_, *marks, {}, "a <|fim_middle|>", "b")),
            "<|fim_prefix|>a <|fim_middle|><|fim_suffix|>b<|fim_middle|>");
  const auto ids = *TokensToFill(*tokenizer_, *marks, {}, "<|fim_middle|>", "");
  EXPECT_EQ(std::ranges::count(ids, marks->middle), 1) << "what a user writes is no mark";
  EXPECT_EQ(Spelled(*TokensToFill(*tokenizer_, *marks, {{"f.py", "x"}}, "a", "b")),
            "<|file_sep|>f.py\nx<|file_sep|><|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>");
  EXPECT_FALSE(FindFillMarks(NanoModel::Get().tokenizer()));
}

TEST_F(FillTest, EveryRouteAsksForTheSameMiddle) {
  const Json ours = Answer("/v1/completions",
                           Greedy({{"prompt", "def f"}, {"suffix", "return"}, {"max_tokens", 12}}));
  const Json infill =
      Answer("/infill",
             Greedy({{"input_prefix", "def f"}, {"input_suffix", "return"}, {"n_predict", 12}}));
  EXPECT_EQ(infill["content"], ours["choices"][0]["text"]);
  EXPECT_EQ(infill["tokens_evaluated"], ours["usage"]["prompt_tokens"]);
  EXPECT_EQ(infill["stop"], true);
  std::string streamed;
  const std::vector<Json> events = Stream("/infill",
                                          Greedy({{"input_prefix", "def"},
                                                  {"prompt", " f"},
                                                  {"input_suffix", "return"},
                                                  {"n_predict", 12},
                                                  {"stream", true}}),
                                          /*ends_with_done=*/false);
  for (const Json& event : events) streamed += event["content"].get<std::string>();
  EXPECT_EQ(streamed, infill["content"]);
  EXPECT_EQ(events.back()["stop"], true);
  const Json ollama =
      Answer("/api/generate", {{"model", "nano"},
                               {"stream", false},
                               {"prompt", "def f"},
                               {"suffix", "return"},
                               {"options", {{"temperature", 0}, {"num_predict", 12}}}});
  EXPECT_EQ(ollama["response"], infill["content"]);
  const Json files =
      Answer("/infill", Greedy({{"input_suffix", "return"},
                                {"n_predict", 2},
                                {"input_extra", {{{"filename", "a"}, {"text", "b"}}}}}));
  EXPECT_GT(files["tokens_evaluated"], 5);
  EXPECT_EQ(
      Answer("/v1/completions", {{"prompt", {"a", "b"}}, {"suffix", "c"}}, 400)["error"]["param"],
      "prompt");
}

}  // namespace
}  // namespace kvlathe::api
