// A GrammarConstraint constrains tokens by a compiled grammar of XGrammar.
#pragma once

#include <xgrammar/matcher.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/token_constraint.h"

namespace kvlathe {

class GrammarConstraint : public TokenConstraint {
 public:
  GrammarConstraint(const xgrammar::CompiledGrammar& grammar, int n_logits,
                    std::chrono::nanoseconds max_token_time);

  void Mask(std::span<float> logits) override;
  Status Accept(int32_t token) override;
  bool is_complete() const override { return is_complete_; }

 private:
  void FillAllowed();
  bool OnlyTheEndFollows();

  xgrammar::GrammarMatcher matcher_;
  int n_logits_;
  std::chrono::nanoseconds max_token_time_;
  std::chrono::nanoseconds token_time_{0};  // of Mask, for the next token
  std::vector<int32_t> allowed_;            // a bit for each token
  bool is_filled_ = false;                  // allowed_ is of what was accepted so far
  bool is_complete_ = false;
};

}  // namespace kvlathe
