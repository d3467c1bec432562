#include "tokenizer/splitting/regex_spelling.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "tokenizer/splitting/char_set.h"
#include "tokenizer/utf8.h"

namespace kvlathe {
namespace {

// What \w matches. Oniguruma counts the fractions and raised digits of Latin-1 too, Rust the join
// controls.
constexpr std::string_view kOnigurumaWord =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";
constexpr std::string_view kRustWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D})";

bool IsAsciiLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }

// A backslash with what belongs to it: a set of characters, or the spelling of something else.
struct Escaped {
  std::optional<CharSet> set;
  std::string text;
};

class Speller {
 public:
  Speller(std::string_view pattern, RegexSyntax syntax) : pattern_(pattern), syntax_(syntax) {}

  StatusOr<std::string> Spell() {
    while (pos_ < pattern_.size()) KVL_RETURN_IF_ERROR(SpellNext());
    return out_;
  }

 private:
  bool is_oniguruma() const { return syntax_ == RegexSyntax::kOniguruma; }
  bool StartsWith(std::string_view text) const { return pattern_.substr(pos_).starts_with(text); }

  Status Unsupported(std::string_view what) const {
    return Error(StatusCode::kUnimplemented, "\"{}\" is not supported", what);
  }

  void AddAtom(std::string_view text) {
    atom_begin_ = out_.size();
    out_ += text;
  }

  Status SpellNext() {
    const char c = pattern_[pos_];
    if (c == '\\') {
      KVL_ASSIGN_OR_RETURN(const Escaped escaped, ReadEscape(/*in_set=*/false));
      AddAtom(escaped.set ? escaped.set->Expression() : escaped.text);
    } else if (c == '[') {
      ++pos_;
      KVL_ASSIGN_OR_RETURN(const CharSet set, ReadSet(/*depth=*/0));
      AddAtom(set.Expression());
    } else if (c == '(') {
      return SpellGroupStart();
    } else if (c == ')') {
      ++pos_;
      if (group_begins_.empty()) return Error(StatusCode::kDataLoss, "\")\" without \"(\"");
      atom_begin_ = group_begins_.back();
      group_begins_.pop_back();
      out_ += ')';
    } else if (c == '*' || c == '+' || c == '?') {
      ++pos_;
      out_ += c;
      AppendSuffix();
    } else if (c == '{') {
      SpellBraces();
    } else {
      const auto n_bytes = static_cast<size_t>(ReadAsciiOrUtf8(pattern_, pos_).n_bytes);
      AddAtom(pattern_.substr(pos_, n_bytes));
      pos_ += n_bytes;
    }
    return OkStatus();
  }

  // Lazy or possessive.
  void AppendSuffix() {
    if (StartsWith("?") || StartsWith("+")) out_ += pattern_[pos_++];
  }

  // {2}, {2,}, {,3} or {2,3}; anything else is text.
  void SpellBraces() {
    const size_t end = pattern_.find('}', pos_);
    const std::string_view inner =
        end == std::string_view::npos ? "" : pattern_.substr(pos_ + 1, end - pos_ - 1);
    const bool is_number =
        std::ranges::all_of(inner, [](char c) { return IsAsciiDigit(c) || c == ','; });
    if (!is_number || inner.empty() || inner == "," || std::ranges::count(inner, ',') > 1) {
      ++pos_;
      AddAtom("\\{");
      return;
    }
    pos_ = end + 1;
    out_.append("{").append(inner.starts_with(',') ? "0" : "").append(inner).append("}");
    const bool is_exact = inner.find(',') == std::string_view::npos;
    // Oniguruma repeats the whole for "+", and makes the whole optional for "?" behind one number.
    const bool repeats = is_oniguruma() && (StartsWith("+") || (is_exact && StartsWith("?")));
    if (!repeats) return AppendSuffix();
    out_.insert(atom_begin_, "(?:");
    out_ += ')';
    out_ += pattern_[pos_++];
  }

  Status SpellGroupStart() {
    const size_t begin = out_.size();
    for (const std::string_view plain : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (!StartsWith(plain)) continue;
      out_ += plain;
      pos_ += plain.size();
      group_begins_.push_back(begin);
      return OkStatus();
    }
    if (!StartsWith("(?")) {
      out_ += '(';
      ++pos_;
      group_begins_.push_back(begin);
      return OkStatus();
    }
    if (StartsWith("(?#")) {
      pos_ = std::min(pattern_.find(')', pos_), pattern_.size() - 1) + 1;
      return OkStatus();
    }
    if (StartsWith("(?<") || StartsWith("(?P<")) {
      pos_ = std::min(pattern_.find('>', pos_), pattern_.size() - 1) + 1;
      out_ += "(?:";
      group_begins_.push_back(begin);
      return OkStatus();
    }
    return SpellFlags();
  }

  // (?i) and (?i:
  Status SpellFlags() {
    const size_t begin = out_.size();
    std::string flags = "(?";
    for (pos_ += 2; pos_ < pattern_.size(); ++pos_) {
      const char c = pattern_[pos_];
      if (c == ':' || c == ')') break;
      if (c == 'i' || c == '-' || (c == 's' && !is_oniguruma())) {
        flags += c;
      } else if (c == 'm') {
        flags += is_oniguruma() ? 's' : 'm';
      } else if (c != 'u' || is_oniguruma()) {
        return Unsupported(fmt::format("(?{}", c));
      }
    }
    if (pos_ == pattern_.size()) return Error(StatusCode::kDataLoss, "\"(?\" without an end");
    out_ += flags;
    out_ += pattern_[pos_];
    if (pattern_[pos_++] == ':') group_begins_.push_back(begin);
    return OkStatus();
  }

  CharSet WordSet() const { return CharSet(is_oniguruma() ? kOnigurumaWord : kRustWord); }

  // \b and \B by what stands on both sides.
  std::string WordEdge(bool is_edge) const {
    const std::string word = WordSet().Expression();
    return is_edge ? fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word)
                   : fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word);
  }

  StatusOr<Escaped> ReadEscape(bool in_set) {
    if (pos_ + 1 >= pattern_.size()) return Error(StatusCode::kDataLoss, "\"\\\" at the end");
    const char c = pattern_[pos_ + 1];
    if (static_cast<unsigned char>(c) >= 0x80) {
      const Utf8Char character = ReadUtf8(pattern_, ++pos_);
      pos_ += character.n_bytes;
      return Escaped{.text =
                         std::string(pattern_.substr(pos_ - character.n_bytes, character.n_bytes))};
    }
    if (c == 'p' || c == 'P') return ReadProperty();
    if (c == 'x' || (c == 'u' && is_oniguruma())) return ReadCode();
    pos_ += 2;
    if (std::optional<CharSet> set = SetOf(c)) return Escaped{.set = std::move(set)};
    if (!IsAsciiLetter(c) && !IsAsciiDigit(c)) return Escaped{.text = {'\\', c}};
    if (std::string_view("nrtfae").find(c) != std::string_view::npos) {
      return Escaped{.text = {'\\', c}};
    }
    if (c == 'v') return Escaped{.text = R"(\x0B)"};
    if (in_set) return c == 'b' ? Escaped{.text = R"(\x08)"} : ReadOtherLetter(c);
    switch (c) {
      case 'b':
      case 'B':
        return Escaped{.text = WordEdge(c == 'b')};
      case 'A':
      case 'z':
      case 'Z':
      case 'X':
        return Escaped{.text = {'\\', c}};
      case 'R':
        return Escaped{.text = R"((?>\r\n|[\n-\r\x{85}\x{2028}\x{2029}]))"};
      default:
        return ReadOtherLetter(c);
    }
  }

  // Letters without a meaning stand for themselves. Digits refer to groups.
  StatusOr<Escaped> ReadOtherLetter(char c) const {
    constexpr std::string_view kMeaningful = "BGKNOXRYygkcCMABZz";
    if (IsAsciiDigit(c) || kMeaningful.find(c) != std::string_view::npos) {
      return Unsupported(std::string("\\") + c);
    }
    return Escaped{.text = std::string(1, c)};
  }

  std::optional<CharSet> SetOf(char c) const {
    CharSet set;
    switch (c) {
      case 's':
      case 'S':
        set = SpaceSet();
        break;
      case 'd':
      case 'D':
        set = CharSet(R"(\p{Nd})");
        break;
      case 'w':
      case 'W':
        set = WordSet();
        break;
      case 'h':
      case 'H':
        if (!is_oniguruma()) return std::nullopt;
        set = CharSet("0-9A-Fa-f");
        break;
      default:
        return std::nullopt;
    }
    if (c < 'a') set.Negate();
    return set;
  }

  StatusOr<Escaped> ReadProperty() {
    bool is_negated = pattern_[pos_ + 1] == 'P';
    pos_ += 2;
    std::string_view name = pattern_.substr(pos_, 1);
    if (name == "{") {
      const size_t end = pattern_.find('}', pos_);
      if (end == std::string_view::npos) {
        return Error(StatusCode::kDataLoss, "\"\\p{{\" without an end");
      }
      name = pattern_.substr(pos_ + 1, end - pos_ - 1);
      pos_ = end + 1;
      if (name.starts_with('^')) {
        is_negated = !is_negated;
        name.remove_prefix(1);
      }
    } else {
      pos_ += name.size();
    }
    const bool is_name = !name.empty() && std::ranges::all_of(name, [](char c) {
      return IsAsciiLetter(c) || c == '_' || c == ' ' || c == '=';
    });
    if (!is_name) return Unsupported(fmt::format("\\p{{{}}}", name));
    CharSet set = PropertySet(name);
    if (is_negated) set.Negate();
    return Escaped{.set = std::move(set)};
  }

  // \x41, \x{1F600} or \u00E9.
  StatusOr<Escaped> ReadCode() {
    const bool has_braces = pattern_.substr(pos_ + 2).starts_with('{');
    const size_t begin = pos_ + (has_braces ? 3 : 2);
    size_t end = begin;
    const size_t most = has_braces ? 8 : pattern_[pos_ + 1] == 'u' ? 4 : 2;
    while (end < pattern_.size() && end < begin + most &&
           std::isxdigit(static_cast<unsigned char>(pattern_[end])) != 0) {
      ++end;
    }
    uint32_t code = 0;
    const std::string_view digits = pattern_.substr(begin, end - begin);
    const auto [stop, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    const bool is_closed = !has_braces || pattern_.substr(end).starts_with('}');
    const bool is_short = pattern_[pos_ + 1] == 'u' && !has_braces && digits.size() != 4;
    if (error != std::errc() || !is_closed || is_short) {
      return Error(StatusCode::kDataLoss, "\"{}\" is no code of a character",
                   pattern_.substr(pos_, end - pos_));
    }
    // Two digits are a byte to Oniguruma, a character to Rust.
    if (is_oniguruma() && !has_braces && most == 2 && code >= 0x80) {
      return Unsupported(pattern_.substr(pos_, end - pos_));
    }
    pos_ = end + (has_braces ? 1 : 0);
    return Escaped{.text = fmt::format("\\x{{{:X}}}", code)};
  }

  // A member that is one character, spelled for a bracket; a set is added to *set instead.
  StatusOr<std::optional<std::string>> ReadMember(CharSet* set) {
    const char c = pattern_[pos_];
    if (c == '\\') {
      KVL_ASSIGN_OR_RETURN(const Escaped escaped, ReadEscape(/*in_set=*/true));
      if (!escaped.set) return escaped.text;
      set->AddSet(*escaped.set);
      return std::nullopt;
    }
    const auto n_bytes = static_cast<size_t>(ReadAsciiOrUtf8(pattern_, pos_).n_bytes);
    std::string text(pattern_.substr(pos_, n_bytes));
    pos_ += n_bytes;
    const bool is_sign =
        static_cast<unsigned char>(c) < 0x80 && !IsAsciiLetter(c) && !IsAsciiDigit(c);
    // Control characters may stand as they are.
    return is_sign && c > ' ' ? "\\" + text : text;
  }

  // [:alpha:] and [:^alpha:]
  bool ReadPosixSet(CharSet* set) {
    if (!StartsWith("[:")) return false;
    const size_t end = pattern_.find(":]", pos_ + 2);
    if (end == std::string_view::npos) return false;
    std::string_view name = pattern_.substr(pos_ + 2, end - pos_ - 2);
    const bool is_negated = name.starts_with('^');
    if (is_negated) name.remove_prefix(1);
    constexpr std::string_view kNames[] = {"alpha", "alnum", "digit", "space",  "upper",
                                           "lower", "punct", "cntrl", "xdigit", "word"};
    if (std::ranges::find(kNames, name) == std::end(kNames)) return false;
    CharSet named = name == "word" ? WordSet() : PropertySet(name);
    if (name == "punct") named.AddMembers("$+<=>^`|~");
    if (is_negated) named.Negate();
    set->AddSet(named);
    pos_ = end + 2;
    return true;
  }

  // A class whose bracket is open, through its end.
  StatusOr<CharSet> ReadSet(int depth) {
    constexpr int kMaxDepth = 20;
    if (depth > kMaxDepth) return Unsupported("a set in a set in a set ...");
    const bool is_negated = StartsWith("^");
    if (is_negated) ++pos_;
    std::optional<CharSet> left;  // of "&&"
    CharSet set;
    for (bool is_first = true; !StartsWith("]") || is_first; is_first = false) {
      if (pos_ >= pattern_.size()) return Error(StatusCode::kDataLoss, "\"[\" without an end");
      if (StartsWith("&&")) {
        pos_ += 2;
        if (left) set.IntersectWith(*left);
        left = std::exchange(set, CharSet());
      } else if (StartsWith("[")) {
        if (ReadPosixSet(&set)) continue;
        ++pos_;
        KVL_ASSIGN_OR_RETURN(const CharSet nested, ReadSet(depth + 1));
        set.AddSet(nested);
      } else {
        KVL_RETURN_IF_ERROR(ReadRange(&set));
      }
    }
    ++pos_;
    if (set.empty()) return Error(StatusCode::kDataLoss, "a set has no characters");
    if (left) set.IntersectWith(*left);
    if (is_negated) set.Negate();
    return set;
  }

  // One character, or a first and a last one.
  Status ReadRange(CharSet* set) {
    KVL_ASSIGN_OR_RETURN(const std::optional<std::string> first, ReadMember(set));
    if (!first) return OkStatus();
    set->AddMembers(*first);
    const bool is_range = StartsWith("-") && pos_ + 1 < pattern_.size() &&
                          pattern_[pos_ + 1] != ']' && pattern_[pos_ + 1] != '[';
    if (!is_range) return OkStatus();
    ++pos_;
    CharSet named;
    KVL_ASSIGN_OR_RETURN(const std::optional<std::string> last, ReadMember(&named));
    if (last) {
      set->AddMembers("-" + *last);
    } else {  // a hyphen before a set is one
      set->AddMembers("\\-");
      set->AddSet(named);
    }
    return OkStatus();
  }

  std::string_view pattern_;
  RegexSyntax syntax_;
  size_t pos_ = 0;
  std::string out_;
  size_t atom_begin_ = 0;  // where in out_ the last thing that can be repeated begins
  std::vector<size_t> group_begins_;
};

}  // namespace

StatusOr<std::string> SpellForPcre2(std::string_view pattern, RegexSyntax syntax) {
  return Speller(pattern, syntax).Spell();
}

}  // namespace kvlathe
