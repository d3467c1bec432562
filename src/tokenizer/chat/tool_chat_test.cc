#include "tokenizer/chat/tool_chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/files.h"
#include "io/scratch_folder.h"
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/chat/python_json.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;
using OrderedJson = nlohmann::ordered_json;

const std::string kFolder = KVLATHE_SOURCE_DIR "/tests/chat_goldens/";

std::string ReadSample(const std::string& name) {
  return *ReadTextFile(kFolder + name + ".jinja", 1 << 20);
}

// What LoadChatFormat makes of a model directory with a template of tests/chat_goldens.
ChatFormat LoadSample(const std::string& name, const ChatContext& context) {
  const ScratchFolder folder;
  nlohmann::json config = {{"chat_template", ReadSample(name)}};
  if (name == "hermes") {
    const char* plain =
        "{{ bos_token }}{% for turn in messages %}<|im_start|>{{ turn.role }}\n{{ turn.content }}"
        "<|im_end|>\n{% endfor %}{{ '<|im_start|>assistant\\n' }}";
    config["chat_template"] = {{{"name", "default"}, {"template", plain}},
                               {{"name", "tool_use"}, {"template", ReadSample(name)}}};
  }
  EXPECT_TRUE(WriteFileAtomically(folder.path() + "/tokenizer_config.json", config.dump()).ok());
  const auto format = LoadChatFormat(folder.path(), context);
  EXPECT_TRUE(format.ok()) << format.status();
  return format.ok() ? *format : ChatFormat();
}

std::vector<ChatMessage> MessagesOf(const OrderedJson& conversation) {
  std::vector<ChatMessage> messages;
  for (const OrderedJson& json : conversation["messages"]) {
    ChatMessage message = {json["role"], json["content"]};
    message.tool_name = json.value("name", "");
    for (const OrderedJson& call : json.value("tool_calls", OrderedJson::array())) {
      message.tool_calls.push_back({call["function"]["name"], call["function"]["arguments"]});
    }
    messages.push_back(message);
  }
  return messages;
}

StatusOr<std::string> Render(const ChatFormat& format, const OrderedJson& conversation) {
  const std::vector<ChatMessage> messages = MessagesOf(conversation);
  std::vector<OrderedJson> tools;
  for (const OrderedJson& tool : conversation.value("tools", OrderedJson::array())) {
    tools.push_back(tool);
  }
  return RenderConversation(format, {messages, tools, conversation.value("enable_thinking", true)});
}

TEST(ToolChat, RendersWhatJinjaRenders) {
  const OrderedJson goldens = OrderedJson::parse(*ReadTextFile(kFolder + "goldens.json", 1 << 20));
  for (const auto& [name, texts] : goldens["texts"].items()) {
    const ChatFormat format = LoadSample(name, {goldens["bos"][name], "</s>", "today"});
    ASSERT_TRUE(format.tools) << name;
    for (size_t i = 0; i < texts.size(); ++i) {
      const OrderedJson& conversation = goldens["conversations"][i];
      SCOPED_TRACE(name + ": " + conversation["name"].get<std::string>());
      if (name == "hermes" && !conversation.contains("tools")) continue;
      const auto text = Render(format, conversation);
      if (texts[i].is_null()) {
        EXPECT_EQ(text.status().code(), StatusCode::kInvalidArgument);
      } else {
        ASSERT_TRUE(text.ok()) << text.status();
        EXPECT_EQ(*text, texts[i].get<std::string>());
      }
    }
  }
}

TEST(ToolChat, ForcedFamiliesHaveTheToolsOfTheirTemplates) {
  const ChatContext context = {"<s>", "</s>", "today"};
  for (const auto& [family, tools] :
       {std::pair("qwen3", "qwen"), {"hermes", "hermes"}, {"llama3.1", "llama3.1"}}) {
    EXPECT_EQ(NamedChatFormat(family, context)->tools->name, tools);
  }
  for (const char* family : {"chatml", "llama3", "gemma", "mistral-v3"}) {
    EXPECT_FALSE(NamedChatFormat(family, context)->tools) << family;
  }
}

TEST(ToolChat, OneChangedLetterIsNeverRenderedAsIfItWereNot) {
  // Of what templates print with tools. Texts without tools: chat_template_test.
  const ChatContext context = {"<s>", "</s>", "today"};
  const std::vector<ChatMessage> messages = {{"user", "Hello"}};
  for (const char* name : {"qwen2.5", "qwen3", "llama3.1"}) {
    const std::string text = ReadSample(name);
    ASSERT_TRUE(RecogniseChatTemplate(text, context)->tools);
    for (const char* part : {"# Tools", "query", "For each", "<tool_call>", "\"arguments",
                             "respons", "</tool", "parameters", "ipython", "Given", "python"}) {
      for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
        if (text.compare(at, 7, "respons") == 0 && text[at - 1] == '-') continue;
        std::string changed = text;
        changed[at + 1] = 'X';
        const auto format = RecogniseChatTemplate(changed, context);
        const bool is_condition = text.rfind("{%", at) > text.rfind("{{", at);
        EXPECT_TRUE(!format.ok() || !format->tools || is_condition) << name << "\n" << changed;
      }
    }
  }
}

TEST(ToolChat, RefusalsSayWhatAndWhere) {
  const ChatContext context = {"<s>", "</s>", "today"};
  const OrderedJson tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const auto refusal = [&](const std::string& family, std::vector<ChatMessage> messages,
                           StatusCode code = StatusCode::kInvalidArgument, bool has_tools = true) {
    std::vector<OrderedJson> list;
    if (has_tools) list.push_back(tools[0]);
    const auto text = RenderConversation(*NamedChatFormat(family, context), {messages, list});
    EXPECT_EQ(text.status().code(), code) << text.status();
    return MessageOf(text.status());
  };
  ChatMessage call = {"assistant", ""};
  call.tool_calls = {{"f", "{}"}};
  ChatMessage bad = call;
  bad.tool_calls = {{"f", "[1]"}};
  ChatMessage worse = call;
  worse.tool_calls = {{"f", "{"}};
  ChatMessage deep = call;
  deep.tool_calls = {{"f", std::string(100000, '[')}};
  ChatMessage twice = call;
  twice.tool_calls.push_back(call.tool_calls[0]);
  const ChatMessage user = {"user", "a"}, answer = {"tool", "b"};
  EXPECT_THAT(refusal("chatml", {user}, StatusCode::kUnimplemented),
              HasSubstr("tools: the chat template of this model (chatml)"));
  EXPECT_THAT(refusal("mistral-v3", {user, call, answer}, StatusCode::kUnimplemented, false),
              HasSubstr("mistral-v3"));
  EXPECT_THAT(refusal("qwen3", {user, call}), HasSubstr("last message"));
  EXPECT_THAT(refusal("qwen3", {answer}), HasSubstr("message 1 answers a tool call"));
  EXPECT_THAT(refusal("qwen3", {user, {"system", "x"}, user}), HasSubstr("message 2 is a system"));
  EXPECT_THAT(refusal("qwen3", {user, {"robot", "x"}, user}), HasSubstr("the role 'robot'"));
  EXPECT_THAT(refusal("qwen3", {user, bad, answer}), HasSubstr("message 2: the arguments of the"));
  EXPECT_THAT(refusal("qwen3", {user, worse, answer}), HasSubstr("not JSON"));
  EXPECT_THAT(refusal("qwen3", {user, deep, answer}), HasSubstr("nests deeper than 64"));
  EXPECT_THAT(refusal("llama3.1", {user, twice, answer}), HasSubstr("one at a time"));
  EXPECT_THAT(refusal("llama3.1", {call, answer}), HasSubstr("first message of the user"));
  EXPECT_THAT(refusal("hermes", {user, call, answer}, StatusCode::kInvalidArgument, false),
              HasSubstr("give the request its tools"));
}

TEST(PythonJson, IndentsAsPythonDoes) {
  const OrderedJson value = OrderedJson::parse(R"({"a": [1, {"b": []}], "c": {}})");
  EXPECT_EQ(PythonJson(value), R"({"a": [1, {"b": []}], "c": {}})");
  EXPECT_EQ(PythonJson(value, 2),
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    }\n  ],\n  \"c\": {}\n}");
}

}  // namespace
}  // namespace kvlathe
