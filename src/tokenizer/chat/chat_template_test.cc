#include "tokenizer/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "io/files.h"
#include "io/scratch_folder.h"
#include "tokenizer/chat/sample_chat_templates.h"

namespace kvlathe {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const ChatContext kContext = {"<s>", "</s>", "01 Feb 2030"};
constexpr const char* kChatMl = kSampleChatTemplates[0].text;

std::vector<ChatMessage> SampleConversation() {
  return {{"system", " Be brief. "},
          {"user", " Hello\n"},
          {"assistant", "  Hi\n"},
          {"user", "Who?\r\n\r\nYou?"}};
}

TEST(ChatTemplate, RendersWhatJinjaRenders) {
  for (const SampleChatTemplate& sample : kSampleChatTemplates) {
    SCOPED_TRACE(sample.name);
    const auto format = RecogniseChatTemplate(sample.text, {sample.bos, sample.eos, "today"});
    ASSERT_TRUE(format.ok()) << format.status();
    EXPECT_EQ(format->family, sample.family);
    std::vector<ChatMessage> messages = SampleConversation();
    const auto with_system = RenderChat(*format, messages);
    if (*sample.with_system == '\0') {
      EXPECT_EQ(with_system.status().code(), StatusCode::kInvalidArgument);
    } else {
      EXPECT_EQ(*with_system, sample.with_system);
    }
    messages.erase(messages.begin());
    EXPECT_EQ(*RenderChat(*format, messages), sample.without_system);
  }
}

TEST(ChatTemplate, ForcedFamiliesRenderLikeTheirTemplates) {
  const std::pair<const char*, const char*> sample_of_family[] = {
      {"chatml", "chatml"},
      {"llama2", "llama2"},
      {"llama3", "llama3"},
      {"llama3.1", "llama3.1"},
      {"mistral-v1", "mistral-v1"},
      {"mistral-v3", "mistral-v3"},
      {"phi3", "phi35"},
      {"mistral-v3-tekken", "mistral-v3-tekken"},
      {"zephyr", "zephyr"},
      {"mistral-v7", "mistral-v7"},
      {"gemma", "gemma"},
      {"falcon", "falcon-instruct"}};
  // qwen3 and hermes: tool_chat_test.cc.
  ASSERT_EQ(ChatFamilyNames().size(), std::size(sample_of_family) + 2);
  for (const auto& [family, name] : sample_of_family) {
    SCOPED_TRACE(family);
    const auto sample = std::ranges::find_if(
        kSampleChatTemplates, [&](const auto& s) { return std::string_view(s.name) == name; });
    const auto format = NamedChatFormat(family, {sample->bos, sample->eos, "today"});
    ASSERT_TRUE(format.ok()) << format.status();
    EXPECT_EQ(format->family, family);
    std::vector<ChatMessage> messages = SampleConversation();
    if (*sample->with_system != '\0') {
      EXPECT_EQ(*RenderChat(*format, messages), sample->with_system);
    }
    messages.erase(messages.begin());
    EXPECT_EQ(*RenderChat(*format, messages), sample->without_system);
  }
  const auto unknown = NamedChatFormat("alpaca", kContext);
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(unknown.status()), AllOf(HasSubstr("'alpaca'"), HasSubstr("chatml, ")));
}

TEST(ChatTemplate, EndsAreTheControlTokensThatCloseAnAnswer) {
  EXPECT_THAT(NamedChatFormat("chatml", kContext)->ends, testing::ElementsAre("<|im_end|>"));
  EXPECT_THAT(NamedChatFormat("llama3", kContext)->ends, testing::ElementsAre("<|eot_id|>"));
  EXPECT_THAT(NamedChatFormat("gemma", kContext)->ends, testing::ElementsAre("<end_of_turn>"));
  EXPECT_THAT(NamedChatFormat("falcon", kContext)->ends, testing::ElementsAre("\nUser:"));
  EXPECT_TRUE(NamedChatFormat("mistral-v1", kContext)->ends.empty());
}

TEST(ChatTemplate, TheDateIsTheTemplatesOrTodays) {
  const auto date = [](const std::string& day) {
    const auto format = RecogniseChatTemplate(
        "{% set day = " + day +
            " %}{{ bos_token }}<|start_header_id|>system<|end_header_id|>\n\n"
            "Cutting Knowledge Date: December 2023\nToday Date: {{ day }}\n\n{% for turn in "
            "messages %}<|start_header_id|>{{ turn.role }}<|end_header_id|>\n\n"
            "{{ turn.content }}<|eot_id|>{% endfor %}",
        kContext);
    return format.ok() ? format->system.prefix : MessageOf(format.status());
  };
  EXPECT_THAT(date("'26 Jul 2024'"), HasSubstr("Today Date: 26 Jul 2024\n\n"));
  EXPECT_THAT(date("'26 July 2024'"), HasSubstr("Today Date: 26 July 2024\n\n"));
  EXPECT_THAT(date("strftime_now('%d %b %Y')"), HasSubstr("Today Date: 01 Feb 2030\n\n"));
  EXPECT_THAT(date("'1 Jan 1970'"), HasSubstr("prints '1 Jan 1970'"));
}

TEST(ChatTemplate, OneFormatIsRecognisedInManySpellings) {
  const std::vector<ChatMessage> messages = {{"user", "Hello"}};
  for (const char* loop :
       {"{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
        "{% for m in messages %}{{ \"<|im_start|>\" ~ m['role'] ~ '\\n' ~ m['content'] "
        "}}<|im_end|>\n"
        "{% endfor %}",
        "{%- for message in messages -%}\n  {{ '<|im_' + 'start|>' + message.role }}\n"
        "{{ message[\"content\"] + '<|im_end|>\n' }}\n{%- endfor -%}",
        "{% set all = messages %}{# turns #}{% for m in all %}<|im_start|>{{ m.role + '\\n' }}"
        "{{ m.content }}<|im_end|>\n{% endfor %}"}) {
    const auto format =
        RecogniseChatTemplate(std::string(loop) + "{{ '<|im_start|>assistant\\n' }}", kContext);
    ASSERT_TRUE(format.ok()) << loop << format.status();
    EXPECT_EQ(*RenderChat(*format, messages),
              "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
  }
}

TEST(ChatTemplate, AVariableWithTwoMeaningsIsNotTakenForTheContent) {
  const auto recognises = [](const std::string& words) {
    return RecogniseChatTemplate(
               "{{ bos_token }}{% for m in messages %}{% set words = m.content %}" + words +
                   "{% if m.role == 'user' %}[INST] {{ words }} [/INST]"
                   "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}",
               kContext)
        .ok();
  };
  EXPECT_TRUE(recognises(""));
  EXPECT_FALSE(recognises("{% set words = words | trim %}"));
  EXPECT_FALSE(recognises("{% set words = words + words %}"));
  EXPECT_FALSE(recognises("{% set content = m.role %}"));
}

TEST(ChatTemplate, WhatIsNotRecognisedIsNamed) {
  const auto refusal = [](std::string_view text) {
    const auto format = RecogniseChatTemplate(text, kContext);
    EXPECT_EQ(format.status().code(), StatusCode::kUnimplemented) << text;
    EXPECT_THAT(MessageOf(format.status()), HasSubstr("--chat-template NAME")) << text;
    return MessageOf(format.status());
  };
  const std::string chatml = kChatMl;
  EXPECT_THAT(refusal(chatml + "template ends here"), HasSubstr("prints 'template ends here'"));
  EXPECT_THAT(refusal(chatml + "\n\n\n"), HasSubstr("white space"));
  EXPECT_THAT(refusal("{% if tools %}Think first.{% endif %}" + chatml), HasSubstr("between its"));
  EXPECT_THAT(
      refusal("{% if tools %}{{ tools }}{% else %}{{ '<|im_start|>system\nGuess.' }}{% endif %}"
              "{{ '<|im_end|>\n' }}{% for m in messages %}"
              "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"),
      HasSubstr("differently"));
  EXPECT_THAT(refusal(chatml + "{{ '+' }}"), HasSubstr("prints '+'"));
  EXPECT_THAT(refusal(chatml + "{{ '\\\\' }}"), HasSubstr("prints '\\'"));
  EXPECT_THAT(refusal(chatml + "{{ 'Think first.' }}"), HasSubstr("prints 'Think first.'"));
  EXPECT_THAT(refusal("{% for m in messages %}{{ m['content'] }}\n{% endfor %}"),
              HasSubstr("begins with '{% for m"));
  EXPECT_THAT(refusal("{{ '<|im_start|>' + message['content'] }}"),
              AllOf(HasSubstr("looks like ChatML"), HasSubstr("differently")));
  EXPECT_THAT(refusal("{{ '<|im_start|>system<|im_sep|>' }}"), HasSubstr("<|im_sep|>"));
  EXPECT_THAT(refusal("{{ '### Instruction:\n' + message['content'] }}"),
              HasSubstr("begins with '{{ '### Instruction: ' + message"));
  for (const char* marker : {"<|start_header_id|>", "[INST]", "<<SYS>>", "<start_of_turn>",
                             "<|end|>", "<|user|>", "User: "}) {
    refusal("{{ '" + std::string(marker) + "' }}");
    refusal("{{ '" + std::string(marker) + "other' }}");
  }
}

TEST(ChatTemplate, OneChangedLetterIsNeverRenderedAsIfItWereNot) {
  // Whatever a template prints is looked at: changed strings are refused or rendered changed.
  const std::vector<ChatMessage> messages = {{"user", "Hello"}};
  const std::string text = kChatMl;
  const auto original = RenderChat(*RecogniseChatTemplate(text, kContext), messages);
  for (const char* part : {"im_start", "im_end", "assistant"}) {
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
      std::string changed = text;
      changed[at] = 'X';
      const auto format = RecogniseChatTemplate(changed, kContext);
      EXPECT_FALSE(format.ok() && RenderChat(*format, messages) == original) << changed;
    }
  }
}

TEST(ChatTemplate, UnclosedBlocksAndStringsAreDamage) {
  for (const char* text : {"{{ '<|im_start|>", "{{ bos_token", "{% if x }}", "{# never", "{{ 'a\\'",
                           "{{ \"}}", "{%", "{{"}) {
    EXPECT_EQ(RecogniseChatTemplate(text, kContext).status().code(), StatusCode::kDataLoss) << text;
  }
  for (const char* text : {"", "{", "}}", "{ { x } }"}) {
    EXPECT_EQ(RecogniseChatTemplate(text, kContext).status().code(), StatusCode::kUnimplemented);
  }
}

TEST(ChatFormat, RefusesWhatNoTemplateRenders) {
  const ChatFormat chatml = *NamedChatFormat("chatml", kContext);
  const ChatFormat llama2 = *NamedChatFormat("llama2", kContext);
  const auto refusal = [](const ChatFormat& format, const std::vector<ChatMessage>& messages) {
    const auto text = RenderChat(format, messages);
    EXPECT_EQ(text.status().code(), StatusCode::kInvalidArgument);
    return MessageOf(text.status());
  };
  EXPECT_THAT(refusal(chatml, {}), HasSubstr("last message"));
  EXPECT_THAT(refusal(chatml, {{"user", "a"}, {"assistant", "b"}}), HasSubstr("last message"));
  EXPECT_THAT(refusal(chatml, {{"tool", "a"}, {"user", "b"}}), HasSubstr("message 1 has the role"));
  EXPECT_THAT(refusal(chatml, {{"user", "a"}, {"system", "b"}, {"user", "c"}}),
              HasSubstr("message 2 is a system message"));
  EXPECT_THAT(refusal(llama2, {{"user", "a"}, {"user", "b"}}), HasSubstr("message 2"));
  EXPECT_THAT(refusal(llama2, {{"assistant", "a"}, {"user", "b"}}), HasSubstr("message 1"));
  EXPECT_TRUE(RenderChat(chatml, std::vector<ChatMessage>{{"user", "a"}, {"user", "b"}}).ok());
}

TEST(ChatFormat, StripsLikePython) {
  EXPECT_EQ(StripLikePython(" \t\n\v\f\r\x1c\x1f a b \n"), "a b");
  EXPECT_EQ(StripLikePython("\u00a0\u2003\u3000\u0085x\u2029"), "x");
  EXPECT_EQ(StripLikePython("\u200bx"), "\u200bx");  // zero width space is no white space
  EXPECT_EQ(StripLikePython("\xa0 x \xe2\x80"), "\xa0 x \xe2\x80");
  EXPECT_EQ(StripLikePython(" \n "), "");
  EXPECT_EQ(StripLikePython(""), "");
}

class ChatTemplateFiles : public testing::Test {
 protected:
  void Write(const std::string& name, std::string_view text) {
    ASSERT_TRUE(WriteFileAtomically(folder_.path() + "/" + name, text).ok());
  }
  StatusOr<ChatFormat> Load() { return LoadChatFormat(folder_.path(), kContext); }

  ScratchFolder folder_;
};

TEST_F(ChatTemplateFiles, TheJinjaFileComesBeforeTheConfiguration) {
  EXPECT_EQ(Load().status().code(), StatusCode::kNotFound);
  Write("tokenizer_config.json", R"({"tokenizer_class": "X"})");
  EXPECT_THAT(MessageOf(Load().status()), HasSubstr("no chat template; --chat-template"));
  Write("tokenizer_config.json", nlohmann::json({{"chat_template", kChatMl}}).dump());
  EXPECT_EQ(Load()->family, "chatml");
  Write("chat_template.jinja", kSampleChatTemplates[0].text + std::string("{{ 'x' }}"));
  EXPECT_THAT(MessageOf(Load().status()), HasSubstr("chat_template.jinja: "));
}

TEST_F(ChatTemplateFiles, OfAListTheDefaultCounts) {
  nlohmann::json list = {{{"name", "tool_use"}, {"template", "{{ 1 }}"}}};
  Write("tokenizer_config.json", nlohmann::json({{"chat_template", list}}).dump());
  EXPECT_EQ(Load().status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(Load().status()), HasSubstr("no default among tool_use;"));
  list.push_back({{"name", "default"}, {"template", kChatMl}});
  Write("tokenizer_config.json", nlohmann::json({{"chat_template", list}}).dump());
  EXPECT_EQ(Load()->family, "chatml");
  for (const char* damaged : {R"({"chat_template": 3})", R"({"chat_template": [3]})",
                              R"({"chat_template": [{"name": 3}]})", R"({"chat_template": )"}) {
    Write("tokenizer_config.json", damaged);
    EXPECT_FALSE(Load().ok()) << damaged;
    EXPECT_THAT(MessageOf(Load().status()), HasSubstr("tokenizer_config.json: ")) << damaged;
  }
}

}  // namespace
}  // namespace kvlathe
