// A GrammarConstraint constrains tokens by a compiled grammar of XGrammar, and by the rules of
// texts that an answer follower holds beside it.
#pragma once

#include <xgrammar/matcher.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/token_constraint.h"
#include "structured/answer_follower.h"

namespace kvlathe {

class GrammarConstraint : public TokenConstraint {
 public:
  // `follower`: null where the grammar holds everything.
  GrammarConstraint(const xgrammar::CompiledGrammar& grammar,
                    std::unique_ptr<AnswerFollower> follower, int n_logits,
                    std::chrono::nanoseconds max_token_time);

  void Mask(std::span<float> logits) override;
  Status Accept(int32_t token) override;
  bool is_complete() const override { return is_complete_; }

 private:
  void FillAllowed();
  bool OnlyTheEndFollows();

  xgrammar::GrammarMatcher matcher_;
  std::unique_ptr<AnswerFollower> follower_;
  int n_logits_;
  std::chrono::nanoseconds max_token_time_;
  std::chrono::nanoseconds token_time_{0};  // of Mask, for the next token
  std::vector<int32_t> allowed_;            // a bit for each token
  bool is_filled_ = false;                  // allowed_ is of what was accepted so far
  bool is_complete_ = false;
};

}  // namespace kvlathe
