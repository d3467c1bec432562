// Second moments as attention weighs them: what an error of a stored row does to its output.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/statistics/statistics.h"
#include "base/cpu_features.h"
#include "base/threads.h"
#include "calibration/gram_sums.h"
#include "calibration/position_shift.h"
#include "model/observer.h"
#include "model/rope.h"

namespace kvlathe {

// Follows one sequence after another, in any chunks, and looks at each when it has ended. Where
// positions merge, a chunk is a whole sequence: a query sees the entries closed before it and its
// own so far, and a block is one of entries. Cost per
// token, layer and query head: 2 head_dim multiply-adds for every position before it, divided by
// query_stride. Memory: the keys, before and after RoPE, and values of one sequence in f32
// (n_layers * n_kv_heads * head_dim * 12 bytes per token), and the queries that count. The sums
// depend neither on the chunks nor on the number of workers.
class AttentionMoments : public QkvObserver {
 public:
  struct Options {
    AttentionLayers attention;  // of the model
    int rope_dim = 0;           // channels that rotate
    // One query of so many positions counts, at random among them. Neighbours look at much the same
    // keys, so a long text loses little.
    int query_stride = 1;
  };
  AttentionMoments(const StatisticsShape& shape, const Options& options, ThreadPool* pool, Isa isa);

  // Queries and keys after RoPE of sequences that start from now on are turned on by the shift of
  // their layer, [n_layers], where they are added up; it outlives its use.
  void SetShifts(std::span<const PositionShift> shifts) { shifts_ = shifts; }

  // Rows that are not finite leave moments that are not: AnalyseLathe reports them.
  void Observe(const QkvView& view) override;

  // Fills the attended moments of `statistics`, once.
  void Finish(CalibrationStatistics* statistics);

 private:
  struct Sums {
    explicit Sums(int64_t d) : sum(d), gram(d * d) {}
    void Add(const Sums& other);
    void Clear();
    GramSums to() { return {sum.data(), gram.data()}; }
    std::vector<double> sum, gram;
  };
  struct KeyWeights {  // that the keys of a KV head got in the sequence so far
    std::vector<float> of_keys;
    std::vector<double> of_blocks;  // behind the sinks, from queries behind the block
  };
  struct LayerRows {  // of the sequence so far, [n_tokens, heads, head_dim]
    std::vector<float> k, k_pre, v;
    std::vector<float> queries;     // those that count, after RoPE
    std::vector<uint8_t> is_entry;  // [n_kv_heads, n_tokens]; empty: nothing merges
    const PositionShift* shift = nullptr;
  };
  struct KeyRows {  // of all KV heads, in the sequence so far
    const std::vector<float>& rows;
    const PositionShift* shift;  // null: none
  };
  struct HeadSums {  // of one layer and KV head
    explicit HeadSums(int64_t d) : q(d), k(d), v(d), q_pre(d), k_pre(d), blocks(d), pre_blocks(d) {}
    Sums q, k, v, q_pre, k_pre;
    Sums blocks, pre_blocks;  // of keys less the mean of their block; no sum
    double k_weight = 0, block_weight = 0;
  };
  struct QueryHead {  // what one query head adds in a sequence
    explicit QueryHead(int64_t d) : q(d), v(d), q_pre(d) {}
    Sums q, v, q_pre;
    KeyWeights weights;
  };
  struct Worker {
    explicit Worker(Isa isa) : adder(isa) {}
    GramAdder adder;
    std::vector<float> queries, scores, outputs, query_weights, turned, turned_weights;
    std::vector<float> block_sums;
    std::vector<float> keys;
  };

  bool Counts(int position) const;
  // Positions behind the sinks whose rows are entries of the KV head.
  std::vector<int> EntriesOf(int layer_idx, int kv_head_idx) const;
  // Leaves of a query's scores those of the entries that it sees.
  void HideMerged(int layer_idx, int kv_head_idx, int position, float* scores) const;
  // Adds the sequence that has ended and forgets its rows.
  void EndSequence(int layer_idx);
  void AddQueryHead(int layer_idx, int head_idx, Worker* worker);
  // Weights of `n` of the queries that count, from the first-th on.
  void FindWeights(int layer_idx, int head_idx, int first, int n, Worker* worker) const;
  void WeighKeys(int kv_head_idx, const float* weights, int position, KeyWeights* to,
                 Worker* worker) const;
  // `head_idx` counts query heads over all layers.
  void TurnQueryBack(const float* query, const float* weights, int position, uint64_t head_idx,
                     Worker* worker) const;
  void AddGroup(int layer_idx, int kv_head_idx);
  // Keys of one KV head into worker->keys, turned on by keys.shift.
  void GatherKeys(const KeyRows& keys, int kv_head_idx, Range tokens, Worker* worker) const;
  // The same for a block, of positions or of entries.
  void GatherBlock(const KeyRows& keys, int kv_head_idx, int64_t block_idx, Worker* worker) const;
  void AddKeys(const KeyRows& keys, int kv_head_idx, const KeyWeights& weights, Sums* to,
               Sums* in_blocks, Worker* worker) const;

  StatisticsShape shape_;
  Options options_;
  LayerRopes ropes_;
  ThreadPool* pool_;
  const ElementwiseKernels* kernels_;
  std::span<const PositionShift> shifts_;  // of sequences to come; empty: none
  std::vector<LayerRows> rows_;            // [n_layers]
  std::vector<HeadSums> sums_;             // [n_layers * n_kv_heads]
  std::vector<QueryHead> query_heads_;     // [n_heads], of the layer that is added
  std::vector<Worker> workers_;
  std::vector<std::vector<int>> entries_;  // of the KV heads of the layer that is added, or empty
  std::vector<int> sampled_;  // positions of the queries that count, of the sequence that is added
  int64_t n_queries_ = 0;     // in layer 0
};

}  // namespace kvlathe
