// An answer follower looks for the JSON values of an answer, and keeps their texts to the rules of
// their schemas, which the answer's grammar does not hold.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "structured/json_follower.h"
#include "structured/token_texts.h"

namespace kvlathe {

// Where the values of a schema stand in an answer.
struct FollowedAnswer {
  // Behind the first `thoughts_end`, where it is not empty. A value stands behind every text that
  // ends with one of `fronts`, and its schema is the root of that number (several: the longest
  // fronts). No fronts: the answer is one value, of the first root.
  std::string thoughts_end;
  std::vector<std::string> fronts;
  FollowedSchema schema;
};

class AnswerFollower {
 public:
  AnswerFollower(std::shared_ptr<const FollowedAnswer> answer,
                 std::shared_ptr<const TokenTexts> tokens);
  AnswerFollower(const AnswerFollower&) = delete;
  AnswerFollower& operator=(const AnswerFollower&) = delete;

  // Takes away from `allowed`, a bit for each id, what the rules of texts do not let pass.
  void Restrict(std::span<int32_t> allowed);
  // The next token. False: it is none that Restrict let pass.
  bool Accept(int32_t token);

 private:
  class Allowed;

  static bool Takes(JsonFollower follower, const std::string& text);
  void KeepTaken(const std::vector<int32_t>& ids, Allowed* allowed);
  void KeepPlain(const std::vector<JsonFollower::RuledText>& rules, Allowed* allowed);
  // Marks the plain tokens that one rule takes.
  void MarkPlain(const JsonFollower::RuledText& text, std::vector<bool>* taken);
  void PushOutside(char byte);

  std::shared_ptr<const FollowedAnswer> answer_;
  std::shared_ptr<const TokenTexts> tokens_;
  TextWalks walks_;
  std::optional<JsonFollower> value_;  // nothing: between values
  bool is_in_thoughts_;
  size_t longest_front_ = 0;
  std::string tail_;  // between values: the last bytes
};

}  // namespace kvlathe
