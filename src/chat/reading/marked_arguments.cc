#include "chat/reading/marked_arguments.h"

#include <algorithm>
#include <set>

#include "chat/reading/literals.h"
#include "chat/reading/text_compare.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kDataBegin = "<![CDATA[", kDataEnd = "]]>";
constexpr int kMaxSchemaDepth = 8;
// The blanks at the end of a literal, or at its beginning, are part of a mark and no value.
std::string_view WithoutMarkBlanks(std::string_view value, std::string_view before,
                                   std::string_view after) {
  const size_t last = before.find_last_not_of(kBlanks);
  const std::string_view lead = before.substr(last == std::string_view::npos ? 0 : last + 1);
  const std::string_view tail =
      after.substr(0, std::min(after.find_first_not_of(kBlanks), after.size()));
  if (value.starts_with(lead)) value.remove_prefix(lead.size());
  if (value.ends_with(tail)) value.remove_suffix(tail.size());
  return value;
}

// Whether the two are the same as far as the shorter goes.
bool MayBegin(std::string_view mark, std::string_view text) {
  return CommonPrefix(mark, text) == std::min(mark.size(), text.size());
}

std::string Dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string_view TypeOf(const Json& value) {
  if (value.is_string()) return "string";
  if (value.is_number()) return "number";
  if (value.is_boolean()) return "boolean";
  if (value.is_null()) return "null";
  return value.is_array() ? "array" : "object";
}

void AddTypes(const Json& schema, int depth, std::set<std::string>* types) {
  if (!schema.is_object() || depth > kMaxSchemaDepth) return;
  const auto add = [&](const Json& type) {
    if (type.is_string()) types->insert(type == "integer" ? "number" : type.get<std::string>());
  };
  if (schema.contains("type")) {
    const Json& type = schema["type"];
    add(type);
    if (type.is_array()) std::for_each(type.begin(), type.end(), add);
    return;
  }
  if (schema.contains("const")) types->emplace(TypeOf(schema["const"]));
  if (schema.contains("enum") && schema["enum"].is_array()) {
    for (const Json& value : schema["enum"]) types->emplace(TypeOf(value));
  }
  for (const char* const key : {"anyOf", "oneOf", "allOf"}) {
    if (!schema.contains(key) || !schema[key].is_array()) continue;
    for (const Json& inner : schema[key]) AddTypes(inner, depth + 1, types);
  }
}

// Where `literal` stands behind `from`, any words in it told by their ends.
struct Place {
  LooseMatch::State state = LooseMatch::State::kNone;  // kOpen: it may yet come
  size_t begin = std::string_view::npos, end = 0;
};

Place FindLoosely(std::string_view text, std::string_view literal, size_t from) {
  const size_t word = literal.find_first_of(kAnyWords);
  const std::string_view lead = literal.substr(0, word);
  for (size_t pos = text.find(lead, from); pos != std::string_view::npos;
       pos = text.find(lead, pos + 1)) {
    if (word == std::string_view::npos) return {LooseMatch::State::kWhole, pos, pos + lead.size()};
    const LooseMatch match = MatchLoosely(text.substr(pos), literal);
    if (match.state == LooseMatch::State::kOpen) return {LooseMatch::State::kOpen};
    if (match.state == LooseMatch::State::kWhole) {
      return {LooseMatch::State::kWhole, pos, pos + match.end};
    }
  }
  return {};
}

}  // namespace

std::set<std::string> TypesOf(const Json& schema) {
  std::set<std::string> types;
  AddTypes(schema, 0, &types);
  return types;
}

void MarkedArguments::Begin(const Json* schema) {
  schema_ = schema;
  has_arguments_ = false;
}

MarkedArguments::Step MarkedArguments::Read(std::string_view text) {
  if (format_.arguments == CallFormat::Arguments::kPython) return ReadPython(text);
  Step all;
  while (true) {
    const Step step = ReadTagged(text.substr(all.n_bytes));
    all.json += step.json;
    all.n_bytes += step.n_bytes;
    all.state = step.state;
    if (step.state != State::kGoing || step.n_bytes == 0) return all;
  }
}

bool MarkedArguments::IsText(const std::string& key, std::string_view value) const {
  std::set<std::string> types;
  if (schema_ != nullptr && schema_->is_object() && schema_->contains("properties")) {
    const Json& properties = (*schema_)["properties"];
    if (properties.is_object() && properties.contains(key)) types = TypesOf(properties[key]);
  }
  if (!types.empty() && !types.contains("string")) return false;
  if (types.size() == 1) return true;
  Json json = Json::parse(value, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) json = Json::parse(JsonOfLiteral(value), nullptr, false);
  if (json.is_discarded()) return true;
  return !types.empty() && !types.contains(std::string(TypeOf(json)));
}

std::string MarkedArguments::JsonOf(const std::string& key, std::string_view value,
                                    bool is_text) const {
  std::string json = has_arguments_ ? ", " : "{";
  json += Dumped(Json(key)) + ": ";
  if (is_text) return json + Dumped(Json(std::string(value)));
  const std::string_view trimmed = TrimBlanks(value);
  if (Json::accept(trimmed)) return json + std::string(trimmed);
  const std::string of_literal = JsonOfLiteral(trimmed, format_.text_quote);
  return json + (of_literal.empty() ? Dumped(Json(std::string(value))) : of_literal);
}

// One argument, or the end of all of them.
MarkedArguments::Step MarkedArguments::ReadTagged(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n,");
  if (begin == std::string_view::npos) return {};
  const std::string_view rest = text.substr(begin);
  // What ends all of them may begin as the next argument does, so that its whole text decides.
  const LooseMatch end = MatchLoosely(rest, format_.call_end);
  const LooseMatch key_begin = MatchLoosely(rest, format_.key_begin);
  if (end.state == LooseMatch::State::kWhole || key_begin.state == LooseMatch::State::kNone) {
    const bool is_end = end.state != LooseMatch::State::kNone || has_arguments_;
    if (end.state == LooseMatch::State::kOpen) return {};
    return {is_end ? State::kDone : State::kMalformed, begin, has_arguments_ ? "}" : "{}"};
  }
  if (key_begin.state == LooseMatch::State::kOpen) return {};
  const size_t key_pos = begin + key_begin.end;
  if (!format_.text_quote.empty()) return ReadQuoted(text, key_pos);
  const std::string_view plain = TrimBlanks(format_.key_end);
  const std::string_view other = TrimBlanks(format_.key_end_other);
  const Place at_plain = FindLoosely(text, plain, key_pos);
  const Place at_other = other.empty() ? Place() : FindLoosely(text, other, key_pos);
  if (at_other.state == LooseMatch::State::kOpen) return {};
  const bool is_other = at_other.begin < at_plain.begin;
  const Place key_end = is_other ? at_other : at_plain;
  if (key_end.state != LooseMatch::State::kWhole) return {};
  const std::string key(TrimBlanks(text.substr(key_pos, key_end.begin - key_pos)));
  const std::string_view ahead = text.substr(key_end.end);
  const bool is_data = MayBegin(kDataBegin, ahead) && format_.texts_may_be_data;
  if (is_data && ahead.size() < kDataBegin.size()) return {};
  const std::string value_end =
      (is_data ? std::string(kDataEnd) : "") + std::string(TrimBlanks(format_.value_end));
  const size_t stop = value_end.empty() ? EndOfLiteral(ahead, Stops()) : ahead.find(value_end);
  if (stop == std::string_view::npos) return {};
  std::string_view value = ahead.substr(0, stop);
  bool is_text = !is_other && !other.empty();
  if (is_data) {
    value.remove_prefix(kDataBegin.size());
    is_text = true;
  } else {
    value = WithoutMarkBlanks(value, is_other ? format_.key_end_other : format_.key_end,
                              format_.value_end);
    if (format_.texts_are_json) {
      is_text = false;
    } else if (other.empty()) {
      is_text = IsText(key, value);
    }
  }
  Step step = {State::kGoing, key_end.end + stop + value_end.size(), JsonOf(key, value, is_text)};
  has_arguments_ = true;
  return step;
}

// What ends a value that has no end of its own: the next one, or the end of all.
std::string MarkedArguments::Stops() const {
  const std::string_view end = TrimBlanks(format_.call_end);
  return std::string(",") + (end.empty() ? '}' : end.front());
}

// An argument whose texts have marks of their own around them.
MarkedArguments::Step MarkedArguments::ReadQuoted(std::string_view text, size_t key_pos) {
  const std::string_view key_end = TrimBlanks(format_.key_end_other);
  const size_t at = text.find(key_end, key_pos);
  if (at == std::string_view::npos) return {};
  const std::string key(TrimBlanks(text.substr(key_pos, at - key_pos)));
  const std::string_view ahead = text.substr(at + key_end.size());
  const std::string_view quote = format_.text_quote;
  if (MayBegin(quote, ahead) && ahead.size() < quote.size()) return {};
  const bool is_text = ahead.starts_with(quote);
  const size_t begin = is_text ? quote.size() : 0;
  const size_t stop = is_text ? ahead.find(quote, begin) : EndOfLiteral(ahead, Stops(), quote);
  if (stop == std::string_view::npos) return {};
  Step step = {State::kGoing, at + key_end.size() + stop + begin,
               JsonOf(key, ahead.substr(begin, stop - begin), is_text)};
  has_arguments_ = true;
  return step;
}

MarkedArguments::Step MarkedArguments::ReadPython(std::string_view text) const {
  const size_t end = EndOfLiteral(text, ")");
  if (end == std::string_view::npos) return {};
  // As a dictionary whose keys have no quotes.
  std::string json = "{";
  size_t pos = 0;
  while (true) {
    pos = std::min(text.find_first_not_of(" \t\r\n,", pos), end);
    if (pos == end) break;
    const size_t equals = text.find('=', pos);
    if (equals >= end) return {State::kMalformed, 0, ""};
    size_t stop = equals + 1;
    for (std::string value; stop <= end; ++stop) {
      if (stop < end && text[stop] != ',') continue;
      value = JsonOfLiteral(text.substr(equals + 1, stop - equals - 1));
      if (value.empty()) continue;
      json += json.size() > 1 ? ", " : "";
      json += Dumped(Json(std::string(TrimBlanks(text.substr(pos, equals - pos))))) + ": " + value;
      break;
    }
    if (stop > end) return {State::kMalformed, 0, ""};
    pos = stop;
  }
  return {State::kDone, end, json + "}"};
}

}  // namespace kvlathe
