// The decoder forward over a ragged batch, on compressed blocks.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "analysis/bases/basis.h"
#include "analysis/ranks/ranks.h"
#include "attention/attention.h"
#include "base/threads.h"
#include "kernels/cpu/attend/attend.h"
#include "kernels/cpu/elementwise/elementwise.h"
#include "kernels/cpu/latent/latent_keys.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/seal/seal.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/cache_layout.h"
#include "kv/quantizer/codebooks.h"
#include "kv/seal/svd_online.h"
#include "model/observer.h"
#include "model/rope.h"
#include "model/weights.h"

namespace kvlathe {

// The part of one sequence in a step: a prefill chunk or one decode token. The cache has been
// extended by token_ids.size() positions, which this step fills.
struct SequenceStep {
  enum class Logits { kNone, kLast, kAll };
  SequenceCache* cache = nullptr;
  std::span<const int32_t> token_ids;
  Logits logits = Logits::kLast;
};

// Where the time of a forward went, in seconds, summed over calls.
struct ForwardProfile {
  double linear = 0;     // all products with model weights
  double rotate = 0;     // RoPE and the basis of q and k
  double append = 0;     // writing rows into blocks
  double attention = 0;  // plan, kernels, merge
  double seal = 0;       // plain blocks to codes, scales and repairs
  double prune = 0;      // choosing entries and closing their gaps
  double other = 0;      // norms, gates, embedding
};

class Model {
 public:
  // `basis` null: rows as they are; `seal` null: in 16 bits; both null: the uncompressed cache.
  // Otherwise n_sink first positions keep rows of their own, in 16 bits and before the basis of
  // keys; as with `retention`, which drops or merges entries. `weights` and `pool` are shared and
  // outlive the model. Basis and plan are copied. kUnimplemented where the plan or the basis stores
  // keys from before a RoPE that the kernels cannot apply when they are read, or where entries
  // merge that are latents, or each of the heads that share latents would drop its own, or whole
  // keys are to be read and no basis maps keys after RoPE; kInvalidArgument where the model is to
  // decide what merges and was not taught to.
  static StatusOr<std::unique_ptr<Model>> Create(std::shared_ptr<ModelWeights> weights,
                                                 const ModelBasis* basis, int n_sink,
                                                 ThreadPool* pool, Isa isa,
                                                 const SealPlan* seal = nullptr,
                                                 const RetentionPlan* retention = nullptr);

  // Runs one step. Logits of the tokens asked for are in order of the batch behind logits().
  // Without a basis `observer` sees rows as the model makes them. Appends to streams[l], if there
  // are any, what goes into layer l, [n_tokens, hidden_dim]. kResourceExhausted when there is no
  // memory for activations, kInvalidArgument past the table of a model with learned positions;
  // otherwise the error of the first sequence that fails (ForwardEach).
  Status Forward(std::span<const SequenceStep> steps, QkvObserver* observer = nullptr,
                 std::vector<std::vector<float>>* streams = nullptr);
  // Runs one step in which a sequence that fails harms no other: (*failures)[i] says why steps[i]
  // failed, and is OK for the rest, whose caches and logits are what they would be without it.
  // kDataLoss when its rows hold NaN or infinity and are to be compressed, kResourceExhausted when
  // the system has no memory to drop or seal what it holds. Its cache is then only good for Clear,
  // and its rows of logits() mean nothing. An error that is returned concerns the whole step, and
  // the caches of all sequences in it.
  Status ForwardEach(std::span<const SequenceStep> steps, std::vector<Status>* failures);
  // Of the layers from first_layer on, where `stream` goes in; the caches keep zeros in the others.
  Status ForwardFrom(int first_layer, std::span<const float> stream,
                     std::span<const SequenceStep> steps);

  // Seals the runs of every cache that must (SequenceCache::must_seal) in one layer; layers come in
  // order. Forward does it; for caches that were filled otherwise. kDataLoss when rows are not
  // finite, kResourceExhausted when the system has no memory.
  Status SealRuns(int layer_idx, std::span<SequenceCache* const> caches);

  // In place of EvenCodebooks, where the plan's format has codebooks: before anything is stored.
  void set_codebooks(ModelCodebooks codebooks);

  // Row i of the last Forward's logits, [vocab_size].
  std::span<const float> logits(int64_t row) const;
  int64_t n_logit_rows() const { return n_logit_rows_; }

  // The layout of caches, but for those that LayoutAt gives.
  const CacheLayout& layout() const { return layout_; }
  // Lets every sequence store the first of the columns that the basis has, in ranks by a rate of
  // its own: `ranks_at` gives them for the rates that it allows, `ranks` are those of layout() from
  // here on. Before anything is stored. Rows are made at the ranks of the basis; where caches hold
  // fewer, attention's output ends in zeros, which add nothing behind W_O. Not for a basis of
  // latents or one that splits bits, whose maps hang on the rank, nor for codebooks.
  using RanksAtRate = std::function<StatusOr<std::vector<HeadRanks>>(double rate)>;
  void OfferRates(std::span<const HeadRanks> ranks, RanksAtRate ranks_at);
  // Of a cache of this model at that rate; equal ranks have one layout, which lives as long as the
  // model. kInvalidArgument where rates are not offered; other errors are those of `ranks_at`.
  StatusOr<const CacheLayout*> LayoutAt(double rate);
  const ModelConfig& config() const { return weights_->config(); }
  const ModelWeights& weights() const { return *weights_; }
  const ModelCodebooks& codebooks() const { return codebooks_; }
  void set_schedule(Schedule schedule) { schedule_ = schedule; }
  // Identical bits for a token whatever else is in the batch and however its sequence is cut into
  // steps. Prefill is slower then: no oneDNN, no AMX, and attention is not split along a sequence.
  void set_deterministic(bool deterministic) {
    linear_.set_deterministic(deterministic);
    attention_.set_deterministic(deterministic);
  }
  const ForwardProfile& profile() const { return profile_; }
  void ResetProfile() { profile_ = {}; }
  bool has_basis() const { return has_basis_; }
  // Bytes of rotations and codebooks, or of what rotations are found by, of this model alone. What
  // is folded into weights takes none.
  int64_t basis_bytes() const;

 private:
  // What the basis adds to a layer. Where it is folded, or without one, there are none.
  struct LayerBasis {
    std::vector<PackedMatrix> query;  // D^T [rank_k, head_dim] per KV head; none with latents
    std::vector<PackedMatrix> key;    // E^T [rank_k, head_dim] per KV head; empty: same as query
    std::vector<std::vector<float>> key_offset;  // [head_dim] per KV head, or empty
    std::vector<LatentMap> latents;  // per KV head, where keys are stored from before RoPE
    // B^T [head_dim, heads_per_latent * rank_v] per KV head, where heads share latents.
    std::vector<PackedMatrix> output;
  };
  // Offsets of the KV heads in buffers whose rows have ranks of their own.
  struct LayerOffsets {
    std::vector<int64_t> rank_k;  // [n_kv_heads + 1] prefix sums
    std::vector<int64_t> rank_v;
  };
  // A head whose sealed entries Prune opened.
  struct OpenedHead {
    SequenceCache* cache;
    int kv_head_idx;
    int n_rows;  // from the first, that were sealed
  };
  struct TokenPlace {
    int32_t token_id;
    int position;
    bool meets_whole_keys;  // its key is stored whole, and so are those that its queries see
  };
  // Rows of one KV head from the step's first token on, in row_type_.
  struct HeadRows {
    std::byte* first;
    int64_t stride;  // elements
  };

  Model(std::shared_ptr<ModelWeights> weights, ThreadPool* pool, Isa isa);
  // Whether rows are attention's and the cache's as they leave their product: nothing turns or
  // changes them in between, and a basis can be folded.
  bool RowsNeedNoTurn(const ModelBasis* basis) const;
  // Whether some queries meet keys that no basis has cut.
  bool NeedsWholeRows() const { return layout_.n_sink > 0 || layout_.ReadsWholeKeys(); }
  // layout_ with these ranks.
  CacheLayout LayoutOf(std::span<const HeadRanks> ranks) const;
  Status PlaceBasis(const ModelBasis* basis);
  Status PackBasis(const ModelBasis& basis);
  // Whether heads that share latents would hold unlike entries.
  bool SplitsSharedLatents() const;
  void PrepareCodebooks();
  void PrepareBlockRotations();
  const LayerCodebooks* CodebooksOf(int layer_idx) const {
    return codebooks_.empty() ? nullptr : &codebooks_[layer_idx];
  }
  // Of a layer, from the first block on; none where keys do not turn when they are read.
  KeyRotation RotationOf(int layer_idx, int64_t n_blocks);
  Status ReserveActivations(int64_t n_tokens, int64_t n_logit_rows);
  Status PlaceTokens(std::span<const SequenceStep> steps);
  // Places the tokens of a step and makes room for what it computes.
  Status Begin(std::span<const SequenceStep> steps);
  void EmbedTokens();
  // The layers and the logits; failures_ tells which sequences failed.
  Status RunStep(std::span<const SequenceStep> steps, QkvObserver* observer,
                 std::vector<std::vector<float>>* streams);
  // From here on nothing of the sequence is dropped, cut or sealed in this forward.
  void FailSequence(std::span<const SequenceStep> steps, const SequenceCache* cache, Status status);
  bool AllFailed() const;
  Status FirstFailure() const;
  void SkipLayer(int layer_idx, std::span<const SequenceStep> steps);
  Status RunLayer(int layer_idx, std::span<const SequenceStep> steps, QkvObserver* observer);
  void ProjectQkv(int layer_idx);
  // Of a model with norms of queries and keys: every head's row, before anything else sees it.
  void NormaliseQueriesAndKeys(int layer_idx);
  // Of a model with DMC: the deciding channels of queries and keys go to decisions_ and are zero.
  void TakeDecisions();
  // Where entries are merged: keys before RoPE and values become the mean of their entry so far,
  // and n_closed_ is set. (model_retention.cc)
  void MergeRows(int layer_idx, std::span<const SequenceStep> steps);
  void MergeHead(int layer_idx, int kv_head_idx, const SequenceStep& step, int64_t first_row);
  bool JoinsEntry(int kv_head_idx, int64_t row) const;
  float WeightInEntry(int kv_head_idx, int64_t row) const;
  void RotateQueriesAndKeys(int layer_idx);
  // One head row to its position.
  void RotateRow(int layer_idx, const float* row, int position, DType out_type, void* out) const;
  void RotateRows(int layer_idx, int kv_head_idx, Range tokens);
  // Rotated rows in the basis, of queries and keys of tokens that do not meet whole keys.
  void MapRowsInBasis(int layer_idx, int first_head, int end_head, Range tokens, int worker_id);
  void MapRows(int layer_idx, int kv_head_idx, Range tokens, int worker_id);
  // Adds the queries behind the sinks to the sums of caches that are to find a basis by them.
  void GatherQueries(int layer_idx, std::span<const SequenceStep> steps);
  // What the KV head's key of this token is stored from, [head_dim]: after RoPE, less their offset;
  // with latents before it, but for sinks, which are stored as they are. `centred` is scratch.
  void RotateKey(int layer_idx, int kv_head_idx, int64_t token_idx, float* centred, std::byte* out);
  void AppendRows(int layer_idx, std::span<const SequenceStep> steps);
  // Rows of one head of one sequence, the first of which is row `first_row` of the step. False when
  // rows that are coded as they come are not finite.
  bool AppendRowsOfHead(int layer_idx, int kv_head_idx, const SequenceStep& step,
                        int64_t first_row);
  // Numbers of a key row of the head as it is made; caches hold the first rank_k of them.
  int64_t KeyWidth(int layer_idx, int kv_head_idx) const {
    const std::vector<int64_t>& offsets = offsets_[layer_idx].rank_k;
    return offsets[kv_head_idx + 1] - offsets[kv_head_idx];
  }
  // What maps keys; of the heads that share latents, side by side.
  const PackedMatrix& KeyMap(int layer_idx, int kv_head_idx) const {
    const LayerBasis& basis = bases_[layer_idx];
    const PackedMatrix& own = basis.key[kv_head_idx];
    return own.n_out() > 0 ? own : basis.query[kv_head_idx];
  }
  LatentHead LatentsOf(int layer_idx, int kv_head_idx, const SequenceCache& cache,
                       const KeyRotation& rotation) const;
  // Numbers of a row that attention puts out, where caches hold all that rows are made of.
  int64_t OutputWidth(int layer_idx, int kv_head_idx) const {
    const std::vector<int64_t>& offsets = offsets_[layer_idx].rank_v;
    return heads_per_latent_ * (offsets[kv_head_idx + 1] - offsets[kv_head_idx]);
  }
  // Joins the latents of the job, the newest of jobs_, to those of the heads that share them.
  void ShareLatents(int kv_head_idx);
  // Of heads that share latents, what attention puts out becomes rows of head_dim.
  void ReadOutputs(int layer_idx);
  Status Attend(int layer_idx, std::span<const SequenceStep> steps);
  // Rows of the job see the entries closed before them and their own rows, from token_idx on.
  void SeeMergedRows(int layer_idx, int kv_head_idx, int64_t token_idx, HeadJob* job);
  void ScoreEntries(int layer_idx, int kv_head_idx, const SequenceStep& step, HeadJob* job);
  void AddSealJobs(int layer_idx, const SequenceCache& cache,
                   const SequenceCache::RunObjects& objects, const KeyRotation& rotation,
                   std::vector<SealHead>* heads, std::vector<SealJob>* jobs) const;
  std::vector<OnlineSvdHead> OnlineSvdHeads(int layer_idx, std::span<SequenceCache* const> caches,
                                            std::span<const SealJob> jobs) const;
  // Seals together; an error says nothing about which of the caches it is. (model_seal.cc)
  Status SealTogether(int layer_idx, std::span<SequenceCache* const> caches,
                      std::span<const SequenceCache::RunObjects> objects);
  // What became of each cache.
  std::vector<Status> SealEach(int layer_idx, std::span<SequenceCache* const> caches);
  void SealStep(int layer_idx, std::span<const SequenceStep> steps);
  void Prune(int layer_idx, std::span<const SequenceStep> steps);
  Status PruneSequence(int layer_idx, SequenceCache* cache);
  // Where a prompt ended that was read with whole keys: those that are left become rows of the
  // cache's ranks. (model_retention.cc)
  void CutKeys(int layer_idx, std::span<const SequenceStep> steps);
  void CutKeysOfHead(int layer_idx, int kv_head_idx, const SequenceCache& cache, int worker_id);
  // Counts what sealing entries again, which Prune opened, has changed of them. `packed` are the
  // blocks and records of each cache of SealRuns.
  void MeasureReencodings(int layer_idx, std::span<SequenceCache* const> caches,
                          std::span<const SequenceCache::RunObjects> packed);
  // The sealed runs of a head, of one layer and cache, whose layout it is.
  PackedHead PackedHeadOf(const CacheLayout& layout, int layer_idx, int kv_head_idx,
                          std::span<const PackedRun> runs, const KeyRotation& rotation) const;
  void RunMlp(int layer_idx);
  void Observe(int layer_idx, QkvObserver* observer);
  void ComputeLogits(std::span<const SequenceStep> steps);
  void Normalise(const float* from, const NormWeights& norm, int64_t n_rows);
  void Multiply(const PackedMatrix& w, const std::vector<float>& bias, int64_t n_rows,
                const void* x, void* y, DType y_type, bool accumulate);
  // Adds x W^T + b to the residual stream, normalised with `norm` where the model says so.
  void AddToStream(const PackedMatrix& w, const std::vector<float>& bias, const void* x,
                   const NormWeights& norm);
  // Calls fn(Range) over shares of n_rows, on the calling thread alone when there is one row.
  template <typename F>
  void ForRowShares(int64_t n_rows, const F& fn) {
    if (n_rows == 1) {
      fn(Range{0, 1});
      return;
    }
    pool_->Run([&](int worker_id) {
      const Range rows = ShareOf(n_rows, 1, worker_id, pool_->n_workers());
      if (rows.begin < rows.end) fn(rows);
    });
  }
  // Row buffers of one KV head: [n_tokens * rows_per_token, width].
  std::byte* RowsBehind(Buffer* buffer, int64_t width_before, int rows_per_token);
  // Of one query head or, counted behind them, one KV head in the product of W_Q and W_K.
  HeadRows ProductRows(int layer_idx, int head_idx);
  // gqa_group rows a token: in the basis of keys, and as sinks meet them.
  HeadRows QueryRows(int layer_idx, int kv_head_idx);
  HeadRows WholeQueryRows(int layer_idx, int kv_head_idx);
  // One row a token.
  HeadRows KeyRows(int layer_idx, int kv_head_idx);
  HeadRows WholeKeyRows(int layer_idx, int kv_head_idx);

  std::shared_ptr<ModelWeights> weights_;
  ThreadPool* pool_;
  Linear linear_;
  Attention attention_;
  const ElementwiseKernels* elementwise_;
  const AttendKernels* attend_;
  std::unique_ptr<Sealer> sealer_;  // null when nothing is sealed
  LayerRopes ropes_;
  // By kind of attention, where keys are stored from before RoPE.
  std::vector<BlockRotations> block_rotations_;
  Schedule schedule_ = Schedule::kBalanced;
  CacheLayout layout_;
  RanksAtRate ranks_at_;                  // null: rates are not offered
  std::deque<CacheLayout> rate_layouts_;  // that LayoutAt has given, but for layout_
  DType row_type_;
  bool has_basis_ = false;
  int heads_per_latent_ = 1;
  bool needs_no_turn_ = false;           // RowsNeedNoTurn
  std::optional<OnlineInputs> online_;   // where sequences find their bases by them
  std::vector<LayerBasis> bases_;        // [n_layers], or empty
  std::vector<QkProjection> folded_qk_;  // [n_layers], or empty: the basis is not folded
  ModelCodebooks codebooks_;             // [n_layers], or empty
  std::vector<LayerOffsets> offsets_;    // [n_layers]
  std::vector<std::shared_ptr<const ValueProjection>> projections_;  // [n_layers]

  // Activations of one step, allocated once and grown.
  int64_t n_tokens_ = 0;
  int64_t n_logit_rows_ = 0;
  std::vector<TokenPlace> tokens_;
  std::vector<HeadJob> jobs_;
  std::vector<LatentSlice> slices_;      // of jobs_, where heads share latents
  std::vector<float> decisions_;         // [n_tokens, n_heads + n_kv_heads] of a model with DMC
  std::vector<int> n_closed_;            // [n_kv_heads, n_tokens] MergedRows::n_closed of the layer
  std::vector<ScoreNoise> noises_;       // of the jobs, where votes are noisy
  std::vector<Status> failures_;         // of the sequences of the step
  std::vector<SequenceCache*> sealing_;  // the caches whose step ended a run, but for failed ones
  std::vector<OpenedHead> opened_;       // in the layer at work
  Buffer hidden_;                        // [n_tokens, hidden_dim] f32, the residual stream
  Buffer normed_;                        // [n_tokens, hidden_dim]
  // [n_tokens, (n_heads + n_kv_heads) * head_dim] f32, before RoPE; or, where rows need no turn,
  // row_type_ and of the folded width.
  Buffer qk_;
  Buffer v_;       // [n_tokens, sum of rank_v]
  Buffer q_full_;  // per KV head [n_tokens * gqa_group, head_dim], after RoPE
  // Per KV head [n_tokens, head_dim]; of the heads that share latents side by side.
  Buffer k_full_;
  Buffer q_rows_;    // per KV head [n_tokens * gqa_group, rank_k]; empty without a basis
  Buffer k_rows_;    // per KV head [n_tokens, rank_k]
  Buffer attended_;  // [n_tokens, sum over query heads of OutputWidth]
  Buffer outputs_;   // [n_tokens, n_heads * head_dim] where heads share latents
  Buffer mlp_in_;    // [n_tokens, mlp_rows()] f32
  Buffer gated_;     // [n_tokens, ffn_dim]
  Buffer added_;     // [n_tokens, hidden_dim] f32, with norms of what is added to the stream
  Buffer logits_;    // [n_logit_rows, vocab_size] f32
  ForwardProfile profile_;
};

}  // namespace kvlathe
