#include "structured/call_grammar.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/reading/marked_arguments.h"
#include "chat/reading/text_compare.h"
#include "structured/schema_format.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

Json Regex(const std::string& pattern) { return {{"type", "regex"}, {"pattern", pattern}}; }
Json OneOf(Json elements) { return {{"type", "or"}, {"elements", std::move(elements)}}; }
Json Optional(Json content) { return {{"type", "optional"}, {"content", std::move(content)}}; }
Json Tag(const std::string& begin, Json content, const std::string& end) {
  return {{"type", "tag"}, {"begin", begin}, {"content", std::move(content)}, {"end", end}};
}

// A literal with any words in it, as the ids that a model makes up.
void AddPieces(const std::string& text, Json* pieces) {
  size_t begin = 0;
  for (size_t pos = 0; pos <= text.size(); ++pos) {
    if (pos < text.size() && text[pos] != kAnyWord) continue;
    if (pos > begin) pieces->push_back(ConstText(text.substr(begin, pos - begin)));
    if (pos < text.size()) pieces->push_back(Regex("[A-Za-z0-9_.:-]{1,64}"));
    begin = pos + 1;
  }
}

// References go to definitions of the schema, which stand in every part of it.
bool HasOtherReferences(const Json& schema) {
  if (schema.is_object() && schema.contains("$ref") && schema["$ref"].is_string()) {
    const std::string& to = schema["$ref"].get_ref<const std::string&>();
    if (!to.starts_with("#/$defs/") && !to.starts_with("#/definitions/")) return true;
  }
  return (schema.is_object() || schema.is_array()) &&
         std::any_of(schema.begin(), schema.end(), HasOtherReferences);
}

// The arguments of a call that are written otherwise than as JSON.
class ArgumentsGrammar {
 public:
  ArgumentsGrammar(const CallFormat& format, const Json& parameters)
      : format_(format), parameters_(parameters) {}

  StatusOr<Json> Make() const {
    const bool is_python = format_.arguments == CallFormat::Arguments::kPython;
    const Json separator = is_python ? Regex(", ?") : ConstText(format_.between_arguments);
    if (!parameters_.is_object() || !parameters_.contains("properties")) {
      if (parameters_.is_object() && !IsPlainObject()) return Refused();
      return AnyArguments(separator);
    }
    if (!IsPlainObject() || HasOtherReferences(parameters_)) return Refused();
    Json members = Members(parameters_, separator, [&](const std::string& key, const Json& schema) {
      return Argument(ConstText(format_.key_begin + key), schema);
    });
    KVL_RETURN_IF_ERROR(refusal_);
    if (n_members_ <= kMaxMembers) return members;
    return Error(StatusCode::kInvalidArgument,
                 "too many parameters that may be left out, for calls that are not JSON");
  }

 private:
  bool IsPlainObject() const {
    return std::ranges::none_of(std::vector<const char*>{"$ref", "anyOf", "oneOf", "allOf"},
                                [&](const char* key) { return parameters_.contains(key); });
  }
  static Status Refused() {
    return Error(StatusCode::kUnimplemented,
                 "this model does not write calls as JSON, so that a grammar of them needs a "
                 "schema that is an object with properties, with references to $defs alone");
  }

  Json AnyArguments(const Json& separator) const {
    const Json argument =
        Argument(SequenceOf({ConstText(format_.key_begin), Regex("[A-Za-z_][A-Za-z0-9_-]{0,63}")}),
                 Json::object());
    return Optional(
        SequenceOf({argument, {{"type", "star"}, {"content", SequenceOf({separator, argument})}}}));
  }

  // Members of an object in their order, with `separator` between two.
  template <typename MakeMember>
  Json Members(const Json& schema, const Json& separator, const MakeMember& make) const {
    std::set<std::string> required;
    if (schema.contains("required")) {
      for (const Json& key : schema["required"]) required.insert(key.get<std::string>());
    }
    const Json& properties = schema["properties"];
    // Nothing more once there are too many, which objects within objects can make of a small
    // schema.
    const auto counted = [&](const auto& property) {
      return ++n_members_ > kMaxMembers ? ConstText("") : make(property.key(), property.value());
    };
    const auto or_none = [&](const std::string& key, Json member) {
      return required.contains(key) ? member : Optional(std::move(member));
    };
    if (separator == ConstText("")) {
      Json members = Json::array({ConstText("")});
      for (auto it = properties.begin(); it != properties.end(); ++it) {
        members.push_back(or_none(it.key(), counted(it)));
      }
      return SequenceOf(std::move(members));
    }
    Json alternatives = Json::array();  // by which of the members is the first
    bool may_be_empty = true;
    for (auto first = properties.begin(); first != properties.end() && may_be_empty; ++first) {
      Json members = Json::array({counted(first)});
      for (auto it = std::next(first); it != properties.end() && n_members_ <= kMaxMembers; ++it) {
        members.push_back(or_none(it.key(), SequenceOf({separator, counted(it)})));
      }
      alternatives.push_back(SequenceOf(std::move(members)));
      may_be_empty = !required.contains(first.key());
    }
    if (may_be_empty) alternatives.push_back(ConstText(""));
    return alternatives.size() == 1 ? alternatives[0] : OneOf(std::move(alternatives));
  }

  // `key` with what stands in front of it.
  Json Argument(const Json& key, const Json& schema) const {
    if (format_.arguments == CallFormat::Arguments::kPython) {
      return SequenceOf({key, ConstText("="), Literal(schema)});
    }
    if (!format_.text_quote.empty()) {
      return SequenceOf(
          {key, ConstText(format_.key_end_other), Literal(schema), ConstText(format_.value_end)});
    }
    const auto as_json = [&](const std::string& key_end) {
      Json pieces = Json::array({key});
      AddPieces(key_end, &pieces);
      pieces.push_back(Value(schema));
      pieces.push_back(ConstText(format_.value_end));
      return SequenceOf(std::move(pieces));
    };
    if (format_.texts_are_json) return as_json(format_.key_end);
    const std::set<std::string> types = TypesOf(schema);
    const bool may_be_text = types.empty() || types.contains("string");
    const Json as_text =
        SequenceOf({key, Tag(format_.key_end, RawText(schema), format_.value_end)});
    if (format_.key_end_other.empty()) return may_be_text ? as_text : as_json(format_.key_end);
    if (types.size() == 1 && may_be_text) return as_text;
    const Json marked = as_json(format_.key_end_other);
    return may_be_text ? OneOf({as_text, marked}) : marked;
  }

  // A text without quotes, up to what ends a value.
  Json RawText(const Json& schema) const {
    const std::string end(TrimBlanks(format_.value_end));
    const char first = end.empty() ? ',' : end[0];
    if (schema.contains("enum") || schema.contains("const")) {
      Json values = schema.contains("enum") ? schema["enum"] : Json::array({schema["const"]});
      for (Json& value : values) {
        value = ConstText(value.is_string() ? value.get<std::string>() : value.dump());
      }
      return OneOf(std::move(values));
    }
    if (schema.contains("pattern")) return Regex(schema["pattern"].get<std::string>());
    if (schema.contains("minLength") || schema.contains("maxLength") || end.empty()) {
      const std::string least = schema.contains("minLength") ? schema["minLength"].dump() : "0";
      const std::string most = schema.contains("maxLength") ? schema["maxLength"].dump() : "";
      const std::string other = end.empty() ? "}\\])" : "";
      return Regex(std::string("[^") + first + other + "]{" + least + "," + most + "}");
    }
    Json text = {{"type", "any_text"}};
    if (end != format_.value_end) text["excludes"] = {end};
    return text;
  }

  // A value in quotes of its own, or as in Python.
  Json Literal(const Json& schema) const {
    const std::set<std::string> types = TypesOf(schema);
    const std::string type = types.size() == 1 ? *types.begin() : "";
    const bool has_quote = !format_.text_quote.empty();
    const Json separator = has_quote ? ConstText(",") : Regex(", ?");
    if (type == "string") return TextLiteral(schema);
    if (type == "array" && schema.contains("items") && schema["items"].is_object()) {
      const Json item = Literal(schema["items"]);
      const Json items =
          SequenceOf({item, {{"type", "star"}, {"content", SequenceOf({separator, item})}}});
      return SequenceOf({ConstText("["), Optional(items), ConstText("]")});
    }
    if (type == "object" && schema.contains("properties")) {
      const Json members = Members(schema, separator, [&](const std::string& key, const Json& of) {
        const Json colon =
            has_quote ? ConstText(key + ":")
                      : OneOf({ConstText("'" + key + "': "), ConstText("\"" + key + "\": ")});
        return SequenceOf({colon, Literal(of)});
      });
      return SequenceOf({ConstText("{"), members, ConstText("}")});
    }
    return JsonOr(schema);
  }

  Json TextLiteral(const Json& schema) const {
    const std::string& quote = format_.text_quote;
    const bool is_plain =
        !schema.contains("enum") && !schema.contains("const") && !schema.contains("pattern");
    if (!quote.empty()) {
      CallFormat within;
      within.value_end = quote;
      return Tag(quote, ArgumentsGrammar(within, parameters_).RawText(schema), quote);
    }
    const Json json = InGrammar(schema);
    return is_plain ? OneOf({json, Regex("'([^'\\\\\\n]|\\\\.)*'")}) : json;
  }

  // A value as JSON, or as Python writes it: some templates print objects so.
  Json Value(const Json& schema) const {
    const std::set<std::string> types = TypesOf(schema);
    const bool is_nested = types.contains("object") || types.contains("array");
    return is_nested ? OneOf({JsonOr(schema), Literal(schema)}) : JsonOr(schema);
  }

  // A value as JSON; truth also as Python writes it.
  Json JsonOr(const Json& schema) const {
    Json json = InGrammar(schema);
    if (TypesOf(schema) != std::set<std::string>{"boolean"} || schema.contains("enum") ||
        schema.contains("const")) {
      return json;
    }
    return OneOf({json, ConstText("True"), ConstText("False")});
  }

  Json InGrammar(const Json& schema) const {
    StatusOr<Json> format = FormatOfSchema(WithDefinitions(schema), TextRules::kInGrammar);
    if (format.ok()) return *std::move(format);
    refusal_ = format.status();
    return ConstText("");
  }

  Json WithDefinitions(Json schema) const {
    for (const char* const key : {"$defs", "definitions"}) {
      if (parameters_.is_object() && parameters_.contains(key)) schema[key] = parameters_[key];
    }
    return schema;
  }

  static constexpr int kMaxMembers = 2048;

  const CallFormat& format_;
  const Json& parameters_;
  mutable int n_members_ = 0;  // that were made of the schema
  mutable Status refusal_;     // of a part of it
};

CallFormat NamedFormat(CallFormat format, const std::string& name) {
  for (std::string* const text : {&format.call_begin, &format.name_end, &format.call_end}) {
    for (size_t pos; (pos = text->find(kCalledName)) != std::string::npos;) {
      text->replace(pos, 1, name);
    }
  }
  return format;
}

}  // namespace

std::optional<std::string> FrontOfArguments(const CallFormat& format, const std::string& name) {
  const CallFormat named = NamedFormat(format, name);
  const bool is_behind_name = !(named.is_object && named.name_end.empty()) && !named.ids_hold_names;
  if (named.arguments != CallFormat::Arguments::kJson || !is_behind_name ||
      named.name_end.find(kAnyWord) != std::string::npos) {
    return std::nullopt;
  }
  const size_t any_word = named.call_begin.rfind(kAnyWord);
  const size_t begin = any_word == std::string::npos ? 0 : any_word + 1;
  return named.call_begin.substr(begin) + name + named.name_end;
}

Json ConstText(const std::string& text) { return {{"type", "const_string"}, {"value", text}}; }

Json SequenceOf(Json elements) {
  if (elements.size() == 1) return elements[0];
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

Json EndsOfCalls(const std::string& text) {
  const size_t mark = text.rfind("<|");
  if (mark == std::string::npos || !text.ends_with("|>")) return text;
  if (text.find('>', mark) + 1 != text.size()) return text;
  return Json::array({text, text.substr(0, mark)});
}

StatusOr<Json> CallTag(const CallFormat& format, const std::string& name, const Json& parameters,
                       bool is_last) {
  const CallFormat named = NamedFormat(format, name);
  Json arguments;
  if (named.arguments == CallFormat::Arguments::kJson) {
    const TextRules rules =
        FrontOfArguments(format, name) ? TextRules::kFollowed : TextRules::kInGrammar;
    KVL_ASSIGN_OR_RETURN(
        arguments,
        FormatOfSchema(parameters.is_null() ? Json{{"type", "object"}} : parameters, rules));
  } else {
    KVL_ASSIGN_OR_RETURN(arguments, ArgumentsGrammar(named, parameters).Make());
  }
  Json pieces = Json::array();
  AddPieces(named.call_begin, &pieces);
  if (named.is_object && named.name_end.empty()) {
    pieces.push_back(std::move(arguments));
    AddPieces(named.between_arguments + name, &pieces);
  } else if (named.ids_hold_names) {
    pieces.push_back(ConstText("functions." + name + ":"));
    pieces.push_back(Regex("[0-9]{1,3}"));
    AddPieces(named.name_end, &pieces);
    pieces.push_back(std::move(arguments));
  } else {
    AddPieces(name + named.name_end, &pieces);
    pieces.push_back(std::move(arguments));
  }
  AddPieces(named.call_end, &pieces);
  // What is constant at both ends stands in the tag itself, where XGrammar looks for it.
  std::string begin, end;
  const auto take = [&](size_t i) {
    std::string text = pieces[i]["value"];
    pieces.erase(i);
    return text;
  };
  while (!pieces.empty() && pieces[0]["type"] == "const_string") begin += take(0);
  if (!pieces.empty() && pieces.back()["type"] == "const_string") end = take(pieces.size() - 1);
  if (pieces.empty()) pieces.push_back(ConstText(""));
  Json tag = Tag(begin, SequenceOf(std::move(pieces)), end);
  if (is_last) tag["end"] = EndsOfCalls(end);
  return tag;
}

}  // namespace kvlathe
