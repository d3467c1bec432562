// A followed schema is a JSON schema as a generated value is held against it while it grows: what
// its texts may be, which a grammar would hold at a price or not at all, and as much of the rest as
// tells its alternatives apart.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "structured/text_rule.h"

namespace kvlathe {

class FollowedSchema {
 public:
  static constexpr int kNone = -1;
  static constexpr int kAny = 0;  // the shape of values of which nothing is asked

  // Bits of Shape::types.
  static constexpr int kObject = 1, kArray = 2, kText = 4, kNumber = 8, kBoolean = 16, kNull = 32;

  // One alternative for a value. Other values are named by the first number of `alternatives`.
  struct Shape {
    int types = kObject | kArray | kText | kNumber | kBoolean | kNull;
    int rule = kNone;        // of a text
    bool is_listed = false;  // a text is one of `texts`
    std::set<std::string> texts;
    std::map<std::string, int> properties;
    std::vector<std::pair<int, int>> pattern_properties;  // rule of the key, and value
    int other_properties = kAny;
    std::set<std::string> required;
    std::vector<int> first_items;
    int other_items = kAny;
  };

  // Of schemas that CheckSchema lets pass. kInvalidArgument: a pattern or bounds of lengths that
  // are not supported, with what they are.
  static StatusOr<FollowedSchema> Make(const std::vector<nlohmann::ordered_json>& roots);

  // Of the roots, in their order; then of every value that a shape names.
  const std::vector<int>& AlternativesOf(int value) const {
    return alternatives_[static_cast<size_t>(value)];
  }
  int root(size_t i) const { return roots_[i]; }
  const Shape& shape(int i) const { return shapes_[static_cast<size_t>(i)]; }
  const std::vector<TextRule>& rules() const { return rules_; }
  // Whether any text has a rule. Otherwise there is nothing to follow.
  bool has_text_rules() const { return has_text_rules_; }
  int64_t n_bytes() const;

 private:
  friend class SchemaFollowing;

  std::vector<int> roots_;
  std::vector<std::vector<int>> alternatives_;
  std::vector<Shape> shapes_;
  std::vector<TextRule> rules_;
  bool has_text_rules_ = false;
};

enum class TextRules {
  kFollowed,   // the same schema is followed beside the grammar, which holds none of them
  kInGrammar,  // the grammar holds them, as patterns: texts with a rule have no escapes
};

// `schema` for XGrammar, which gets patterns of values or of property names alone as it takes them.
// kInvalidArgument as above, and what the grammar cannot hold.
StatusOr<nlohmann::ordered_json> SchemaForGrammar(const nlohmann::ordered_json& schema,
                                                  TextRules rules);

}  // namespace kvlathe
