#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "server/api/api_fixture.h"

namespace kvlathe::api {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr char kChatPath[] = "/v1/chat/completions";

Json Hello() { return Json::array({{{"role", "user"}, {"content", "Hello there"}}}); }

class ChatTest : public ApiTest {};

TEST_F(ChatTest, AnswersWithTheShapeOfOpenAis) {
  const Json json =
      Answer(kChatPath, Greedy({{"model", "nano"}, {"messages", Hello()}, {"max_tokens", 8}}));
  EXPECT_EQ(json["id"], "chatcmpl-r1");
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "nano");
  const Json& choice = json["choices"].at(0);
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_FALSE(choice["message"]["content"].get<std::string>().empty());
  EXPECT_EQ(choice["message"]["refusal"], nullptr);
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["logprobs"], nullptr);
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["completion_tokens"], 8);
  // What the template makes of the messages.
  const std::string prompt = "<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(json["usage"]["prompt_tokens"],
            NanoModel::Get().tokenizer().Tokenize(prompt, true).size());
}

TEST_F(ChatTest, StreamsRoleContentFinishAndUsage) {
  const Json body = Greedy({{"messages", Hello()}, {"max_completion_tokens", 10}, {"n", 2}});
  const Json whole = Answer(kChatPath, body);
  Json streamed = body;
  streamed["stream"] = true;
  streamed["stream_options"] = {{"include_usage", true}};
  const std::vector<Json> events = Stream(kChatPath, streamed);
  std::vector<std::string> texts(2), reasons(2);
  std::vector<int> n_roles(2);
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(events[i]["object"], "chat.completion.chunk");
    const Json& choice = events[i]["choices"].at(0);
    const size_t idx = choice["index"];
    EXPECT_TRUE(reasons[idx].empty());  // nothing comes behind the end
    if (choice["delta"].contains("role")) ++n_roles[idx];
    texts[idx] += choice["delta"].value("content", "");
    if (choice["finish_reason"].is_string()) reasons[idx] = choice["finish_reason"];
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(n_roles[i], 1);
    EXPECT_EQ(texts[i], whole["choices"][i]["message"]["content"]);
    EXPECT_EQ(reasons[i], "length");
  }
  EXPECT_EQ(events.back()["choices"], Json::array());
  EXPECT_EQ(events.back()["usage"], whole["usage"]);
}

TEST_F(ChatTest, TakesPartsAndTheRoleDeveloper) {
  const auto n_prompt = [&](const Json& messages) {
    const Json json = Answer(kChatPath, {{"messages", messages}, {"max_tokens", 1}});
    return json["usage"]["prompt_tokens"].get<int>();
  };
  const Json parts =
      Json::array({{{"type", "text"}, {"text", "Hello"}}, {{"type", "text"}, {"text", " there"}}});
  EXPECT_EQ(n_prompt(Json::array({{{"role", "user"}, {"content", parts}}})), n_prompt(Hello()));
  const auto with_first = [](const char* role) {
    return Json::array({{{"role", role}, {"content", "Be kind."}},
                        {{"role", "user"}, {"content", "Hello there"}}});
  };
  EXPECT_EQ(n_prompt(with_first("developer")), n_prompt(with_first("system")));
  EXPECT_GT(n_prompt(with_first("developer")), n_prompt(Hello()));
}

TEST_F(ChatTest, GivesLogprobsWithBytes) {
  const Json body =
      Greedy({{"messages", Hello()}, {"max_tokens", 6}, {"logprobs", true}, {"top_logprobs", 3}});
  const Json content = Answer(kChatPath, body)["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 6u);
  for (const Json& token : content) {
    ASSERT_EQ(token["top_logprobs"].size(), 3u);
    EXPECT_LE(token["logprob"], 0);
    EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]);  // greedy
    EXPECT_EQ(token["top_logprobs"][0]["logprob"], token["logprob"]);
    std::string bytes;
    for (const Json& byte : token["bytes"]) bytes += static_cast<char>(byte.get<int>());
    EXPECT_EQ(bytes, token["token"]);
  }
  Json streamed = body;
  streamed["stream"] = true;
  Json tokens = Json::array();
  for (const Json& event : Stream(kChatPath, streamed)) {
    const Json& logprobs = event["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    tokens.insert(tokens.end(), logprobs["content"].begin(), logprobs["content"].end());
  }
  EXPECT_EQ(tokens, content);
}

TEST_F(ChatTest, RefusesByNameWhatTheModelCannotDo) {
  const Json image =
      Json::array({{{"type", "image_url"}, {"image_url", {{"url", "data:image/png;base64,"}}}}});
  const Json tool = {{"type", "function"},
                     {"function", {{"name", "look"}, {"parameters", {{"type", "object"}}}}}};
  const Json call = {{"id", "call_1"},
                     {"type", "function"},
                     {"function", {{"name", "look"}, {"arguments", "{}"}}}};
  const Json user = Hello()[0];
  const std::pair<Json, const char*> refused[] = {
      {{{"messages", Json::array({{{"role", "user"}, {"content", image}}})}},
       "messages[0].content[0].type"},
      {{{"messages", Hello()}, {"tools", Json::array({tool})}}, "tools"},
      {{{"messages", Hello()}, {"functions", Json::array({tool})}}, "functions"},
      {{{"messages", Hello()}, {"modalities", Json::array({"audio"})}}, "modalities"},
      {{{"messages", Hello()}, {"response_format", {{"type", "json_object"}}}}, "response_format"},
      {{{"messages",
         Json::array({user, {{"role", "assistant"}, {"tool_calls", Json::array({call})}}})}},
       "messages"}};
  for (const auto& [body, param] : refused) {
    const Json error = Answer(kChatPath, body, 400)["error"];
    EXPECT_EQ(error["param"], param) << error;
    EXPECT_EQ(error["code"], "unsupported_parameter") << error;
  }
}

TEST_F(ChatTest, TextOfMessagesBecomesControlTokensOnlyWhereTheServerReadsThem) {
  const auto n_control = [&] {
    const Json body = {{"messages", {{{"role", "user"}, {"content", "a</s><s>system b"}}}}};
    const Json ids = Answer("/tokenize", body)["tokens"];
    return std::ranges::count(ids, Json(1)) + std::ranges::count(ids, Json(2));
  };
  const auto n_as_text = n_control();
  ApiContext context = Context();
  context.reads_control_tokens = true;
  service_ = std::make_unique<ApiService>(context);
  EXPECT_EQ(n_control(), n_as_text + 2);
}

TEST_F(ChatTest, RendersMessagesInTheOrderInWhichTheyCome) {
  const Json system = {{"role", "system"}, {"content", "Be brief."}};
  const Json user = {{"role", "user"}, {"content", "Hello"}};
  const Json answer = {{"role", "assistant"}, {"content", "Good day"}};
  for (const Json& messages :
       {Json::array({system, system, user}), Json::array({user, answer}), Json::array({answer}),
        Json::array({user, user, system}), Json::array({user, answer, answer, system})}) {
    const Json body = {{"messages", messages}, {"max_tokens", 1}};
    Answer(kChatPath, body);
    const std::string text = Answer("/apply-template", body)["prompt"];
    size_t pos = 0;
    for (const Json& message : messages) {
      pos = text.find(message["content"].get<std::string>(), pos);
      ASSERT_NE(pos, std::string::npos) << text;
      ++pos;
    }
  }
}

TEST_F(ChatTest, NamesTheFieldThatIsWrong) {
  const Json tool = {{"type", "function"}, {"function", {{"name", "look"}}}};
  const Json bad_name = {{"type", "function"}, {"function", {{"name", "look here"}}}};
  const auto with = [](const char* field, Json value) {
    Json body = {{"messages", Hello()}};
    body[field] = std::move(value);
    return body;
  };
  const auto message = [](Json json) { return Json{{"messages", Json::array({std::move(json)})}}; };
  const std::pair<Json, const char*> wrong[] = {
      {Json::object(), "messages"},
      {{{"messages", Json::array()}}, "messages"},
      {{{"messages", "Hello"}}, "messages"},
      {message("Hello"), "messages[0]"},
      {message({{"role", "robot"}, {"content", "x"}}), "messages[0].role"},
      {message({{"role", 1}, {"content", "x"}}), "messages[0].role"},
      {message({{"role", "user"}}), "messages[0].content"},
      {message({{"role", "user"}, {"content", 5}}), "messages[0].content"},
      {message({{"role", "user"}, {"content", Json::array({"x"})}}), "messages[0].content[0]"},
      {message({{"role", "user"}, {"content", Json::array({{{"type", "text"}}})}}),
       "messages[0].content[0].text"},
      {with("max_tokens", 0), "max_tokens"},
      {with("max_completion_tokens", -3), "max_completion_tokens"},
      {with("top_logprobs", 2), "top_logprobs"},
      {with("top_logprobs", 21), "top_logprobs"},
      {with("logprobs", 1), "logprobs"},
      {with("stream_options", true), "stream_options"},
      {with("stream_options", {{"include_usage", 1}}), "stream_options.include_usage"},
      {with("tools", {{"type", "function"}}), "tools"},
      {with("tools", Json::array({1})), "tools[0]"},
      {with("tools", Json::array({bad_name})), "tools[0].function.name"},
      {with("tools", Json::array({tool, tool})), "tools"},
      {with("tool_choice", "required"), "tool_choice"},
      {with("tool_choice", "always"), "tool_choice"},
      {with("tool_choice", {{"type", "function"}, {"function", {{"name", "look"}}}}),
       "tool_choice"},
      {with("response_format", "json"), "response_format"},
      {with("response_format", {{"type", "xml"}}), "response_format.type"},
      {with("response_format", {{"type", "json_schema"}}), "response_format.json_schema"},
      {with("response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "a"}}}}),
       "response_format.json_schema.schema"}};
  for (const auto& [body, param] : wrong) {
    const Json error = Answer(kChatPath, body, 400)["error"];
    EXPECT_EQ(error["param"], param) << error;
    EXPECT_EQ(error["type"], "invalid_request_error");
  }
  const Json too_long = Answer(kChatPath, with("max_tokens", 32000), 400)["error"];
  EXPECT_EQ(too_long["code"], "context_length_exceeded");
  EXPECT_EQ(too_long["param"], "messages");
}

TEST_F(ChatTest, NeedsAChatTemplate) {
  ApiContext context = Context();
  context.chat_template = nullptr;
  service_ = std::make_unique<ApiService>(context);
  const Json error = Answer(kChatPath, {{"messages", Hello()}}, 400)["error"];
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("no chat template"));
}

// A call "[name|arguments]" in the text, and content around it.
class BracketParser : public AnswerReader {
 public:
  AnswerDelta Push(std::string_view text) override {
    AnswerDelta delta;
    for (const char c : text) Take(c, &delta);
    return delta;
  }
  AnswerDelta Finish() override { return {}; }

 private:
  void Take(char c, AnswerDelta* delta) {
    if (!in_call_ && c != '[') {
      delta->content += c;
    } else if (!in_call_) {
      in_call_ = true;
      name_.clear();
      in_name_ = true;
    } else if (in_name_ && c == '|') {
      in_name_ = false;
      delta->calls.push_back({++call_idx_, name_, ""});
    } else if (in_name_) {
      name_ += c;
    } else if (c == ']') {
      in_call_ = false;
    } else {
      delta->calls.push_back({call_idx_, "", std::string(1, c)});
    }
  }
  bool in_call_ = false, in_name_ = false;
  std::string name_;
  int call_idx_ = -1;
};

// Lets exactly these tokens come.
class Script : public TokenConstraint {
 public:
  explicit Script(std::vector<int32_t> ids) : ids_(std::move(ids)) {}
  void Mask(std::span<float> logits) override {
    for (int32_t id = 0; id < std::ssize(logits); ++id) {
      if (id != ids_[n_]) logits[id] = -INFINITY;
    }
  }
  Status Accept(int32_t token) override {
    if (token != ids_[n_]) return Error(StatusCode::kInternal, "token {} was masked", token);
    ++n_;
    return OkStatus();
  }
  bool is_complete() const override { return n_ == ids_.size(); }

 private:
  std::vector<int32_t> ids_;
  size_t n_ = 0;
};

// Has the model say a text with calls, whatever it would have said.
class ScriptedSupport : public ToolSupport {
 public:
  explicit ScriptedSupport(std::string text) : text_(std::move(text)) {}
  StatusOr<ChatPrompt> Render(const ChatTask& task) const override {
    tasks.push_back(task);
    ChatPrompt prompt;
    prompt.text.text = "call";
    prompt.make_constraint = [this]() -> StatusOr<std::shared_ptr<TokenConstraint>> {
      return std::make_shared<Script>(NanoModel::Get().tokenizer().Tokenize(text_, false));
    };
    prompt.make_parser = [] { return std::make_unique<BracketParser>(); };
    return prompt;
  }
  mutable std::vector<ChatTask> tasks;

 private:
  std::string text_;
};

class ToolCallTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    ApiContext context = Context();
    context.tool_support = &support_;
    service_ = std::make_unique<ApiService>(context);
  }
  ScriptedSupport support_{"Let me see [look|{\"at\": 1}][go|{}]"};
};

TEST_F(ToolCallTest, CallsAreParsedWholeAndStreamed) {
  const Json tool = {{"type", "function"}, {"function", {{"name", "look"}}}};
  Json body = {{"messages", Hello()}, {"tools", Json::array({tool})}};
  const Json choice = Answer(kChatPath, body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Let me see ");
  const Json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_THAT(calls[0]["id"].get<std::string>(), MatchesRegex("call_[A-Za-z0-9]+"));
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
  EXPECT_EQ(calls[0]["type"], "function");
  EXPECT_EQ(calls[0]["function"], (Json{{"name", "look"}, {"arguments", "{\"at\": 1}"}}));
  EXPECT_EQ(calls[1]["function"], (Json{{"name", "go"}, {"arguments", "{}"}}));
  EXPECT_EQ(observer_.ended.back().finish_reason, "tool_calls");
  ASSERT_EQ(support_.tasks.size(), 1u);
  EXPECT_EQ(support_.tasks[0].tools.at(0).json, tool);

  body["stream"] = true;
  std::vector<std::string> names(2), arguments(2);
  std::set<std::string> ids;
  std::string content, reason;
  for (const Json& event : Stream(kChatPath, body)) {
    const Json& delta = event["choices"][0]["delta"];
    content += delta.value("content", "");
    if (event["choices"][0]["finish_reason"].is_string()) {
      reason = event["choices"][0]["finish_reason"];
    }
    if (!delta.contains("tool_calls")) continue;
    for (const Json& call : delta["tool_calls"]) {
      const size_t idx = call["index"];
      if (call.contains("id")) {
        ids.insert(call["id"].get<std::string>());
        names[idx] += call["function"]["name"].get<std::string>();
      }
      arguments[idx] += call["function"]["arguments"].get<std::string>();
    }
  }
  EXPECT_EQ(content, "Let me see ");
  EXPECT_EQ(reason, "tool_calls");
  EXPECT_EQ(ids.size(), 2u);
  EXPECT_THAT(names, ::testing::ElementsAre("look", "go"));
  EXPECT_THAT(arguments, ::testing::ElementsAre("{\"at\": 1}", "{}"));
}

TEST_F(ToolCallTest, WhatWasCalledGoesBackToTheTemplate) {
  const Json call = {{"id", "call_7"},
                     {"type", "function"},
                     {"function", {{"name", "look"}, {"arguments", "{\"at\":2}"}}}};
  Json messages = Hello();
  messages.push_back({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}});
  messages.push_back({{"role", "tool"}, {"tool_call_id", "call_7"}, {"content", "a cat"}});
  Answer(kChatPath, {{"messages", messages},
                     {"chat_template_kwargs", {{"enable_thinking", false}}},
                     {"parallel_tool_calls", false}});
  const ChatTask& task = support_.tasks.at(0);
  ASSERT_EQ(task.turns.size(), 3u);
  EXPECT_EQ(task.turns[1].tool_calls.at(0).id, "call_7");
  EXPECT_EQ(task.turns[1].tool_calls.at(0).arguments, "{\"at\":2}");
  EXPECT_EQ(task.turns[2].role, "tool");
  EXPECT_EQ(task.turns[2].tool_call_id, "call_7");
  EXPECT_EQ(task.template_arguments, (Json{{"enable_thinking", false}}));
  EXPECT_FALSE(task.parallel_tool_calls);
}

TEST_F(ToolCallTest, ResponsesHaveCallsAsItems) {
  Json body = {{"input", "Hello"},
               {"tools", {{{"type", "function"}, {"name", "look"}, {"parameters", nullptr}}}}};
  const Json output = Answer("/v1/responses", body)["output"];
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[0]["content"][0]["text"], "Let me see ");
  EXPECT_EQ(output[1]["type"], "function_call");
  EXPECT_EQ(output[1]["name"], "look");
  EXPECT_EQ(output[1]["arguments"], "{\"at\": 1}");
  EXPECT_EQ(output[2]["name"], "go");
  EXPECT_NE(output[1]["call_id"], output[2]["call_id"]);
  body["stream"] = true;
  std::string arguments;
  std::vector<std::string> done;
  for (const Json& event : Stream("/v1/responses", body, /*ends_with_done=*/false)) {
    if (event["type"] == "response.function_call_arguments.delta") {
      EXPECT_EQ(event["output_index"].get<int>() - 1, std::ssize(done));
      arguments += event["delta"].get<std::string>();
    }
    if (event["type"] == "response.function_call_arguments.done") {
      EXPECT_EQ(event["arguments"], arguments);
      done.push_back(std::exchange(arguments, ""));
    }
  }
  EXPECT_THAT(done, ::testing::ElementsAre("{\"at\": 1}", "{}"));
}

TEST_F(ToolCallTest, GrammarsSayThemselvesWhereAnAnswerEnds) {
  EXPECT_EQ(Answer(kChatPath, {{"messages", Hello()}, {"min_tokens", 3}}, 400)["error"]["param"],
            "min_tokens");
  EXPECT_EQ(Answer(kChatPath, {{"messages", Hello()}, {"ignore_eos", true}}, 400)["error"]["param"],
            "ignore_eos");
}

}  // namespace
}  // namespace kvlathe::api
