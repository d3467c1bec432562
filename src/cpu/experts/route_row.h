// From the logits of a router to the experts of a row and their weights.
#pragma once

#include <cstdint>
#include <vector>

#include "machine/expert_plans.h"

namespace kvlathe {

// Of one thread; it keeps its memory from row to row.
class RowRouter {
 public:
  // choice_bias [n_experts], or null.
  RowRouter(const RouteRule& rule, int n_experts, const float* choice_bias);

  // logits [n_experts]; experts and weights [rule.n_used]. Logits that are no numbers are chosen
  // last, and make weights that are none.
  void Route(const float* logits, int32_t* experts, float* weights);

 private:
  void ScoreAll(const float* logits);
  void CloseGroups();
  // The open one with the largest of `keys`, the lower number of two equal ones.
  int BestOpen(const std::vector<double>& keys) const;
  void MixSparsely(const float* logits, int32_t* experts, float* weights);

  const RouteRule& rule_;
  int n_experts_;
  const float* choice_bias_;
  std::vector<double> scores_, keys_;  // keys choose
  std::vector<bool> is_closed_;        // may not be chosen, any more
};

}  // namespace kvlathe
