#include "chat/jinja_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace kvlathe {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

StatusOr<MarkedText> RunTemplate(std::string_view source, const Json& globals = Json::object(),
                                 const RenderOptions& options = {}) {
  const auto program = JinjaProgram::Parse(source);
  if (!program.ok()) return program.status();
  return program->Render(globals, Json::object(), options);
}

std::string TextOf(std::string_view source, const Json& globals = Json::object()) {
  const auto rendered = RunTemplate(source, globals);
  return rendered.ok() ? rendered->text : MessageOf(rendered.status());
}

TEST(JinjaProgram, RendersAsTransformersDoes) {
  EXPECT_EQ(TextOf("{% if true %}\n  a\n{% endif %}\nb\n"), "  a\nb");
  EXPECT_EQ(TextOf("{{ {'a': [1, 2.5, big, 'é\"\\n']} | tojson }}", {{"big", 1e300}}),
            "{\"a\": [1, 2.5, 1e+300, \"é\\\"\\n\"]}");
  EXPECT_EQ(TextOf("{{ x | tojson }}", {{"x", {{"pi", 3.14159265358979}, {"one", 1.0}}}}),
            "{\"pi\": 3.14159265358979, \"one\": 1.0}");
  EXPECT_EQ(TextOf("{% for m in l %}{{ loop.index }}{{ m }}{% endfor %}", {{"l", {"a", "b"}}}),
            "1a2b");
}

TEST(JinjaProgram, WhatCanBeNoKeyIsInNothing) {
  EXPECT_EQ(TextOf("{{ {'a': 1}[t] is defined }} {{ {'a': 1}['a'] }}", {{"t", {"a", "b"}}}),
            "False 1");
  EXPECT_THAT(TextOf("{{ dict(a | b = 3) }}"), HasSubstr("the name of an argument is no name"));
}

TEST(JinjaProgram, TheDateIsTheOneThatIsGiven) {
  RenderOptions options;
  options.now = 86400 * 200;
  const auto text = RunTemplate("{{ strftime_now('%Y') }}", Json::object(), options);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->text, "1970");
}

TEST(JinjaProgram, ARefusalHasTheTemplatesWords) {
  const auto refused = RunTemplate("{{ raise_exception('Roles must alternate: ' + 'user') }}");
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(MessageOf(refused.status()), "the chat template refuses: Roles must alternate: user");
  EXPECT_THAT(TextOf("{{ 1 + }}"), HasSubstr("cannot be read"));
  EXPECT_THAT(TextOf("{{ x.y() }}"), HasSubstr("fails"));
}

// The bytes that are marked, joined.
std::string InputOf(const MarkedText& marked) {
  std::string input;
  for (const TextRange& range : marked.inputs) {
    input += marked.text.substr(range.begin, range.end - range.begin);
  }
  return input;
}

TEST(JinjaProgram, WhatUsersWroteIsMarkedWhateverIsDoneToIt) {
  const Json globals = {{"role", "user"}, {"m", {{"role", "user"}, {"content", " <s>a</s> "}}}};
  for (const char* const source :
       {"<s>{{ m.content }}", "<s>{{ m.content | trim }}", "<s>{{ m['content'].split('a')[0] }}",
        "<s>{{ m.content | upper }}", "<s>{{ m.content | replace('a', 'b') }}",
        "<s>{{ m | tojson }}", "<s>{{ [m.content] | join(',') }}", "<s>{{ [m.content] }}",
        "<s>{% for part in m.content.split('a') %}{{ part }}{% endfor %}",
        "<s>{{ m.content[1:4] }}", "<s>{{ m.content[1] }}", "<s>{{ '%s' ~ m.content }}",
        "<s>{{ m.content | string }}", "<s>{{ m | string }}", "<s>{{ '{}'.format(m.content) }}"}) {
    const auto marked = RunTemplate(source, globals);
    ASSERT_TRUE(marked.ok()) << source << ": " << marked.status();
    EXPECT_THAT(
        InputOf(*marked),
        HasSubstr(std::string(source).find("[1]") == std::string::npos
                      ? (std::string(source).find("upper") != std::string::npos ? "<S>" : "<s>")
                      : "<"))
        << source;
    EXPECT_EQ(marked->inputs.front().begin >= 3, true) << source;
  }
  const auto role = RunTemplate("<|{{ m.role }}|>", globals);
  ASSERT_TRUE(role.ok());
  EXPECT_TRUE(role->inputs.empty());
}

// What a hostile template takes is bounded, and the next one is rendered as ever.
TEST(JinjaProgram, AHostileTemplateIsStoppedSoon) {
  std::string filters = "{{ 'a'", nested = "{{ ", blocks, sum = "{{ 1", elifs = "{% if a %}";
  for (int i = 0; i < 150000; ++i) filters += "|upper";
  for (int i = 0; i < 100000; ++i) nested += "(";
  for (int i = 0; i < 150000; ++i) sum += "+1";
  for (int i = 0; i < 50000; ++i) blocks += "{% if true %}";
  for (int i = 0; i < 50000; ++i) elifs += "{% elif a %}";
  const std::string sources[] = {
      "{% for i in range(10**9) %}{{ i }}{% endfor %}",
      "{% for i in range(1000000000) %}{{ i }}{% endfor %}",
      "{% for i in range(0, 9223372036854775807, 9223372036854775806) %}{% endfor %}"
      "{{ range(1000000000) | length }}",
      "{{ 'aaaaaaaaaa' * 1000000000 }}",
      "{% set s = 'a' * 1000000 %}{{ s.replace('a', s) }}",
      "{% set s = 'a' * 1000000 %}{{ s.replace('', s) }}",
      "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}"
      "{% endfor %}{{ ns.s }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}"
      "{% endfor %}{{ ns.l }}",
      "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
      "{% set l = [] %}{% set x = l.append(l) %}{{ l }}{{ l | tojson }}",
      "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}"
      "{% endfor %}{{ ns.l | tojson }}",
      "{% set ns = namespace(l=(1, 1)) %}{% for i in range(100000) %}{% set ns.l = (ns.l, 1) %}"
      "{% endfor %}{{ {ns.l: 1} }}",
      "{% for a in range(2000) %}{% for b in range(2000) %}{% for c in range(2000) %}{% endfor %}"
      "{% endfor %}{% endfor %}",
      "{{ ('a' * 2000000).split('a') | length }}",
      "{{ 'a' | indent(1000000000) }}",
      "{{ {'a': [1]} | tojson(indent=1000000000) }}",
      filters + " }}",
      nested,
      sum + " }}",
      blocks,
      elifs + "{% endif %}",
      "{{ 5 is divisibleby(0) }}"};
  RenderOptions options;  // an eighth of the bytes and a tenth of the time that one may take
  options.limits.max_bytes = 32 << 20;
  options.limits.max_time = std::chrono::milliseconds(200);
  for (const std::string& source : sources) {
    const auto begin = std::chrono::steady_clock::now();
    const auto rendered = RunTemplate(source, Json::object(), options);
    const std::string what = source.substr(0, 100);
    EXPECT_FALSE(rendered.ok()) << what;
    EXPECT_THAT(MessageOf(rendered.status()), HasSubstr("the chat template")) << what;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << what;
  }
  EXPECT_EQ(TextOf("{{ 'still' }}"), "still");
}

TEST(JinjaProgram, LimitsAreSaidByName) {
  RenderOptions options;
  options.limits.max_steps = 100;
  const auto steps =
      RunTemplate("{% for i in range(1000) %}{{ i }}{% endfor %}", Json::object(), options);
  EXPECT_EQ(steps.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(MessageOf(steps.status()), HasSubstr("more steps"));
  options = {};
  options.limits.max_bytes = 1000;
  EXPECT_THAT(MessageOf(RunTemplate("{{ 'a' * 1000 }}", Json::object(), options).status()),
              HasSubstr("more bytes"));
  options = {};
  options.limits.max_time = std::chrono::milliseconds(1);
  EXPECT_THAT(
      MessageOf(RunTemplate("{% for i in range(500000) %}{% endfor %}", Json::object(), options)
                    .status()),
      HasSubstr("more time"));
}

}  // namespace
}  // namespace kvlathe
