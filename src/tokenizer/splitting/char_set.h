// A set of characters of a regular expression, such as [\p{L}&&[^\p{Han}]], as PCRE2 spells it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvlathe {

// PCRE2 has neither sets within sets nor intersections, and its \s and \w are not those of the
// engines that tokenizers are written for. What a bracket cannot say becomes a group with a
// look-ahead.
class CharSet {
 public:
  CharSet() = default;
  // What stands between the brackets of a class of PCRE2: "a-z\p{N}".
  explicit CharSet(std::string_view members) : members_(members) {}

  void AddMembers(std::string_view members) { members_ += members; }
  void AddSet(const CharSet& set);
  void Negate() { negated_ = !negated_; }
  void IntersectWith(const CharSet& set);

  // Whether nothing was added.
  bool empty() const { return members_.empty() && others_.empty(); }
  // Matches one character of the set, and may be repeated.
  std::string Expression() const;

 private:
  // Matches one character of what is not negated, and is no group.
  std::string Union() const;

  std::string members_;
  std::vector<std::string> others_;  // expressions that match one character each
  bool negated_ = false;
};

// White_Space of the Unicode database. PCRE2's \s has U+180E as well.
CharSet SpaceSet();
// What a set or an escape with a name stands for: "L", "Uppercase_Letter", "Han", "Alphabetic".
CharSet PropertySet(std::string_view name);

}  // namespace kvlathe
