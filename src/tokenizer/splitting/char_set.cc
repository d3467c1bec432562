#include "tokenizer/splitting/char_set.h"

#include <algorithm>
#include <utility>

namespace kvlathe {
namespace {

constexpr std::string_view kWhiteSpace = R"(\t-\r\x85\p{Z})";
// Pictures that Unicode 15 and 16 call symbols, which Debian's PCRE2 (Unicode 14) does not know.
// Names of sets that tell symbols from what has no meaning (\p{S}) take emoji apart without them.
constexpr std::string_view kSymbols =
    R"(\p{S}\x{1F6DC}\x{1F774}-\x{1F776}\x{1F77B}-\x{1F77F}\x{1F7D9}\x{1F8B2}-\x{1F8BB}\x{1F8C0})"
    R"(\x{1F8C1}\x{1FA75}-\x{1FA77}\x{1FA87}-\x{1FA89}\x{1FA8F}\x{1FAAD}-\x{1FAAF})"
    R"(\x{1FABB}-\x{1FABF}\x{1FAC6}\x{1FACE}\x{1FACF}\x{1FADA}-\x{1FADC}\x{1FADF}\x{1FAE8})"
    R"(\x{1FAE9}\x{1FAF7}\x{1FAF8}\x{1FBCB}-\x{1FBEF})";

// Other names of general categories and of some properties, without case, spaces and underlines.
constexpr std::pair<std::string_view, std::string_view> kProperties[] = {
    {"letter", R"(\p{L})"},
    {"uppercaseletter", R"(\p{Lu})"},
    {"lowercaseletter", R"(\p{Ll})"},
    {"titlecaseletter", R"(\p{Lt})"},
    {"modifierletter", R"(\p{Lm})"},
    {"otherletter", R"(\p{Lo})"},
    {"mark", R"(\p{M})"},
    {"nonspacingmark", R"(\p{Mn})"},
    {"spacingmark", R"(\p{Mc})"},
    {"enclosingmark", R"(\p{Me})"},
    {"number", R"(\p{N})"},
    {"decimalnumber", R"(\p{Nd})"},
    {"letternumber", R"(\p{Nl})"},
    {"othernumber", R"(\p{No})"},
    {"punctuation", R"(\p{P})"},
    {"punct", R"(\p{P})"},
    {"symbol", kSymbols},
    {"s", kSymbols},
    {"mathsymbol", R"(\p{Sm})"},
    {"currencysymbol", R"(\p{Sc})"},
    {"modifiersymbol", R"(\p{Sk})"},
    {"othersymbol", R"(\p{So})"},
    {"separator", R"(\p{Z})"},
    {"spaceseparator", R"(\p{Zs})"},
    {"other", R"(\p{C})"},
    {"control", R"(\p{Cc})"},
    {"cntrl", R"(\p{Cc})"},
    {"format", R"(\p{Cf})"},
    {"any", R"(\x{0}-\x{10FFFF})"},
    {"alphabetic", R"(\p{Alphabetic})"},
    {"alpha", R"(\p{Alphabetic})"},
    {"alnum", R"(\p{Alphabetic}\p{Nd})"},
    {"digit", R"(\p{Nd})"},
    {"xdigit", "0-9A-Fa-f"},
    {"space", kWhiteSpace},
    {"whitespace", kWhiteSpace},
    {"uppercase", R"(\p{Uppercase})"},
    {"upper", R"(\p{Uppercase})"},
    {"lowercase", R"(\p{Lowercase})"},
    {"lower", R"(\p{Lowercase})"},
    {"ideographic", R"(\p{Ideographic})"},
    {"emoji", R"(\p{Emoji})"},
    {"emojipresentation", R"(\p{Emoji_Presentation})"},
    {"extendedpictographic", R"(\p{Extended_Pictographic})"},
};

std::string PlainName(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c == ' ' || c == '_' || c == '-') continue;
    plain.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  return plain;
}

}  // namespace

void CharSet::AddSet(const CharSet& set) {
  if (set.negated_) {
    others_.push_back(set.Expression());
    return;
  }
  members_ += set.members_;
  others_.insert(others_.end(), set.others_.begin(), set.others_.end());
}

void CharSet::IntersectWith(const CharSet& set) {
  const std::string both = "(?=" + Expression() + ")" + set.Expression();
  *this = CharSet();
  others_.push_back(both);
}

std::string CharSet::Union() const {
  std::string all;
  if (!members_.empty()) all = "[" + members_ + "]";
  for (const std::string& other : others_) {
    if (!all.empty()) all += "|";
    all += other;
  }
  return all;
}

std::string CharSet::Expression() const {
  if (others_.empty()) return (negated_ ? "[^" : "[") + members_ + "]";
  return negated_ ? "(?:(?!" + Union() + ")(?s:.))" : "(?:" + Union() + ")";
}

CharSet SpaceSet() { return CharSet(kWhiteSpace); }

CharSet PropertySet(std::string_view name) {
  const std::string plain = PlainName(name);
  for (const auto& [known, members] : kProperties) {
    if (plain == known) return CharSet(members);
  }
  // "Lu" and the like are categories, longer names scripts. PCRE2 without "sc:" takes a script's
  // extensions along, which other engines do not.
  for (const std::string_view prefix : {"script=", "sc=", "generalcategory=", "gc="}) {
    if (!plain.starts_with(prefix)) continue;
    return PropertySet(name.substr(name.find('=') + 1));
  }
  const std::string spelled(name);
  return CharSet(name.size() <= 2 ? R"(\p{)" + spelled + "}" : R"(\p{sc:)" + spelled + "}");
}

}  // namespace kvlathe
