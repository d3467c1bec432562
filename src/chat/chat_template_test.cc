#include "chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "chat/reading/call_readers.h"
#include "chat/sample_answers.h"
#include "chat/sample_chat_templates.h"
#include "chat/template_files.h"
#include "io/files.h"

namespace kvlathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Json = nlohmann::ordered_json;

const std::string kGoldens = KVLATHE_SOURCE_DIR "/tests/chat_goldens/";

ChatTemplate Made(const std::string& text, NamedTokens tokens = {}) {
  auto made = ChatTemplate::Make({.place = "a template", .text = text}, std::move(tokens));
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

ChatTemplate Named(const std::string& name, NamedTokens tokens = {}) {
  auto made = LoadChatTemplateFile(
      fmt::format("{}/share/chat_templates/{}.jinja", KVLATHE_SOURCE_DIR, name), std::move(tokens));
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

Json Conversation(bool has_system) {
  Json messages = Json::array();
  if (has_system) messages.push_back({{"role", "system"}, {"content", " Be brief. "}});
  messages.push_back({{"role", "user"}, {"content", " Hello\n"}});
  messages.push_back({{"role", "assistant"}, {"content", "  Hi\n"}});
  messages.push_back({{"role", "user"}, {"content", "Who?\r\n\r\nYou?"}});
  return messages;
}

std::string Rendered(const ChatTemplate& chat_template, const ChatConversation& conversation) {
  const auto text = chat_template.Render(conversation);
  return text.ok() ? text->text : MessageOf(text.status());
}

void ExpectRenderings(const ChatTemplate& chat_template, const SampleChatTemplate& sample) {
  if (*sample.with_system != '\0') {
    EXPECT_EQ(Rendered(chat_template, {.messages = Conversation(true)}), sample.with_system);
  }
  EXPECT_EQ(Rendered(chat_template, {.messages = Conversation(false)}), sample.without_system);
}

TEST(ChatTemplate, RendersWhatJinjaRenders) {
  for (const SampleChatTemplate& sample : kSampleChatTemplates) {
    SCOPED_TRACE(sample.name);
    const ChatTemplate made =
        Made(sample.text, {{"bos_token", sample.bos}, {"eos_token", sample.eos}});
    // Where the template drops the system message, or puts it elsewhere, Jinja's text is another.
    if (!made.traits(false).takes_system ||
        std::string_view(sample.family).starts_with("mistral")) {
      EXPECT_EQ(Rendered(made, {.messages = Conversation(false)}), sample.without_system);
    } else {
      ExpectRenderings(made, sample);
    }
  }
}

TEST(ChatTemplate, TheTemplatesByNameRenderLikeTheirModels) {
  const std::pair<const char*, const char*> sample_of_name[] = {
      {"chatml", "chatml"},
      {"llama2", "llama2"},
      {"llama3", "llama3"},
      {"llama3.1", "llama3.1"},
      {"mistral-v1", "mistral-v1"},
      {"mistral-v3", "mistral-v3"},
      {"phi3", "phi35"},
      {"zephyr", "zephyr"},
      {"mistral-v7", "mistral-v7"},
      {"gemma", "gemma"},
      {"falcon", "falcon-instruct"},
      {"mistral-v3-tekken", "mistral-v3-tekken"}};
  // qwen3 and hermes are below.
  ASSERT_EQ(ChatTemplateNames().size(), std::size(sample_of_name) + 2);
  for (const auto& [name, sample_name] : sample_of_name) {
    SCOPED_TRACE(name);
    const auto sample = std::ranges::find_if(kSampleChatTemplates, [&](const auto& s) {
      return std::string_view(s.name) == sample_name;
    });
    ExpectRenderings(Named(name, {{"bos_token", sample->bos}, {"eos_token", sample->eos}}),
                     *sample);
  }
}

TEST(ChatTemplate, ConversationsWithToolsAreThoseOfJinja) {
  const Json goldens = Json::parse(*ReadTextFile(kGoldens + "goldens.json", 1 << 20));
  for (const auto& [name, texts] : goldens["texts"].items()) {
    const NamedTokens tokens = {{"bos_token", goldens["bos"][name]}, {"eos_token", "</s>"}};
    const ChatTemplate made =
        name == "gemma3" ? Named("gemma", tokens)
                         : Made(*ReadTextFile(kGoldens + name + ".jinja", 1 << 20), tokens);
    for (size_t i = 0; i < texts.size(); ++i) {
      const Json& conversation = goldens["conversations"][i];
      SCOPED_TRACE(name + ": " + conversation["name"].get<std::string>());
      ChatConversation asked = {.messages = conversation["messages"]};
      if (conversation.contains("tools")) asked.tools = conversation["tools"];
      if (conversation.contains("enable_thinking")) {
        asked.arguments = {{"enable_thinking", conversation["enable_thinking"]}};
      }
      const auto text = made.Render(asked);
      if (texts[i].is_null()) {
        EXPECT_FALSE(text.ok());
      } else {
        ASSERT_TRUE(text.ok()) << text.status();
        EXPECT_EQ(text->text, texts[i].get<std::string>());
      }
    }
  }
}

TEST(ChatTemplate, EndsAreWhatClosesAnAnswer) {
  const auto ends = [](const char* name) {
    return Named(name, {{"bos_token", "<s>"}, {"eos_token", "</s>"}}).answer_format(false).ends;
  };
  EXPECT_THAT(ends("chatml"), ElementsAre("<|im_end|>"));
  EXPECT_THAT(ends("llama3"), ElementsAre("<|eot_id|>"));
  EXPECT_THAT(ends("gemma"), ElementsAre("<end_of_turn>"));
  EXPECT_THAT(ends("falcon"), ElementsAre("\nUser:"));
  EXPECT_THAT(ends("mistral-v1"), ElementsAre("</s>"));
}

TEST(ChatTemplate, WhatATemplateCannotTakeIsGivenAnotherWay) {
  const ChatTemplate refuses = Made(
      "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
      "[{{ m.content }}]{% endfor %}");
  EXPECT_FALSE(refuses.traits(false).takes_system);
  EXPECT_EQ(Rendered(refuses, {.messages = Conversation(true)}),
            "[ Be brief. \n\n Hello\n][  Hi\n][Who?\r\n\r\nYou?]");
  EXPECT_THAT(refuses.Notes(), testing::Contains(HasSubstr("no place for a system message")));
  const ChatTemplate of_parts = Made(
      "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}");
  EXPECT_FALSE(of_parts.traits(false).takes_text);
  EXPECT_EQ(Rendered(of_parts, {.messages = {{{"role", "user"}, {"content", "a"}}}}), "a");
  const Json parts = {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}};
  EXPECT_EQ(Rendered(Named("phi3"), {.messages = {{{"role", "user"}, {"content", parts}}}}),
            "<|user|>\nab<|end|>\n<|assistant|>\n");
  const ChatTemplate of_text = Made(
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}<call>{\"name\": \"{{ "
      "c.function.name }}\", \"arguments\": {{ c.function.arguments }}}</call>{% endfor %}"
      "{% endfor %}{{ tools | tojson }}");
  EXPECT_FALSE(of_text.traits(true).arguments_are_objects);
}

TEST(ChatTemplate, AnAnswerGoesOn) {
  Json messages = Conversation(false);
  messages.push_back({{"role", "assistant"}, {"content", "The year is"}});
  const ChatTemplate chatml = Named("chatml");
  const std::string text = Rendered(chatml, {.messages = messages, .continues_last_message = true});
  EXPECT_TRUE(text.ends_with("<|im_start|>assistant\nThe year is")) << text;
  messages.erase(messages.size() - 1);
  EXPECT_THAT(Rendered(chatml, {.messages = messages, .continues_last_message = true}),
              HasSubstr("not one of the assistant"));
}

TEST(ChatTemplate, NamedTemplatesTakeTheirConversations) {
  const auto made =
      ChatTemplate::Make({.place = "a model",
                          .text = "{{ messages[0].content }}",
                          .named = {{"tool_use", "tools {{ tools[0].function.name }}"},
                                    {"rag", "documents {{ documents[0].text }}"}}},
                         {});
  ASSERT_TRUE(made.ok()) << made.status();
  const Json messages = {{{"role", "user"}, {"content", "a"}}};
  EXPECT_EQ(Rendered(*made, {.messages = messages}), "a");
  const Json tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  EXPECT_EQ(Rendered(*made, {.messages = messages, .tools = tools}), "tools f");
  EXPECT_EQ(Rendered(*made, {.messages = messages, .documents = {{{"text", "d"}}}}), "documents d");
}

TEST(ChatTemplate, RefusalsSayWhat) {
  const ChatTemplate chatml = Named("chatml");
  const Json question = {{"role", "user"}, {"content", "a"}};
  const Json tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  EXPECT_THAT(Rendered(chatml, {}), HasSubstr("needs a message"));
  const auto of_tools = chatml.Render({.messages = {question}, .tools = tools});
  EXPECT_EQ(of_tools.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(of_tools.status()), HasSubstr("tools: "));
  const auto with_arguments = [&](const std::string& arguments) {
    const Json call = {{"role", "assistant"},
                       {"content", nullptr},
                       {"tool_calls",
                        {{{"id", "c"},
                          {"type", "function"},
                          {"function", {{"name", "f"}, {"arguments", arguments}}}}}}};
    return Rendered(Named("qwen3"), {.messages = {question, call}, .tools = tools});
  };
  EXPECT_THAT(with_arguments("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(with_arguments("{"), HasSubstr("not JSON"));
  EXPECT_THAT(with_arguments(std::string(100000, '[')), HasSubstr("nests deeper than 64"));
  EXPECT_THAT(Rendered(Named("llama2"), {.messages = {question, question}}),
              HasSubstr("must alternate"));
}

TEST(ChatTemplate, CallsAreReadBackInEveryKind) {
  for (const CallKind& kind : kCallKinds) {
    for (const bool thinks : {false, true}) {
      SCOPED_TRACE(std::string(kind.name) + (thinks ? " with thoughts" : ""));
      const ChatTemplate made = Made(TemplateOf(kind, thinks));
      const AnswerFormat& format = made.answer_format(true);
      ASSERT_TRUE(format.calls) << format.why_no_calls;
      EXPECT_EQ(IsBareJson(*format.calls), kind.is_bare);
      EXPECT_EQ(format.thoughts.has_value(), thinks);
      for (const auto& [name, answer] : SampleAnswers()) {
        if (kind.is_bare && !answer.content.empty()) continue;  // an answer is text, or it is calls
        SCOPED_TRACE(name);
        const auto sample = RenderSample(made, answer);
        ASSERT_TRUE(sample);
        EXPECT_EQ(sample->printed.calls, answer.calls);
        EXPECT_EQ(sample->printed.thoughts, thinks ? answer.thoughts : "");
        for (const size_t n_step : {sample->text.size(), size_t{1}}) {
          EXPECT_TRUE(ReadSample(sample->format, SampleSchemas(), sample->text, n_step) ==
                      sample->printed)
              << sample->text;
        }
      }
    }
  }
}

TEST(ChatTemplate, CallsThatCannotBeReadStayText) {
  const ChatTemplate made = Made(
      "{{ tools | tojson }}{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls %}"
      "{{ c.function.name }} of {{ c.function.arguments.city }} for {{ c.function.arguments.days }}"
      "{% endfor %}{% endfor %}");
  EXPECT_FALSE(made.answer_format(true).calls);
  EXPECT_THAT(made.Notes(), testing::Contains(HasSubstr("calls stay text")));
  const SampleAnswer read =
      ReadSample(made.answer_format(true), SampleSchemas(), "weather of Oslo for 3", 1);
  EXPECT_EQ(read.content, "weather of Oslo for 3");
  EXPECT_THAT(read.calls, IsEmpty());
}

TEST(ChatTemplate, ThoughtsThatThePromptBeginsGoOn) {
  const ChatTemplate made = Made(
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<|end|>"
      "{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}");
  ASSERT_TRUE(made.answer_format(false).thoughts);
  EXPECT_TRUE(made.answer_format(false).thoughts->is_open);
  const SampleAnswer read =
      ReadSample(made.answer_format(false), {}, "Let me see.\n</think>\n\nYes.", 1);
  EXPECT_EQ(read.thoughts, "Let me see.");
  EXPECT_EQ(read.content, "Yes.");
}

}  // namespace
}  // namespace kvlathe
