// A follower reads a JSON value byte by byte while it is generated, and says whether it can still
// become one of its schema.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "structured/followed_schema.h"

namespace kvlathe {

// Where a text is in its rule.
struct TextPosition {
  int place = 0;
  int64_t n_characters = 0;
  // Of a character of several bytes that began: its bits so far, its bytes and those that are left.
  uint32_t code = 0;
  uint8_t n_bytes = 0, n_left = 0;
};

// The rules of a schema, walked: shared by the copies of a follower.
class TextWalks {
 public:
  explicit TextWalks(std::shared_ptr<const FollowedSchema> schema);

  const FollowedSchema& schema() const { return *schema_; }
  TextRuleWalk& of(int rule) { return walks_[static_cast<size_t>(rule)]; }
  // Whether the text of `rule` can go on with a byte of a character that needs no escape, at
  // `position`, which moves on; and with a whole character.
  bool TakesByte(int rule, uint8_t byte, TextPosition* position);
  bool TakesCharacter(int rule, char32_t code, TextPosition* position);

 private:
  std::shared_ptr<const FollowedSchema> schema_;
  std::vector<TextRuleWalk> walks_;
};

// What is valid JSON the grammar sees to: of other bytes a follower says anything. A copy costs
// little.
class JsonFollower {
 public:
  // A value of one of the values of the schema that `values` names.
  JsonFollower(TextWalks* walks, const std::vector<int>& values);

  // With the next byte. False: no alternative is left; the follower is not to be used any more.
  bool Push(uint8_t byte);
  bool is_done() const { return place_ == Place::kDone; }

  // Where it is: within a text, and at no escape in it; and then by which rules the text goes on,
  // each with its position. None: as the grammar says.
  bool is_in_plain_text() const { return place_ == Place::kText && escape_ == 0; }
  struct RuledText {
    int rule;
    TextPosition position;
  };
  std::vector<RuledText> RulesOfText() const;
  // Walks forget what no text is at any more.
  void ForgetPlaces();

 private:
  enum class Place { kBeforeValue, kText, kScalar, kBehindValue, kBeforeKey, kBehindKey, kDone };

  struct Candidate {
    int shape;
    int parent;  // among the candidates of the object or list around it
    TextPosition position;
  };
  struct Container {
    bool is_object = false;
    std::vector<Candidate> candidates;
    std::shared_ptr<const Container> around;
    int n_items = 0;
    std::vector<std::string> keys;  // where there are several candidates
  };

  bool BeginValue(uint8_t byte);
  bool EndValue(const std::vector<Candidate>& left);
  bool Close();
  bool PushText(uint8_t byte);
  bool PushEscape(uint8_t byte);
  bool EndText();
  std::vector<Candidate> ValueCandidates() const;
  int PropertyOf(const FollowedSchema::Shape& shape) const;
  int RuleOf(const Candidate& candidate) const {
    return walks_->schema().shape(candidate.shape).rule;
  }
  // Drops the candidates of a text that do not go on as `takes` says.
  template <typename Takes>
  bool KeepRuled(const Takes& takes);

  TextWalks* walks_;
  Place place_ = Place::kBeforeValue;
  std::shared_ptr<const Container> container_;
  std::vector<Candidate> value_;  // candidates for the outermost value, or for the text
  // Of a text or a key.
  bool is_key_ = false;
  int escape_ = 0;  // 1: behind a backslash; 2 to 5: before a digit of \u
  uint32_t escaped_ = 0;
  std::string raw_;  // as it stands in the JSON, where it is needed
  bool keeps_raw_ = false;
  std::string key_;
};

}  // namespace kvlathe
