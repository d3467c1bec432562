#include "chat/reading/literals.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "chat/reading/text_compare.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxLiteralDepth = 32;

// A reader of one literal; any error leaves it failed.
class LiteralReader {
 public:
  LiteralReader(std::string_view text, std::string_view quote) : text_(text), quote_(quote) {}

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
    if (failed_ || pos_ >= text_.size() || depth > kMaxLiteralDepth) return Fail();
    const char c = text_[pos_];
    if (!quote_.empty() && text_.substr(pos_).starts_with(quote_)) return ReadMarkedText();
    if (c == '\'' || c == '"') return ReadText(c);
    if (c == '[' || c == '(') return ReadList(depth);
    if (c == '{') return ReadDictionary(depth);
    return ReadWord();
  }

  Json ReadMarkedText() {
    const size_t begin = pos_ + quote_.size(), end = text_.find(quote_, begin);
    if (end == std::string_view::npos) return Fail();
    pos_ = end + quote_.size();
    return std::string(text_.substr(begin, end - begin));
  }

  Json ReadText(char quote) {
    const size_t begin = pos_;
    std::string text;
    for (++pos_; pos_ < text_.size(); ++pos_) {
      char c = text_[pos_];
      if (c == quote) {
        ++pos_;
        // Where it is JSON, all of its escapes are known.
        Json json = quote == '"' ? Json::parse(text_.substr(begin, pos_ - begin), nullptr, false)
                                 : Json(Json::value_t::discarded);
        return json.is_string() ? json : Json(std::move(text));
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
      if (!Takes(',') && !Takes(close)) return Fail();
      if (text_[pos_ - 1] == close) return list;
    }
    return Fail();
  }

  Json ReadDictionary(int depth) {
    ++pos_;
    Json object = Json::object();
    while (!failed_) {
      if (Takes('}')) return object;
      const std::string key = ReadKey(depth);
      if (failed_ || !Takes(':')) return Fail();
      object[key] = ReadValue(depth + 1);
      if (Takes(',')) continue;
      if (Takes('}')) return object;
      return Fail();
    }
    return Fail();
  }

  std::string ReadKey(int depth) {
    SkipBlanks();
    const std::string_view rest = text_.substr(pos_);
    if (rest.empty() || rest[0] == '\'' || rest[0] == '"' ||
        (!quote_.empty() && rest.starts_with(quote_))) {
      const Json key = ReadValue(depth + 1);
      if (!failed_ && key.is_string()) return key.get<std::string>();
      Fail();
      return "";
    }
    return std::string(Word());
  }

  std::string_view Word() {
    const size_t begin = pos_;
    while (pos_ < text_.size() && kBlanks.find(text_[pos_]) == std::string_view::npos &&
           std::string_view(",:[]{}()").find(text_[pos_]) == std::string_view::npos) {
      ++pos_;
    }
    return text_.substr(begin, pos_ - begin);
  }

  Json ReadWord() {
    const std::string word(Word());
    if (word == "True" || word == "true") return true;
    if (word == "False" || word == "false") return false;
    if (word == "None" || word == "null") return nullptr;
    Json number = Json::parse(word, nullptr, /*allow_exceptions=*/false);
    return number.is_number() ? number : Fail();
  }

  std::string_view text_, quote_;
  size_t pos_ = 0;
  bool failed_ = false;
};

}  // namespace

std::string JsonOfLiteral(std::string_view literal, std::string_view quote) {
  const std::optional<Json> value = LiteralReader(literal, quote).ReadAll();
  return value ? value->dump(-1, ' ', false, Json::error_handler_t::replace) : std::string();
}

size_t EndOfLiteral(std::string_view text, std::string_view stops, std::string_view quote) {
  std::string open;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (!quote.empty() && text.substr(i).starts_with(quote)) {
      const size_t end = text.find(quote, i + quote.size());
      if (end == std::string_view::npos) return end;
      i = end + quote.size() - 1;
    } else if (quote.empty() && (c == '\'' || c == '"')) {
      for (++i; i < text.size() && text[i] != c; ++i) {
        if (text[i] == '\\') ++i;
      }
    } else if (open.empty() && stops.find(c) != std::string_view::npos) {
      return i;
    } else if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (!open.empty() && c == open.back()) {
      open.pop_back();
    }
  }
  return std::string_view::npos;
}

}  // namespace kvlathe
