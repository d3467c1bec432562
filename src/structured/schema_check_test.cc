#include "structured/schema_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvlathe {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

std::string WhyRefused(const Json& schema, bool texts_in_grammar = false) {
  const Status status = CheckSchema(schema, {.texts_in_grammar = texts_in_grammar});
  if (status.ok()) return {};
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  return MessageOf(status);
}

std::string WhyRefused(const char* text) { return WhyRefused(Json::parse(text)); }

// Where the grammar itself holds what texts may be.
std::string WhyRefusedInGrammar(const Json& schema) {
  return WhyRefused(schema, /*texts_in_grammar=*/true);
}
std::string WhyRefusedInGrammar(const char* text) { return WhyRefusedInGrammar(Json::parse(text)); }

TEST(SchemaCheck, TakesWhatGrammarsHold) {
  for (
      const char* schema :
      {"{}", R"({"type": "object"})", R"({"type": ["string", "null"]})",
       R"({"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"],
            "additionalProperties": false, "title": "T", "description": "d"})",
       R"({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/a"}], "description": "d",
            "$defs": {"a": {"type": "array", "items": {"$ref": "#"}}}})",
       R"({"type": "array", "items": {"type": "string", "maxLength": 60}, "maxItems": 60})",
       R"({"type": "array", "items": {}, "uniqueItems": false})",
       R"({"allOf": [{"type": "null"}]})"}) {
    EXPECT_EQ(WhyRefused(schema), "") << schema;
  }
}

TEST(SchemaCheck, NamesWhatItRefusesAndWhere) {
  EXPECT_THAT(WhyRefused("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(WhyRefused(R"({"properties": {"a": {"not": {}}}})"),
              HasSubstr("schema/properties/a: the keyword not"));
  EXPECT_THAT(WhyRefused(R"({"items": {"uniqueItems": true}})"), HasSubstr("uniqueItems"));
  EXPECT_THAT(WhyRefused(R"({"properties": {"not": {"if": {}}}})"),
              HasSubstr("properties/not: the"));
  EXPECT_THAT(WhyRefused(R"({"anyOf": [{}], "required": ["a"]})"),
              HasSubstr("required beside anyOf"));
  EXPECT_THAT(WhyRefused(R"({"$ref": "#/a", "anyOf": [{}], "a": {}})"), HasSubstr("beside"));
  EXPECT_THAT(WhyRefused(R"({"allOf": [{}, {}]})"), HasSubstr("allOf of more than one"));
  EXPECT_THAT(WhyRefused(R"({"anyOf": []})"), HasSubstr("anyOf is no list"));
  EXPECT_THAT(WhyRefused(R"({"properties": []})"), HasSubstr("properties is no object"));
  EXPECT_THAT(WhyRefused(R"({"properties": {"a": 3}})"), HasSubstr("properties/a: is neither"));
  EXPECT_THAT(WhyRefused(R"({"$ref": "#/b"})"), HasSubstr("$ref '#/b' is not found"));
  EXPECT_THAT(WhyRefused(R"({"$ref": "http://x/y"})"), HasSubstr("is not found"));
  EXPECT_THAT(WhyRefused(R"({"$ref": 3})"), HasSubstr("no string"));
  EXPECT_THAT(WhyRefused(R"({"minLength": -1})"), HasSubstr("minLength is no whole number"));
  EXPECT_THAT(WhyRefused(R"({"maxItems": 1.5})"), HasSubstr("maxItems is no whole number"));
}

TEST(SchemaCheck, WhatNeverEndsIsRefused) {
  EXPECT_THAT(WhyRefused(R"({"$ref": "#"})"), HasSubstr("refers to itself"));
  EXPECT_THAT(WhyRefused(R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})"),
              HasSubstr("refers to itself"));
  EXPECT_THAT(WhyRefused(R"({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]},
                             "b": {"$ref": "#/$defs/a"}}})"),
              HasSubstr("refers to itself"));
  // Two references in each of thirty definitions: a billion paths, none of which comes back.
  Json definitions = {{"d30", {{"type", "null"}}}};
  for (int i = 0; i < 30; ++i) {
    const Json next = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
    definitions["d" + std::to_string(i)] = {{"anyOf", {next, next}}};
  }
  EXPECT_EQ(WhyRefused(Json{{"$ref", "#/$defs/d0"}, {"$defs", definitions}}), "");
}

TEST(SchemaCheck, SizesAreBounded) {
  Json deep = Json::object();
  for (int i = 0; i < 40; ++i) deep = Json{{"items", deep}};
  EXPECT_THAT(WhyRefused(deep), HasSubstr("nests deeper than 32"));
  Json values = Json::array();
  for (int i = 0; i < 1001; ++i) values.push_back(i);
  EXPECT_THAT(WhyRefused(Json{{"enum", values}}), HasSubstr("1001 values"));
  EXPECT_THAT(WhyRefused(Json{{"anyOf", Json(65, Json::object())}}), HasSubstr("65 schemas"));
  EXPECT_THAT(WhyRefused(Json{{"enum", Json(5000, 1)}}), HasSubstr("more than 4096 values"));
  EXPECT_THAT(WhyRefused(Json{{"title", std::string(70000, 'x')}}), HasSubstr("bytes, allowed"));
  EXPECT_THAT(WhyRefusedInGrammar(Json{{"pattern", std::string(300, 'x')}}),
              HasSubstr("300 bytes"));
  EXPECT_THAT(WhyRefusedInGrammar(R"({"pattern": "a{100}b{100}c{100}"})"), HasSubstr("4096 times"));
  EXPECT_THAT(WhyRefusedInGrammar(R"({"pattern": "a{1,99999999999999999999}"})"),
              HasSubstr("4096 times"));
  EXPECT_THAT(WhyRefusedInGrammar(R"({"patternProperties": {"a{5000}": {}}})"),
              HasSubstr("4096 times"));
  EXPECT_THAT(WhyRefusedInGrammar(R"({"maxLength": 18446744073709551615})"),
              HasSubstr("4096 times"));
  EXPECT_THAT(
      WhyRefused(R"({"maxItems": 100, "items": {"maxItems": 100, "items": {"type": "null"}}})"),
      HasSubstr("schema/items: repeats more than 4096 times"));
}

// A schema of `n` properties of that schema.
Json Many(int n, const Json& property) {
  Json properties = Json::object();
  for (int i = 0; i < n; ++i) properties["p" + std::to_string(i)] = property;
  return {{"type", "object"}, {"properties", properties}};
}

// With 49,152 tokens XGrammar took from 6 s to more than 5 minutes for each of the refused.
TEST(SchemaCheck, PatternsOfManyReadingsAreRefused) {
  const auto why = [](const char* pattern) {
    return WhyRefusedInGrammar(Json{{"pattern", pattern}});
  };
  for (const char* pattern : {"(a*)*b", "(.?.?|b.*)*x", "((a|b+)c)+", "(.{1,9}y?){9}", "(?:a?){9}",
                              "((a?))*", "([)]a?)+"}) {
    EXPECT_THAT(why(pattern), HasSubstr("repeats a group")) << pattern;
    EXPECT_THAT(WhyRefusedInGrammar(Json{{"patternProperties", {{pattern, Json::object()}}}}),
                HasSubstr("repeats a group"));
  }
  for (const char* pattern : {"^(\\d{3}-)?\\d{4}$", "(a|b)*", "(\\(a\\*)+", "([*+?{(]x)+",
                              "a{2}b+c?", "(?:ab)+", "(a+)(b+)?"}) {
    EXPECT_EQ(why(pattern), "") << pattern;
  }
}

TEST(SchemaCheck, WhatWouldTakeLongToCompileIsRefused) {
  const auto of = [](const char* text) { return Json::parse(text); };
  EXPECT_THAT(WhyRefusedInGrammar(Many(20, of(R"({"maxLength": 64})"))),
              HasSubstr("take too long"));
  EXPECT_THAT(WhyRefusedInGrammar(Many(500, of(R"({"minLength": 4000})"))),
              HasSubstr("take too long"));
  EXPECT_THAT(WhyRefusedInGrammar(Many(150, of(R"({"multipleOf": 900})"))),
              HasSubstr("take too long"));
  EXPECT_THAT(WhyRefusedInGrammar(Many(400, of(R"({"pattern": "^.*a.*a.*ax[^b]*.?.?.?.?.?.?$"})"))),
              HasSubstr("take too long"));
  EXPECT_THAT(WhyRefusedInGrammar(of(R"({"pattern": "^[a-z]{1,60}-[a-z]{1,60}$"})")),
              HasSubstr("take too long"));
  EXPECT_THAT(
      WhyRefusedInGrammar(of(R"({"patternProperties": {"^[a-z]{1,60}-[a-z]{1,60}$": {}}})")),
      HasSubstr("take too long"));
  std::string optional;
  for (int i = 0; i < 60; ++i) optional += ".?";
  EXPECT_THAT(WhyRefusedInGrammar(Json{{"pattern", optional}}), HasSubstr("take too long"));
  EXPECT_EQ(WhyRefusedInGrammar(Many(15, of(R"({"maxLength": 64})"))), "");
  EXPECT_EQ(WhyRefusedInGrammar(Many(15, of(R"({"maxLength": 1000})"))), "");
  EXPECT_EQ(WhyRefusedInGrammar(Many(100, of(R"({"type": "string", "format": "date-time"})"))), "");
  EXPECT_EQ(WhyRefusedInGrammar(Many(40, of(R"({"pattern": "^[A-Z]{3}-[0-9]{4}$"})"))), "");
}

TEST(SchemaCheck, WhatIsFollowedBesideTheGrammarCostsItNothing) {
  const auto of = [](const char* text) { return Json::parse(text); };
  EXPECT_EQ(WhyRefused(Many(500, of(R"({"type": "string", "maxLength": 65536})"))), "");
  EXPECT_EQ(WhyRefused(Many(20, of(R"({"pattern": "^[a-z]{1,60}-[a-z]{1,60}$"})"))), "");
  EXPECT_EQ(WhyRefused(R"({"pattern": "^(a*b)+$", "minLength": 3, "maxLength": 90000})"), "");
  EXPECT_EQ(WhyRefused(R"({"type": "string", "format": "uuid", "maxLength": 36})"), "");
}

TEST(SchemaCheck, TextsThatCannotBeAreRefused) {
  EXPECT_THAT(WhyRefused(R"({"minLength": 3, "maxLength": 2})"), HasSubstr("is more than"));
  EXPECT_THAT(WhyRefused(R"({"pattern": "^(ab)*$", "minLength": 3, "maxLength": 3})"),
              HasSubstr("no text is of the pattern and of the lengths beside it"));
  EXPECT_THAT(WhyRefused(R"({"pattern": "a[^\\s\\S]"})"), HasSubstr("no text is of the pattern"));
  EXPECT_THAT(WhyRefused(R"({"format": "uuid", "maxLength": 35})"), HasSubstr("no text"));
  EXPECT_THAT(WhyRefused(R"({"format": "date", "pattern": "a"})"), HasSubstr("beside a pattern"));
  EXPECT_THAT(WhyRefused(R"({"pattern": "(?=a)b"})"), HasSubstr("looks ahead"));
  EXPECT_THAT(WhyRefused(R"({"pattern": "(a{4000}){4000}"})"), HasSubstr("repeats more than"));
  EXPECT_THAT(
      WhyRefused(Many(500, Json::parse(R"({"pattern": "^a{10,1000}$", "minLength": 900})"))),
      HasSubstr("take too long to prepare"));
}

}  // namespace
}  // namespace kvlathe
