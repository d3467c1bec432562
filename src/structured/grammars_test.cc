#include "structured/grammars.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <regex>
#include <thread>

#include "io/files.h"
#include "io/scratch_folder.h"
#include "structured/answer_structure.h"
#include "structured/json_walk.h"
#include "tokenizer/sample_tokenizers.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

// Byte-level BPE, and SentencePiece with its space in front of words.
class GrammarsTest : public testing::TestWithParam<bool> {
 protected:
  GrammarsTest() {
    const bool is_byte_level = GetParam();
    EXPECT_TRUE(WriteFileAtomically(folder_.path() + "/tokenizer.json",
                                    (is_byte_level ? ByteLevelSample() : CharLevelSample()).dump())
                    .ok());
    tokenizer_ = *Tokenizer::Load(folder_.path());
    end_id_ = is_byte_level ? tokenizer_->Tokenize("<|end|>", false).front() : 2;
    n_logits_ = tokenizer_->vocab_size() + 37;  // models pad their vocabularies
    GrammarOptions options;
    options.n_logits = n_logits_;
    options.end_ids = {end_id_};
    grammars_ = *Grammars::Make(*tokenizer_, options);
  }

  std::shared_ptr<TokenConstraint> Constrain(const Json& structure) {
    auto constraint = grammars_->Constrain(structure);
    EXPECT_TRUE(constraint.ok()) << constraint.status();
    return constraint.ok() ? *constraint : nullptr;
  }

  std::optional<std::string> Walk(const Json& structure, Random* random) {
    return WalkAtRandom(Constrain(structure).get(), *tokenizer_, n_logits_, end_id_, 600, random);
  }

  // Whether the constraint lets all of the tokens of `text` pass.
  bool Takes(const Json& structure, const std::string& text, bool* may_end = nullptr) {
    const auto constraint = Constrain(structure);
    std::vector<float> logits;
    const auto mask = [&] {
      logits.assign(static_cast<size_t>(n_logits_), 0);
      constraint->Mask(logits);
    };
    for (const unsigned char byte : text) {
      const int32_t id = GetParam() ? IdOfByte(byte) : byte + 3;
      mask();
      if (std::isinf(logits[static_cast<size_t>(id)]) || !constraint->Accept(id).ok()) return false;
    }
    mask();
    if (may_end != nullptr) *may_end = !std::isinf(logits[static_cast<size_t>(end_id_)]);
    return true;
  }

  int32_t IdOfByte(unsigned char byte) const {
    for (int32_t id = 0; id < 256; ++id) {
      if (tokenizer_->TokenBytes(id) == std::string(1, static_cast<char>(byte))) return id;
    }
    return -1;
  }

  ScratchFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Grammars> grammars_;
  int32_t end_id_ = 0;
  int n_logits_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Vocabularies, GrammarsTest, testing::Bool(),
                         [](const auto& is_byte_level) {
                           return is_byte_level.param ? "ByteLevel" : "SentencePiece";
                         });

constexpr const char* kSchemas[] = {
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0,
        "maximum": 150}, "tags": {"type": "array", "items": {"enum": ["a", "b\"c", "ü"]}, "maxItems": 3}},
        "required": ["name", "age"], "additionalProperties": false})",
    R"({"type": "object", "properties": {"x": {"type": ["number", "null"]}, "y": {"type": "boolean"},
        "z": {"const": {"k": [1, "2"]}}}, "required": ["z"]})",
    R"({"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 5}, "minItems": 1})",
    R"({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"})",
    R"({"anyOf": [{"type": "integer"}, {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}},
        "required": ["left"], "additionalProperties": false}]})",
    R"({"$ref": "#/$defs/list", "$defs": {"list": {"type": "object", "properties": {"value": {"type": "number"},
        "next": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}}, "required": ["value", "next"],
        "additionalProperties": false}}})",
};

TEST_P(GrammarsTest, RandomWalksAreOfTheSchema) {
  Random random(3);
  for (const char* text : kSchemas) {
    SCOPED_TRACE(text);
    const nlohmann::json schema = nlohmann::json::parse(text);
    const Json structure = *JsonBySchema(Json::parse(text));
    int n_over = 0;
    for (int i = 0; i < 25; ++i) {
      const auto answer = Walk(structure, &random);
      if (!answer) continue;
      ++n_over;
      // JSON bounds no number, but the parser's doubles are bounded.
      if (std::regex_search(*answer, std::regex("[eE][+]?[0-9]{3}"))) continue;
      const nlohmann::json value = nlohmann::json::parse(*answer, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << *answer;
      EXPECT_EQ(WhyNot(value, schema, schema), "") << *answer;
    }
    EXPECT_GE(n_over, 20);
  }
}

TEST_P(GrammarsTest, TextsArePatternsOfWhatTheyStandFor) {
  bool may_end = false;
  const Json backslash = *JsonBySchema(Json::parse(R"({"type": "string", "pattern": "^a\\\\!$"})"));
  EXPECT_TRUE(Takes(backslash, R"("a\\!")", &may_end) && may_end);
  EXPECT_FALSE(Takes(backslash, R"("a\!)"));
  const Json quotes =
      *JsonBySchema(Json::parse(R"({"type": "string", "pattern": "^say \"hi\"$"})"));
  EXPECT_TRUE(Takes(quotes, R"("say \"hi\"")", &may_end) && may_end);
  EXPECT_FALSE(Takes(quotes, R"("say ")"));
  const Json control =
      *JsonBySchema(Json::parse(R"({"type": "string", "pattern": "^\\n\\x01é$"})"));
  EXPECT_TRUE(Takes(control, R"("\n\u0001é")", &may_end) && may_end);
  EXPECT_FALSE(Takes(control, R"("\u000a)")) << "a short escape is the only one";
  EXPECT_FALSE(Takes(control, R"("\n\u0002)"));
  EXPECT_FALSE(Takes(control, R"("\t)"));
}

TEST_P(GrammarsTest, LengthsAreCountedInCharacters) {
  bool may_end = false;
  const Json two =
      *JsonBySchema(Json::parse(R"({"type": "string", "minLength": 2, "maxLength": 3})"));
  EXPECT_TRUE(Takes(two, R"("é\"")", &may_end) && may_end);
  EXPECT_FALSE(Takes(two, R"("é")"));
  EXPECT_FALSE(Takes(two, R"("éééa)"));
  EXPECT_FALSE(Takes(two, R"("aaa\)"));
  EXPECT_TRUE(Takes(two, R"("\\\\\\")", &may_end) && may_end);
  const Json nested = *JsonBySchema(Json::parse(
      R"({"type": "object", "properties": {"o": {"type": "object", "properties": {"s": {"type": "string", "maxLength": 2000}},
          "required": ["s"], "additionalProperties": false}}, "required": ["o"], "additionalProperties": false})"));
  EXPECT_TRUE(Takes(nested, R"({"o": {"s": ")" + std::string(2000, 'x') + "\"}}", &may_end) &&
              may_end);
  EXPECT_FALSE(Takes(nested, R"({"o": {"s": ")" + std::string(2001, 'x')));
  EXPECT_FALSE(Takes(nested, R"({"o": {"s": "x"} #)"));
}

TEST_P(GrammarsTest, PatternsAndLengthsHoldTogether) {
  const Json both = *JsonBySchema(Json::parse(
      R"({"type": "string", "pattern": "^[a-z]+-[0-9]{2}$", "minLength": 5, "maxLength": 7})"));
  bool may_end = false;
  EXPECT_TRUE(Takes(both, R"("ab-12")", &may_end) && may_end);
  EXPECT_FALSE(Takes(both, R"("a-12")"));
  EXPECT_TRUE(Takes(both, R"("abcd-12")", &may_end) && may_end);
  EXPECT_FALSE(Takes(both, R"("abcde)")) << "the rest of the pattern would not fit";
}

TEST_P(GrammarsTest, AlternativesHaveRulesOfTheirOwn) {
  const Json either = *JsonBySchema(Json::parse(
      R"({"anyOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "t": {"type": "string", "maxLength": 2}},
                     "required": ["kind", "t"], "additionalProperties": false},
                    {"type": "object", "properties": {"kind": {"const": "b"}, "t": {"type": "string", "minLength": 3}},
                     "required": ["kind", "t"], "additionalProperties": false}, {"type": "null"}]})"));
  bool may_end = false;
  EXPECT_TRUE(Takes(either, R"({"kind": "a", "t": "xx"})", &may_end) && may_end);
  EXPECT_FALSE(Takes(either, R"({"kind": "a", "t": "xxx)"));
  EXPECT_TRUE(Takes(either, R"({"kind": "b", "t": "xxx"})", &may_end) && may_end);
  EXPECT_FALSE(Takes(either, R"({"kind": "b", "t": "xx")"));
  EXPECT_TRUE(Takes(either, "null", &may_end) && may_end);
  const Json enumerated = *JsonBySchema(
      Json::parse(R"({"enum": ["a", "bcd", 3], "type": ["string", "integer"], "maxLength": 2})"));
  EXPECT_TRUE(Takes(enumerated, "3", &may_end) && may_end);
  EXPECT_FALSE(Takes(enumerated, "\"b"));
}

TEST_P(GrammarsTest, PropertyNamesOfPatternsStayInTheirQuotes) {
  const Json named = *JsonBySchema(Json::parse(
      R"({"type": "object", "patternProperties": {"^[^ü]{1,4}$": {"type": "string", "maxLength": 1}}})"));
  bool may_end = false;
  EXPECT_TRUE(Takes(named, R"({"ab": "x"})", &may_end) && may_end);
  EXPECT_FALSE(Takes(named, R"({"ab": "xy)"));
  EXPECT_FALSE(Takes(named, R"({"a" )" + std::string("x")));
  EXPECT_FALSE(Takes(named, R"({"ü)"));
}

TEST_P(GrammarsTest, AnyObjectIsAnObject) {
  Random random(4);
  int n_over = 0;
  for (int i = 0; i < 25; ++i) {
    const auto answer = Walk(AnyJsonObject(), &random);
    if (!answer) continue;
    ++n_over;
    EXPECT_TRUE(nlohmann::json::parse(*answer, nullptr, false).is_object()) << *answer;
  }
  EXPECT_GE(n_over, 20);
}

TEST_P(GrammarsTest, EndsExactlyWhereTheTextMayEnd) {
  const Json object = AnyJsonObject();
  bool may_end = true;
  EXPECT_TRUE(Takes(object, R"({"a": [1, {"b": "x )", &may_end));
  EXPECT_FALSE(may_end);
  EXPECT_TRUE(Takes(object, R"({"a": [1, {"b": "\u00e9 é"}]})", &may_end));
  EXPECT_TRUE(may_end);
  EXPECT_FALSE(Takes(object, "[1]"));
  EXPECT_FALSE(Takes(object, "{}{"));
  EXPECT_FALSE(Takes(object, "{" + std::string(200, ' '))) << "white space is bounded";
  const auto constraint = Constrain(*JsonBySchema({{"const", "x"}}));
  for (const char c : std::string("\"x\"")) {
    EXPECT_FALSE(constraint->is_complete());
    ASSERT_TRUE(constraint
                    ->Accept(GetParam() ? IdOfByte(static_cast<unsigned char>(c))
                                        : static_cast<unsigned char>(c) + 3)
                    .ok());
  }
  EXPECT_TRUE(constraint->is_complete());
}

TEST_P(GrammarsTest, SpecialTokensAndPaddingNeverPass) {
  const auto constraint = Constrain(AnyJsonObject());
  std::vector<float> logits(static_cast<size_t>(n_logits_), 0);
  constraint->Mask(logits);
  for (int id = 0; id < n_logits_; ++id) {
    const bool has_bytes = id < tokenizer_->vocab_size() && !tokenizer_->TokenBytes(id).empty();
    if (has_bytes) continue;
    EXPECT_TRUE(std::isinf(logits[static_cast<size_t>(id)])) << id;
  }
  EXPECT_EQ(constraint->Accept(end_id_).code(), StatusCode::kInternal);
  EXPECT_EQ(constraint->Accept(n_logits_ - 1).code(), StatusCode::kInternal);
}

// Calls of {"name": NAME, `key`: {...}} in marks.
CallFormat CallsIn(const std::string& key, const std::string& begin, const std::string& end) {
  CallFormat format;
  format.call_begin = begin + "{\"name\": \"";
  format.name_end = "\", \"" + key + "\": ";
  format.call_end = "}" + end;
  format.between = "\n";
  format.is_object = true;
  format.name_key = "name";
  format.arguments_key = key;
  return format;
}

TEST_P(GrammarsTest, CallsNameAToolAndHaveItsArguments) {
  const std::vector<CallableTool> tools = {
      {"get_weather", Json::parse(R"({"type": "object", "properties": {"place": {"type": "string"}},
                                      "required": ["place"], "additionalProperties": false})")},
      {"now", nullptr}};
  const std::string weather = "{\"name\": \"get_weather\", \"arguments\": {\"place\": \"x\"}}";
  const std::string call = "<tool_call>\n" + weather + "\n</tool_call>";
  const Json required =
      *ToolCalls(CallsIn("arguments", "<tool_call>\n", "\n</tool_call>"), tools, {});
  bool may_end = false;
  EXPECT_TRUE(Takes(required, call + "\n" + call, &may_end) && may_end);
  EXPECT_TRUE(Takes(required, "", &may_end) && !may_end);
  EXPECT_FALSE(Takes(required, "I"));
  EXPECT_FALSE(Takes(required, "<tool_call>\n{\"name\": \"other"));
  EXPECT_FALSE(Takes(required, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}"));
  const Json one = *ToolCalls(CallsIn("arguments", "<tool_call>\n", "\n</tool_call>"), tools,
                              {.has_many_calls = false});
  EXPECT_TRUE(Takes(one, call, &may_end) && may_end);
  EXPECT_FALSE(Takes(one, call + "\n<"));
  const Json free = *ToolCalls(CallsIn("arguments", "<tool_call>\n", "\n</tool_call>"), tools,
                               {.must_call = false});
  EXPECT_TRUE(Takes(free, "Let me look: " + call, &may_end) && may_end);
  EXPECT_TRUE(Takes(free, "No < call", &may_end) && may_end);
  EXPECT_FALSE(Takes(free, "<tool_call>\n{\"name\": \"other"));
  const std::vector<CallableTool> ruled = {
      {"go",
       Json::parse(R"({"type": "object", "properties": {"to": {"type": "string", "maxLength": 2}},
                             "required": ["to"], "additionalProperties": false})")},
      {"goto",
       Json::parse(R"({"type": "object", "properties": {"to": {"type": "string", "minLength": 3}},
                               "required": ["to"], "additionalProperties": false})")}};
  const auto call_of = [](const std::string& name, const std::string& to) {
    return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": {\"to\": \"" + to +
           "\"}}\n</tool_call>";
  };
  for (const bool must_call : {true, false}) {
    const Json calls = *ToolCalls(CallsIn("arguments", "<tool_call>\n", "\n</tool_call>"), ruled,
                                  {.must_call = must_call});
    EXPECT_TRUE(Takes(calls, call_of("go", "ab") + "\n" + call_of("goto", "abc"), &may_end) &&
                may_end);
    EXPECT_FALSE(Takes(calls, call_of("go", "abc")));
    EXPECT_FALSE(Takes(calls, call_of("go", "a") + "\n" + call_of("goto", "ab")));
  }
  const std::string llama = "{\"name\": \"now\", \"parameters\": {\"a\": 1}}";
  const Json json_calls = *ToolCalls(CallsIn("parameters", "", ""), tools, {.must_call = false});
  EXPECT_TRUE(Takes(json_calls, llama, &may_end) && may_end);
  EXPECT_TRUE(Takes(json_calls, "It is {late}.\n", &may_end) && may_end);
  EXPECT_FALSE(Takes(json_calls, "{\"name\": \"other"));
  EXPECT_TRUE(
      Takes(*ToolCalls(CallsIn("parameters", "", ""), tools, {}), llama + "\n" + llama, &may_end) &&
      may_end);
}

TEST_P(GrammarsTest, WhatXGrammarRefusesOrIgnoresIsAnError) {
  const auto refusal = [&](const Json& schema) {
    // Behind the check of schemas, which refuses much of it before.
    const auto constraint =
        grammars_->Constrain({{"type", "structural_tag"},
                              {"format", {{"type", "json_schema"}, {"json_schema", schema}}}});
    EXPECT_EQ(constraint.status().code(), StatusCode::kInvalidArgument) << schema;
    return MessageOf(constraint.status());
  };
  EXPECT_THAT(refusal({{"type", "integer"}, {"minimum", 3}, {"maximum", 2}}),
              HasSubstr("cannot become a grammar"));
  EXPECT_THAT(refusal({{"type", "string"}, {"pattern", "a"}, {"minLength", 3}}),
              HasSubstr("would not hold: pattern combined with"));
  refusal({{"type", "string"}, {"pattern", "(((("}});
  refusal({{"type", "gibberish"}});
  refusal({{"type", 3}});
  refusal({{"properties", 3}, {"type", "object"}});
  refusal({{"enum", 3}});
  refusal("{}");
}

// What passes the check of schemas must not take long or much memory.
TEST_P(GrammarsTest, HostileSchemasAreRefusedOrQuick) {
  std::vector<Json> schemas;
  Json many = Json::object(), values = Json::array(), deep = {{"type", "null"}};
  for (int i = 0; i < 500; ++i) many["property_" + std::to_string(i)] = {{"type", "integer"}};
  for (int i = 0; i < 1000; ++i) values.push_back("value number " + std::to_string(i));
  for (int i = 0; i < 14; ++i)
    deep = {{"type", "object"},
            {"properties",
             {{"a", deep}, {"b", deep["type"] == "null" ? deep : Json{{"type", "null"}}}}}};
  schemas.push_back({{"type", "object"}, {"properties", many}});
  schemas.push_back({{"enum", values}});
  schemas.push_back(deep);
  schemas.push_back(Json::parse(R"({"type": "string", "pattern": "(a|b|ab)*(a{64}|c+d?)x$"})"));
  schemas.push_back(Json::parse(R"({"type": "string", "pattern": ".*a.*a.*a.*a.*a.*a.{60}"})"));
  schemas.push_back(Json::parse(R"({"type": "array", "minItems": 60, "maxItems": 64, "items":
      {"type": "array", "minItems": 60, "maxItems": 64, "items": {"type": "string"}}})"));
  schemas.push_back(Json::parse(R"({"type": "string", "minLength": 1000, "maxLength": 1500})"));
  Json definitions = {{"d20", {{"type", "null"}}}};
  for (int i = 0; i < 20; ++i) {
    const Json next = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
    definitions["d" + std::to_string(i)] = {{"type", "object"},
                                            {"properties", {{"a", next}, {"b", next}}}};
  }
  schemas.push_back({{"$ref", "#/$defs/d0"}, {"$defs", definitions}});
  for (const Json& schema : schemas) {
    SCOPED_TRACE(schema.dump().substr(0, 100));
    const auto structure = JsonBySchema(schema);
    ASSERT_TRUE(structure.ok()) << structure.status();
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(grammars_->Constrain(*structure).ok());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_LT(seconds.count(), 20);
  }
}

TEST_P(GrammarsTest, ATokenThatTakesTooLongEndsTheRequest) {
  GrammarOptions options;
  options.n_logits = n_logits_;
  options.max_token_time = std::chrono::milliseconds(0);
  const auto grammars = *Grammars::Make(*tokenizer_, options);
  const auto constraint = *grammars->Constrain(AnyJsonObject());
  const Status status = constraint->Accept(GetParam() ? IdOfByte('{') : '{' + 3);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(MessageOf(status), HasSubstr("more than 0 ms for a token"));
}

TEST_P(GrammarsTest, ThreadsShareOne) {
  std::vector<std::thread> threads;
  std::vector<int> n_valid(4);
  for (size_t t = 0; t < n_valid.size(); ++t) {
    threads.emplace_back([&, t] {
      Random random(t);
      const nlohmann::json schema = nlohmann::json::parse(kSchemas[t % 3]);
      for (int i = 0; i < 5; ++i) {
        auto constraint = grammars_->Constrain(*JsonBySchema(Json::parse(kSchemas[t % 3])));
        if (!constraint.ok()) continue;
        const auto answer =
            WalkAtRandom(constraint->get(), *tokenizer_, n_logits_, end_id_, 600, &random);
        if (!answer) continue;
        n_valid[t] +=
            WhyNot(nlohmann::json::parse(*answer, nullptr, false), schema, schema).empty();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int n : n_valid) EXPECT_GE(n, 3);
}

}  // namespace
}  // namespace kvlathe
