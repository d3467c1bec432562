// Second moments as attention weighs them: what an error of a stored row does to its output.
#pragma once

#include <vector>

#include "base/threads.h"
#include "kv/basis/statistics.h"
#include "model/observer.h"
#include "model/rope.h"

namespace kvlathe {

// Follows one sequence after another, in any chunks. Cost per token, layer and query head: 4
// head_dim multiply-adds for every position before it. Memory: the keys, before and after RoPE, and
// values of one sequence in f32 (n_layers * n_kv_heads * head_dim * 12 bytes per token).
class AttentionMoments : public QkvObserver {
 public:
  // `window`: a query sees that many positions, its own counted; 0: all. `rope`: the model's.
  AttentionMoments(const StatisticsShape& shape, int window, RopeTable rope, ThreadPool* pool);

  // Rows that are not finite leave moments that are not: AnalyseLathe reports them.
  void Observe(const QkvView& view) override;

  // Fills the attended moments of `statistics`.
  void Finish(CalibrationStatistics* statistics) const;

 private:
  struct LayerRows {  // of the sequence so far, [n_tokens, n_kv_heads, head_dim]
    std::vector<float> k, k_pre, v;
  };
  struct HeadSums {  // of one layer and KV head
    std::vector<double> q_sum, q_gram, k_sum, k_gram, v_sum, v_gram;
    std::vector<double> q_pre_sum, q_pre_gram, k_pre_sum, k_pre_gram;
    std::vector<double> k_in_blocks, k_pre_in_blocks;
    double k_weight = 0, block_weight = 0;
  };

  void AddHead(const QkvView& view, int kv_head_idx, HeadSums* sums) const;

  StatisticsShape shape_;
  int window_;
  RopeTable rope_;
  ThreadPool* pool_;
  std::vector<LayerRows> rows_;  // [n_layers]
  std::vector<HeadSums> sums_;   // [n_layers * n_kv_heads]
  int64_t n_queries_ = 0;        // positions behind the sinks, in layer 0
};

}  // namespace kvlathe
