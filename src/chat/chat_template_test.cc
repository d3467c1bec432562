#include "chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "chat/call_readers.h"
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
      // The engine takes no list for a key, where Python's Jinja says that there is no such entry.
      if (!text.ok() && MessageOf(text.status()).find("unhashable") != std::string::npos) continue;
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

// The kinds of calls, each with thoughts or without.
struct CallKind {
  const char* name;
  const char* calls;  // of `m`, a message of the assistant
  bool is_bare = false;
};

constexpr CallKind kCallKinds[] = {
    {"objects in marks",
     "{% for c in m.tool_calls %}<call>{{ {'name': c.function.name, 'arguments': "
     "c.function.arguments} | tojson }}</call>\n{% endfor %}"},
    {"a list in a section",
     "[CALLS][{% for c in m.tool_calls %}{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ "
     "c.function.arguments | tojson }}, \"id\": \"{{ c.id }}\"}{{ ', ' if not loop.last }}"
     "{% endfor %}]"},
    {"other keys in another order",
     "{% for c in m.tool_calls %}<act>{\"parameters\": {{ c.function.arguments | tojson }}, "
     "\"tool\": \"{{ c.function.name }}\"}</act>{% endfor %}"},
    {"an object in an object",
     "{% for c in m.tool_calls %}<call>{\"type\": \"function\", \"function\": {\"name\": \"{{ "
     "c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}}</call>{% endfor "
     "%}"},
    {"a name and JSON",
     "<calls>{% for c in m.tool_calls %}<call>{{ c.function.name }}<sep>\n```json\n{{ "
     "c.function.arguments | tojson }}\n```<end>{% endfor %}</calls>"},
    {"ids between",
     "{% for c in m.tool_calls %}[CALL]{{ c.function.name }}[ID]{{ c.id }}[ARGS]{{ "
     "c.function.arguments | tojson }}{% endfor %}"},
    {"names within ids",
     "<all>{% for c in m.tool_calls %}<begin>{{ c.id }}<args>{{ c.function.arguments | tojson }}"
     "<end>{% endfor %}</all>"},
    {"parameters in marks",
     "{% for c in m.tool_calls %}<call>\n<function={{ c.function.name }}>\n{% for k, v in "
     "c.function.arguments | items %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n"
     "</parameter>\n{% endfor %}</function>\n</call>{% endfor %}"},
    {"keys and values",
     "{% for c in m.tool_calls %}<call>{{ c.function.name }}\n{% for k, v in c.function.arguments "
     "| "
     "items %}<key>{{ k }}</key>\n<value>{{ v if v is string else v | tojson }}</value>\n"
     "{% endfor %}</call>{% endfor %}"},
    {"marked texts",
     "<calls>{% for c in m.tool_calls %}<invoke name=\"{{ c.function.name }}\">{% for k, v in "
     "c.function.arguments | items %}<p name=\"{{ k }}\" string=\"{{ 'true' if v is string else "
     "'false' }}\">{{ v if v is string else v | tojson }}</p>{% endfor %}</invoke>{% endfor %}"
     "</calls>"},
    {"Python",
     "<py>[{% for c in m.tool_calls %}{{ c.function.name }}({% for k, v in c.function.arguments | "
     "items %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %}){{ ', ' if not "
     "loop.last }}{% endfor %}]</py>"},
    {"bare JSON",
     "{% for c in m.tool_calls %}{\"name\": \"{{ c.function.name }}\", \"parameters\": {{ "
     "c.function.arguments | tojson }}}{% endfor %}",
     true}};

std::string TemplateOf(const CallKind& kind, bool thinks) {
  return std::string("{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}") +
         "{% for m in messages %}<|{{ m.role }}|>" +
         (thinks ? "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
                 : "") +
         "{{ m.content or '' }}{% if m.tool_calls %}" + kind.calls +
         "{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
}

struct Read {
  std::string content, thoughts;
  std::vector<std::pair<std::string, nlohmann::json>> calls;

  bool operator==(const Read&) const = default;
};

Read ReadAnswer(const AnswerFormat& format, std::string_view text, size_t n_step) {
  ToolSchemas tools;
  for (const char* name : {"weather", "add"})
    tools[name] = ProbeTool(name)["function"]["parameters"];
  const auto reader = MakeAnswerReader(format, tools);
  Read read;
  std::vector<std::string> arguments;
  const auto take = [&](const AnswerDelta& delta) {
    read.content += delta.content;
    read.thoughts += delta.thoughts;
    for (const AnswerDelta::Call& call : delta.calls) {
      if (!call.name.empty()) {
        read.calls.push_back({call.name, nullptr});
        arguments.emplace_back();
      }
      arguments.at(static_cast<size_t>(call.call_idx)) += call.arguments;
    }
  };
  for (size_t pos = 0; pos < text.size(); pos += n_step)
    take(reader->Push(text.substr(pos, n_step)));
  take(reader->Finish());
  for (size_t i = 0; i < arguments.size(); ++i) {
    read.calls[i].second = nlohmann::json::parse(arguments[i], nullptr, false);
  }
  return read;
}

TEST(ChatTemplate, CallsAreReadBackInEveryKind) {
  const Json city = {{"city", "Zürich \"HB\""}, {"days", 3}},
             other = {{"city", "Oslo"}, {"days", 12}};
  for (const CallKind& kind : kCallKinds) {
    for (const bool thinks : {false, true}) {
      SCOPED_TRACE(std::string(kind.name) + (thinks ? " with thoughts" : ""));
      const ChatTemplate made = Made(TemplateOf(kind, thinks));
      const AnswerFormat& format = made.answer_format(true);
      ASSERT_TRUE(format.calls) << format.why_no_calls;
      EXPECT_EQ(IsBareJson(*format.calls), kind.is_bare);
      EXPECT_EQ(format.thoughts.has_value(), thinks);
      for (const int n_calls : {1, 2}) {
        for (const std::string content : {"", "I look. "}) {
          if (kind.is_bare && !content.empty()) continue;  // an answer is text, or it is calls
          Read expected;
          expected.content = content.empty() ? "" : "I look.";
          if (thinks) expected.thoughts = "Hm, [1] <b>.";
          Json answer = {{"role", "assistant"}, {"content", content}};
          if (thinks) answer["reasoning_content"] = expected.thoughts;
          for (int i = 0; i < n_calls; ++i) {
            const Json& arguments = i == 0 ? city : other;
            const char* const name = i == 0 ? "weather" : "add";
            expected.calls.push_back({name, arguments});
            answer["tool_calls"].push_back(
                {{"id", fmt::format("callid00{}", i)},
                 {"type", "function"},
                 {"function", {{"name", name}, {"arguments", arguments.dump()}}}});
          }
          const Json question = {{"role", "user"}, {"content", "?"}};
          const Json tools = {ProbeTool("weather"), ProbeTool("add")};
          const std::string asked = Rendered(made, {.messages = {question}, .tools = tools});
          std::string text = Rendered(
              made, {.messages = {question, answer}, .tools = tools, .opens_answer = false});
          ASSERT_TRUE(text.starts_with(asked)) << text;
          text.erase(0, asked.size());
          text.erase(text.rfind("<|end|>"));
          EXPECT_EQ(ReadAnswer(format, text, text.size()), expected) << text;
          EXPECT_EQ(ReadAnswer(format, text, 1), expected) << text;
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
  const Read read = ReadAnswer(made.answer_format(true), "weather of Oslo for 3", 1);
  EXPECT_EQ(read.content, "weather of Oslo for 3");
  EXPECT_THAT(read.calls, IsEmpty());
}

TEST(ChatTemplate, ThoughtsThatThePromptBeginsGoOn) {
  const ChatTemplate made = Made(
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<|end|>"
      "{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}");
  ASSERT_TRUE(made.answer_format(false).thoughts);
  EXPECT_TRUE(made.answer_format(false).thoughts->is_open);
  const Read read = ReadAnswer(made.answer_format(false), "Let me see.\n</think>\n\nYes.", 1);
  EXPECT_EQ(read.thoughts, "Let me see.");
  EXPECT_EQ(read.content, "Yes.");
}

}  // namespace
}  // namespace kvlathe
