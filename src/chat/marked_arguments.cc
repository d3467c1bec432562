#include "chat/marked_arguments.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "chat/text_compare.h"
#include "tokenizer/normalizer.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxPythonDepth = 32;

// A reader of literals; any error leaves it failed.
class PythonReader {
 public:
  explicit PythonReader(std::string_view text) : text_(text) {}

  std::optional<Json> ReadAll() {
    Json value = ReadValue(0);
    SkipBlanks();
    if (failed_ || pos_ != text_.size()) return std::nullopt;
    return value;
  }

 private:
  void SkipBlanks() { pos_ = std::min(text_.find_first_not_of(kBlanks, pos_), text_.size()); }
  bool Takes(char c) {
    SkipBlanks();
    if (pos_ >= text_.size() || text_[pos_] != c) return false;
    ++pos_;
    return true;
  }
  Json Fail() {
    failed_ = true;
    return nullptr;
  }

  Json ReadValue(int depth) {
    SkipBlanks();
    if (failed_ || pos_ >= text_.size() || depth > kMaxPythonDepth) return Fail();
    const char c = text_[pos_];
    if (c == '\'' || c == '"') return ReadText(c);
    if (c == '[' || c == '(') return ReadList(depth);
    if (c == '{') return ReadDictionary(depth);
    return ReadWord();
  }

  Json ReadText(char quote) {
    std::string text;
    for (++pos_; pos_ < text_.size(); ++pos_) {
      char c = text_[pos_];
      if (c == quote) {
        ++pos_;
        return text;
      }
      if (c == '\\' && pos_ + 1 < text_.size()) {
        c = text_[++pos_];
        if (c == 'n')
          c = '\n';
        else if (c == 't')
          c = '\t';
        else if (c == 'r')
          c = '\r';
        else if (c != '\\' && c != '\'' && c != '"')
          text += '\\';
      }
      text += c;
    }
    return Fail();
  }

  Json ReadList(int depth) {
    const char close = text_[pos_++] == '[' ? ']' : ')';
    Json list = Json::array();
    while (!failed_) {
      if (Takes(close)) return list;
      list.push_back(ReadValue(depth + 1));
      if (!Takes(',') && !(Takes(close))) return Fail();
      if (text_[pos_ - 1] == close) return list;
    }
    return Fail();
  }

  Json ReadDictionary(int depth) {
    ++pos_;
    Json object = Json::object();
    while (!failed_) {
      if (Takes('}')) return object;
      const Json key = ReadValue(depth + 1);
      if (failed_ || !key.is_string() || !Takes(':')) return Fail();
      object[key.get<std::string>()] = ReadValue(depth + 1);
      if (Takes(',')) continue;
      if (Takes('}')) return object;
      return Fail();
    }
    return Fail();
  }

  Json ReadWord() {
    const size_t begin = pos_;
    while (pos_ < text_.size() && kBlanks.find(text_[pos_]) == std::string_view::npos &&
           std::string_view(",:]})").find(text_[pos_]) == std::string_view::npos) {
      ++pos_;
    }
    const std::string word(text_.substr(begin, pos_ - begin));
    if (word == "True" || word == "true") return true;
    if (word == "False" || word == "false") return false;
    if (word == "None" || word == "null") return nullptr;
    Json number = Json::parse(word, nullptr, /*allow_exceptions=*/false);
    return number.is_number() ? number : Fail();
  }

  std::string_view text_;
  size_t pos_ = 0;
  bool failed_ = false;
};

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

std::string Dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Behind the closing bracket of an opening one that stands in front of `text`; npos: not there yet.
size_t EndOfBrackets(std::string_view text, char close) {
  std::string open(1, close);
  char quote = '\0';
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != '\0') {
      if (c == '\\')
        ++i;
      else if (c == quote)
        quote = '\0';
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (!open.empty() && c == open.back()) {
      open.pop_back();
      if (open.empty()) return i;
    }
  }
  return std::string_view::npos;
}

}  // namespace

std::string JsonOfPython(std::string_view literal) {
  const std::optional<Json> value = PythonReader(literal).ReadAll();
  return value ? Dumped(*value) : std::string();
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
  if (schema_ != nullptr && schema_->is_object() && schema_->contains("properties")) {
    const Json& properties = (*schema_)["properties"];
    if (properties.is_object() && properties.contains(key) && properties[key].is_object() &&
        properties[key].contains("type")) {
      return properties[key]["type"] == "string";
    }
  }
  return !Json::accept(value) && JsonOfPython(value).empty();
}

std::string MarkedArguments::JsonOf(const std::string& key, std::string_view value,
                                    bool is_text) const {
  std::string json = has_arguments_ ? ", " : "{";
  json += Dumped(Json(key)) + ": ";
  if (is_text) return json + Dumped(Json(std::string(value)));
  const std::string in_quotes =
      format_.text_quote.empty() ? std::string(value) : ReplaceAll(value, format_.text_quote, "\"");
  const std::string_view trimmed = TrimBlanks(in_quotes);
  if (Json::accept(trimmed)) return json + std::string(trimmed);
  const std::string of_python = JsonOfPython(trimmed);
  return json + (of_python.empty() ? Dumped(Json(std::string(value))) : of_python);
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
  const std::string_view plain = TrimBlanks(format_.key_end);
  const std::string_view other = TrimBlanks(format_.key_end_other);
  const bool has_quote = !format_.text_quote.empty();
  const size_t at_plain = text.find(has_quote ? other : plain, key_pos);
  const size_t at_other = other.empty() || has_quote ? at_plain : text.find(other, key_pos);
  const size_t key_end = std::min(at_plain, at_other);
  if (key_end == std::string_view::npos) return {};
  const bool is_other = !other.empty() && !has_quote && at_other < at_plain;
  const std::string key(TrimBlanks(text.substr(key_pos, key_end - key_pos)));
  size_t value_begin = key_end + (has_quote || is_other ? other : plain).size();
  bool is_text = !is_other && !other.empty();
  std::string value_end(TrimBlanks(format_.value_end));
  if (has_quote) {
    const std::string_view ahead = text.substr(value_begin);
    if (ahead.size() < format_.text_quote.size() && format_.text_quote.starts_with(ahead))
      return {};
    is_text = ahead.starts_with(format_.text_quote);
    if (is_text) {
      value_begin += format_.text_quote.size();
      value_end = format_.text_quote;
    }
  }
  size_t value_stop = std::string_view::npos, behind = value_stop;
  if (!value_end.empty()) {
    value_stop = text.find(value_end, value_begin);
    behind = value_stop + value_end.size();
  } else {  // it ends where the next or the end of all begins
    const std::string_view ahead = text.substr(value_begin);
    const char bracket = format_.call_end.empty() ? '}' : TrimBlanks(format_.call_end).front();
    const size_t comma = ahead.find(','), close = EndOfBrackets(ahead, bracket);
    const bool is_nested = !ahead.empty() && (ahead[0] == '[' || ahead[0] == '{');
    const size_t at = is_nested ? close : std::min(comma, close);
    if (at != std::string_view::npos) value_stop = behind = value_begin + at;
  }
  if (value_stop == std::string_view::npos) return {};
  std::string_view value = text.substr(value_begin, value_stop - value_begin);
  if (!has_quote) {
    value = WithoutMarkBlanks(value, is_other ? format_.key_end_other : format_.key_end,
                              format_.value_end);
    if (format_.texts_are_json) {
      is_text = false;
    } else if (other.empty()) {
      is_text = IsText(key, value);
    }
  }
  Step step = {State::kGoing, behind, JsonOf(key, value, is_text)};
  has_arguments_ = true;
  return step;
}

MarkedArguments::Step MarkedArguments::ReadPython(std::string_view text) const {
  const size_t end = EndOfBrackets(text, ')');
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
      value = JsonOfPython(text.substr(equals + 1, stop - equals - 1));
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
