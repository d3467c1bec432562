#include "structured/text_pattern.h"

#include <algorithm>
#include <utility>

#include "tokenizer/utf8.h"

namespace kvlathe {
namespace {

constexpr char32_t kLastCode = 0x10FFFF;
constexpr CodeRange kSurrogates = {0xD800, 0xDFFF};
constexpr int kMostRepeats = 1 << 20;

CodeSet Ordered(CodeSet set) {
  std::ranges::sort(set, {}, &CodeRange::first);
  CodeSet ordered;
  for (const CodeRange& range : set) {
    if (!ordered.empty() && range.first <= ordered.back().last + 1) {
      ordered.back().last = std::max(ordered.back().last, range.last);
    } else {
      ordered.push_back(range);
    }
  }
  return ordered;
}

// `set` is ordered.
CodeSet AllBut(const CodeSet& set) {
  CodeSet rest;
  char32_t next = 0;
  for (const CodeRange& range : set) {
    if (range.first > next) rest.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCode) rest.push_back({next, kLastCode});
  return rest;
}

CodeSet Less(const CodeSet& set, CodeSet taken) {
  for (const CodeRange& range : AllBut(set)) taken.push_back(range);
  return AllBut(Ordered(std::move(taken)));
}

const CodeSet& DigitCodes() {
  static const CodeSet codes = {{'0', '9'}};
  return codes;
}
const CodeSet& WordCodes() {
  static const CodeSet codes = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return codes;
}
const CodeSet& SpaceCodes() {
  static const CodeSet codes = {
      {0x09, 0x0D},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
      {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return codes;
}
const CodeSet& LineEndCodes() {
  static const CodeSet codes = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  return codes;
}

PatternNode OfCodes(CodeSet set) {
  PatternNode node;
  node.kind = PatternNode::Kind::kSet;
  node.set = Less(set, {kSurrogates});
  return node;
}

class PatternParser {
 public:
  explicit PatternParser(std::string_view pattern) : pattern_(pattern) {}

  StatusOr<PatternNode> Parse() {
    for (size_t pos = 0; pos < pattern_.size();) {
      const Utf8Char next = ReadUtf8(pattern_, pos);
      if (next.state != Utf8Char::State::kWhole) return Refused("is not UTF-8");
      codes_.push_back(next.code);
      pos += static_cast<size_t>(next.n_bytes);
    }
    KVL_ASSIGN_OR_RETURN(PatternNode all, ParseChoice(true, true));
    if (!AtEnd()) return Refused("has a ')' without a '('");
    return all;
  }

 private:
  Status Refused(std::string_view why) const {
    return Error(StatusCode::kInvalidArgument, "the pattern '{}' {}", pattern_, why);
  }
  bool AtEnd() const { return pos_ == codes_.size(); }
  char32_t Peek(size_t ahead = 0) const {
    return pos_ + ahead < codes_.size() ? codes_[pos_ + ahead] : 0;
  }
  bool Take(char32_t code) {
    if (AtEnd() || codes_[pos_] != code) return false;
    ++pos_;
    return true;
  }

  StatusOr<PatternNode> ParseChoice(bool begins_text, bool ends_text);
  StatusOr<PatternNode> ParseSequence(bool begins_text, bool ends_text);
  StatusOr<PatternNode> ParseAtom(bool begins_text, bool ends_text);
  StatusOr<PatternNode> ParseGroup(bool begins_text, bool ends_text);
  StatusOr<PatternNode> ParseRepeats(PatternNode atom);
  StatusOr<CodeSet> ParseClass();
  StatusOr<CodeSet> ParseEscape(bool in_class);
  StatusOr<char32_t> ParseHex(int n_digits);
  // A number of at least one digit; kMostRepeats where it is larger.
  std::optional<int> TakeNumber();

  std::string_view pattern_;
  std::u32string codes_;
  size_t pos_ = 0;
};

StatusOr<PatternNode> PatternParser::ParseChoice(bool begins_text, bool ends_text) {
  PatternNode choice;
  choice.kind = PatternNode::Kind::kChoice;
  do {
    KVL_ASSIGN_OR_RETURN(PatternNode part, ParseSequence(begins_text, ends_text));
    choice.parts.push_back(std::move(part));
  } while (Take('|'));
  return choice.parts.size() == 1 ? std::move(choice.parts[0]) : std::move(choice);
}

StatusOr<PatternNode> PatternParser::ParseSequence(bool begins_text, bool ends_text) {
  PatternNode sequence;
  while (!AtEnd() && Peek() != '|' && Peek() != ')') {
    if (Take('^')) {
      if (!begins_text || !sequence.parts.empty()) {
        return Refused("has a '^' that is not at its beginning");
      }
      continue;
    }
    if (Take('$')) {
      if (!ends_text || (!AtEnd() && Peek() != '|' && Peek() != ')')) {
        return Refused("has a '$' that is not at its end");
      }
      continue;
    }
    KVL_ASSIGN_OR_RETURN(PatternNode atom,
                         ParseAtom(begins_text && sequence.parts.empty(), ends_text));
    sequence.parts.push_back(std::move(atom));
  }
  return sequence;
}

StatusOr<PatternNode> PatternParser::ParseAtom(bool begins_text, bool ends_text) {
  if (Take('(')) {
    // Only a group that nothing follows may end the text.
    int depth = 1;
    size_t end = pos_;
    for (bool in_class = false; end < codes_.size() && depth > 0; ++end) {
      const char32_t code = codes_[end];
      if (code == '\\') {
        ++end;
      } else if (in_class) {
        in_class = code != ']';
      } else {
        in_class = code == '[';
        depth += static_cast<int>(code == '(') - static_cast<int>(code == ')');
      }
    }
    const bool is_last =
        end >= codes_.size() || codes_[end] == '|' || codes_[end] == ')' || codes_[end] == '$';
    KVL_ASSIGN_OR_RETURN(PatternNode group, ParseGroup(begins_text, ends_text && is_last));
    return ParseRepeats(std::move(group));
  }
  if (Take('[')) {
    KVL_ASSIGN_OR_RETURN(CodeSet set, ParseClass());
    return ParseRepeats(OfCodes(std::move(set)));
  }
  if (Take('\\')) {
    KVL_ASSIGN_OR_RETURN(CodeSet set, ParseEscape(/*in_class=*/false));
    return ParseRepeats(OfCodes(std::move(set)));
  }
  if (Take('.')) return ParseRepeats(OfCodes(AllBut(LineEndCodes())));
  const char32_t code = Peek();
  if (code == '*' || code == '+' || code == '?') return Refused("repeats nothing");
  ++pos_;
  return ParseRepeats(OfCodes({{code, code}}));
}

StatusOr<PatternNode> PatternParser::ParseGroup(bool begins_text, bool ends_text) {
  if (Take('?')) {
    if (Take('<')) {
      if (Peek() == '=' || Peek() == '!') return Refused("looks behind, which is not supported");
      while (!AtEnd() && Peek() != '>') ++pos_;
      if (!Take('>')) return Refused("has a name of a group without its end");
    } else if (Peek() == '=' || Peek() == '!') {
      return Refused("looks ahead, which is not supported");
    } else if (!Take(':')) {
      return Refused("has a group of a kind that is not supported");
    }
  }
  KVL_ASSIGN_OR_RETURN(PatternNode inner, ParseChoice(begins_text, ends_text));
  if (!Take(')')) return Refused("has a '(' without a ')'");
  return inner;
}

std::optional<int> PatternParser::TakeNumber() {
  if (Peek() < '0' || Peek() > '9') return std::nullopt;
  int number = 0;
  for (; Peek() >= '0' && Peek() <= '9'; ++pos_) {
    number = std::min(kMostRepeats, 10 * number + static_cast<int>(Peek() - '0'));
  }
  return number;
}

StatusOr<PatternNode> PatternParser::ParseRepeats(PatternNode atom) {
  PatternNode repeat;
  repeat.kind = PatternNode::Kind::kRepeat;
  const size_t begin = pos_;
  if (Take('*')) {
  } else if (Take('+')) {
    repeat.least = 1;
  } else if (Take('?')) {
    repeat.most = 1;
  } else if (Take('{')) {
    const std::optional<int> least = TakeNumber();
    const bool has_comma = Take(',');
    const std::optional<int> most = has_comma ? TakeNumber() : least;
    if (!least || !Take('}')) {
      pos_ = begin;
      return Refused("has a '{' that is no {n}, {n,} or {n,m}; write \\{");
    }
    repeat.least = *least;
    repeat.most = most.value_or(PatternNode::kUnbounded);
    if (most && *most < *least) return Refused("repeats at most fewer times than at least");
  } else {
    return atom;
  }
  Take('?');  // as many or as few: the texts are the same
  const char32_t next = Peek();
  if (!AtEnd() && (next == '*' || next == '+' || next == '?' || next == '{')) {
    return Refused("repeats a repetition without a group");
  }
  repeat.parts.push_back(std::move(atom));
  return repeat;
}

StatusOr<CodeSet> PatternParser::ParseClass() {
  const bool is_negated = Take('^');
  CodeSet set;
  while (!AtEnd() && Peek() != ']') {
    const auto member = [&]() -> StatusOr<CodeSet> {
      if (Take('\\')) return ParseEscape(/*in_class=*/true);
      ++pos_;
      return CodeSet{{codes_[pos_ - 1], codes_[pos_ - 1]}};
    };
    KVL_ASSIGN_OR_RETURN(CodeSet first, member());
    const auto is_one = [](const CodeSet& of) {
      return of.size() == 1 && of[0].first == of[0].last;
    };
    if (Peek() == '-' && pos_ + 1 < codes_.size() && Peek(1) != ']' && is_one(first)) {
      ++pos_;
      KVL_ASSIGN_OR_RETURN(const CodeSet last, member());
      if (!is_one(last)) return Refused("has a range that ends with a class");
      if (last[0].first < first[0].first) return Refused("has a range that ends before it begins");
      first[0].last = last[0].first;
    }
    set.insert(set.end(), first.begin(), first.end());
  }
  if (!Take(']')) return Refused("has a '[' without a ']'");
  set = Ordered(std::move(set));
  return is_negated ? AllBut(set) : set;
}

StatusOr<char32_t> PatternParser::ParseHex(int n_digits) {
  char32_t code = 0;
  const bool has_braces = n_digits == 4 && Take('{');
  int n_read = 0;
  for (; !AtEnd() && n_read < (has_braces ? 6 : n_digits); ++n_read, ++pos_) {
    const char32_t c = Peek();
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && !(c >= 'a' && c <= 'f') && !(c >= 'A' && c <= 'F')) break;
    code = 16 * code + (is_digit ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  const bool is_whole = has_braces ? n_read > 0 && Take('}') : n_read == n_digits;
  if (!is_whole || code > kLastCode) return Refused("has a \\u or \\x without its digits");
  return code;
}

StatusOr<CodeSet> PatternParser::ParseEscape(bool in_class) {
  if (AtEnd()) return Refused("ends with a \\");
  const char32_t code = codes_[pos_++];
  const auto one = [](char32_t c) { return CodeSet{{c, c}}; };
  switch (code) {
    case 'd':
      return DigitCodes();
    case 'D':
      return AllBut(DigitCodes());
    case 'w':
      return WordCodes();
    case 'W':
      return AllBut(WordCodes());
    case 's':
      return SpaceCodes();
    case 'S':
      return AllBut(SpaceCodes());
    case 't':
      return one('\t');
    case 'n':
      return one('\n');
    case 'r':
      return one('\r');
    case 'f':
      return one('\f');
    case 'v':
      return one('\v');
    case '0':
      return one(0);
    case 'x': {
      KVL_ASSIGN_OR_RETURN(const char32_t hex, ParseHex(2));
      return one(hex);
    }
    case 'u': {
      KVL_ASSIGN_OR_RETURN(char32_t hex, ParseHex(4));
      if (hex >= 0xD800 && hex <= 0xDBFF && Peek() == '\\' && Peek(1) == 'u') {
        pos_ += 2;
        KVL_ASSIGN_OR_RETURN(const char32_t low, ParseHex(4));
        if (low < 0xDC00 || low > 0xDFFF) return Refused("has half of a surrogate pair");
        hex = 0x10000 + ((hex - 0xD800) << 10) + (low - 0xDC00);
      }
      return one(hex);
    }
    case 'c': {
      const char32_t letter = Peek() | 0x20;
      if (letter < 'a' || letter > 'z') return Refused("has a \\c without a letter");
      ++pos_;
      return one(letter - 'a' + 1);
    }
    case 'b':
      if (in_class) return one('\b');
      return Refused("has \\b, which is not supported");
    default:
      break;
  }
  const bool is_letter = (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
  if (is_letter || (code >= '1' && code <= '9')) {
    return Refused(fmt::format("has \\{}, which is not supported", static_cast<char>(code)));
  }
  return one(code);
}

std::optional<std::string> RepeatedWithout(const PatternNode& node) {
  std::optional<std::string> inner = WithoutEscapedCharacters(node.parts[0]);
  if (!inner) return node.least == 0 ? std::optional<std::string>("") : std::nullopt;
  if (node.most == 0) return "";
  const std::string most = node.most == PatternNode::kUnbounded ? "" : std::to_string(node.most);
  return "(?:" + *inner + "){" + std::to_string(node.least) + "," + most + "}";
}

}  // namespace

StatusOr<PatternNode> ParsePattern(std::string_view pattern) {
  return PatternParser(pattern).Parse();
}

std::optional<std::string> WithoutEscapedCharacters(const PatternNode& node) {
  switch (node.kind) {
    case PatternNode::Kind::kSet: {
      const CodeSet set = Less(node.set, {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
      if (set.empty()) return std::nullopt;
      std::string text = "[";
      for (const CodeRange& range : set) {
        text += fmt::format("\\u{{{:x}}}-\\u{{{:x}}}", static_cast<uint32_t>(range.first),
                            static_cast<uint32_t>(range.last));
      }
      return text + "]";
    }
    case PatternNode::Kind::kSequence: {
      std::string text;
      for (const PatternNode& part : node.parts) {
        const std::optional<std::string> inner = WithoutEscapedCharacters(part);
        if (!inner) return std::nullopt;
        text += part.kind == PatternNode::Kind::kChoice ? "(?:" + *inner + ")" : *inner;
      }
      return text;
    }
    case PatternNode::Kind::kChoice: {
      std::optional<std::string> text;
      for (const PatternNode& part : node.parts) {
        const std::optional<std::string> inner = WithoutEscapedCharacters(part);
        if (inner) text = text ? *text + "|" + *inner : *inner;
      }
      return text;
    }
    case PatternNode::Kind::kRepeat:
      return RepeatedWithout(node);
  }
  return std::nullopt;
}

}  // namespace kvlathe
