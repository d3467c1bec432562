// A Model computes the decoder forward over a ragged batch, on compressed blocks.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "analysis/bases/basis.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/cache_layout.h"
#include "kv/quantizer/codebooks.h"
#include "machine/machine.h"
#include "machine/machine_buffer.h"
#include "model/activations.h"
#include "model/forward.h"
#include "model/layer_program.h"
#include "model/observer.h"
#include "model/rotation_tables.h"
#include "model/weights.h"
#include "plan/cache_plan.h"

namespace kvlathe {

class Model {
 public:
  ~Model();

  // The plan is of this model (FactsOf) and may be gone afterwards: its basis is folded into
  // weights or packed. The model runs on the machine of `weights`, which it shares with other
  // models; they run one after the other. kResourceExhausted when there is no memory for the maps,
  // kDataLoss when weights cannot be read.
  static StatusOr<std::unique_ptr<Model>> Create(std::shared_ptr<ModelWeights> weights,
                                                 const CachePlan& plan);

  // Of a shard, `plan` is of its heads and layers, and a step is one of all ranks: those but rank 0
  // run it when they are told to (StepLeader), with caches of the same lengths.

  // Runs one step. Logits of the tokens asked for are in order of the batch behind logits().
  // Without a basis `observer`, which a shard does not have, sees rows as the model makes them.
  // kResourceExhausted when there is no memory for activations, kInvalidArgument past the table of
  // a model with learned positions; otherwise the error of the first sequence that fails
  // (ForwardEach).
  Status Forward(std::span<const SequenceStep> steps, QkvObserver* observer = nullptr);
  // Runs one step in which a sequence that fails harms no other: (*failures)[i] says why steps[i]
  // failed, and is OK for the rest, whose caches and logits are what they would be without it.
  // kDataLoss when its rows hold NaN or infinity and are to be compressed, kResourceExhausted when
  // the system has no memory to drop or seal what it holds. Its cache is then only good for Clear,
  // and its rows of logits() mean nothing. An error that is returned concerns the whole step, and
  // the caches of all sequences in it.
  Status ForwardEach(std::span<const SequenceStep> steps, std::vector<Status>* failures);

  // For a cache that must_read_again(): reads its prompt again in steps of at most `chunk` tokens,
  // and forgets that but for the votes (RetentionPlan::Votes::kRepeat). `prompt` begins with all
  // tokens of the cache's prompt. Errors are those of ExtendOnTrial and Forward.
  Status ReadPromptAgain(SequenceCache* cache, std::span<const int32_t> prompt, int64_t chunk);

  // Makes room for the activations of steps of so many tokens, which Forward does otherwise.
  // kResourceExhausted.
  Status ReserveSteps(int n_tokens);

  // Seals the runs of every cache that must (SequenceCache::must_seal) in one layer; layers come in
  // order. Forward does it; for caches that were filled otherwise. kDataLoss when rows are not
  // finite, kResourceExhausted when the system has no memory.
  Status SealRuns(int layer_idx, std::span<SequenceCache* const> caches);

  // Seals a run of the cache again, with the bits of EntryClass::kPressed (SequenceCache::
  // RunToPress). The new codes are made in memory of their own, so that the pool may be full.
  // kResourceExhausted when the system has no memory, and then the cache is as it was.
  Status PressRun(SequenceCache* cache, int run_idx);

  // Row i of the last Forward's logits, [vocab_size]; of a step with kHidden it means nothing. Rows
  // are there on rank 0. Several threads may ask at a time.
  std::span<const float> logits(int64_t row) const;
  // The likeliest tokens of that row, LargestPlan::kLargest of them, without the others having to
  // come to the host; null where that saves nothing.
  const LargestNumbers* Likeliest(int64_t row);
  // The same row of hidden states, [hidden_dim], of a step with kHidden.
  std::span<const float> hidden(int64_t row) const;
  int64_t n_logit_rows() const { return n_logit_rows_; }

  // The layout of caches, but for those that LayoutAt gives.
  const CacheLayout& layout() const { return layout_; }
  // Of the caches of all ranks together, where ranks share the model; else layout().
  const CacheLayout& whole_layout() const {
    return whole_layout_.has_value() ? *whole_layout_ : layout_;
  }
  void set_whole_layout(const CacheLayout& layout) { whole_layout_ = layout; }
  // What each rank holds of the cache, the first rank's first; of a whole model one number. The
  // first alone where another rank does not answer.
  std::vector<KvBytes> BytesByRank(const SequenceCache& cache) const;
  // Whether all other ranks still answer. Where there are none, they do.
  Status AskRanks() const;
  // Of a cache of this model at that rate; equal ranks have one layout, which lives as long as the
  // model. kInvalidArgument where the plan offers no rates; other errors are those of its ranks_at.
  StatusOr<const CacheLayout*> LayoutAt(double rate);
  // The rate of one of its layouts; none for layout().
  std::optional<double> RateOf(const CacheLayout& layout) const;
  const ModelConfig& config() const { return weights_->config(); }
  const ModelWeights& weights() const { return *weights_; }
  Machine& machine() const { return weights_->machine(); }
  const ModelCodebooks& codebooks() const { return codebooks_; }
  void set_schedule(Schedule schedule) { schedule_ = schedule; }
  // Identical bits for a token whatever else is in the batch and however its sequence is cut into
  // steps. Prefill is slower then: no oneDNN, no AMX, and attention is not split along a sequence.
  void set_deterministic(bool deterministic) { is_deterministic_ = deterministic; }
  const ForwardProfile& profile() const { return profile_; }
  void ResetProfile() { profile_ = {}; }
  bool has_basis() const { return has_basis_; }
  // What is taken off the head's keys where no basis does so, [head_dim] (docs/quantization.md,
  // Biases of keys); empty: nothing.
  std::span<const float> key_offset(int layer_idx, int kv_head_idx) const;
  // Bytes of all matrices that the products of a step of n_tokens read: of experts those of as many
  // as the tokens reach where all are equally likely.
  int64_t weight_bytes(int64_t n_tokens = 1) const;
  // The same of all matrices.
  int64_t held_weight_bytes() const;
  // Bytes of rotations and codebooks, or of what rotations are found by, of this model alone. What
  // is folded into weights takes none.
  int64_t basis_bytes() const;

 private:
  explicit Model(std::shared_ptr<ModelWeights> weights);
  // Whether rows are attention's and the cache's as they leave their product: nothing turns or
  // changes them in between, and a basis can be folded.
  bool RowsNeedNoTurn(const ModelBasis* basis) const;
  // Whether some queries meet keys that no basis has cut.
  bool NeedsWholeRows() const { return layout_.n_sink > 0 || layout_.ReadsWholeKeys(); }
  // Layer by layer, what a basis (null: none) is folded into or packed for; then its steps.
  Status CompileLayers(const ModelBasis* basis);
  StatusOr<std::unique_ptr<Layer>> MakeLayer(int layer_idx, const ModelBasis* basis);
  // Of every KV head of the layer; empty where they stay in the keys.
  StatusOr<std::vector<FloatTable>> MeanKeyBiases(int layer_idx);

  // Bytes of all matrices, with those of so many experts of each layer that has some.
  int64_t BytesWithExperts(int64_t n_experts) const;
  // Whether the model has learned positions enough.
  Status CheckPositions(std::span<const SequenceStep> steps) const;
  // Sets has_logits_ and has_hidden_.
  void NoteWantedRows(std::span<const SequenceStep> steps);
  Status PlaceTokens(std::span<const SequenceStep> steps);
  // Places the tokens of a step, or of a group of its sequences, and makes room for what it
  // computes.
  StatusOr<ForwardState> Begin(std::span<const SequenceStep> steps, QkvObserver* observer);
  void EmbedTokens();
  // The layers and the logits; failures_ tells which sequences failed.
  Status RunStep(std::span<const SequenceStep> steps, QkvObserver* observer);
  // The same of a shard (model_ranks.cc): as many groups of sequences are on their way through the
  // stages as there are stages.
  bool is_shard() const { return weights_->links().ranks != nullptr; }
  Status RunOnRanks(std::span<const SequenceStep> steps);
  Status RunGroups(std::span<const SequenceStep> steps);
  Status RunGroup(std::span<const SequenceStep> steps);
  Status QueueGroup(ForwardState* state);
  // Waits as long as stages before this one may compute the tokens at work.
  Status ReceiveOfStage(int from, std::span<float> values);
  Status ReceiveStream();
  Status SendStream();
  // Adds the rows of a group to held_logits_ and host_hidden_.
  void HoldLogits();
  // Seals the run of what is held here.
  Status PressHeld(SequenceCache* cache, int run_idx);
  // Has rank 0 get the rows of all words.
  Status CollectLogits();
  // What other ranks say of the step.
  Status HearOthers(std::span<const SequenceStep> steps);
  // Asks for the layers and the logits.
  Status QueueStep(ForwardState* state);
  // The logits of the last step, which come to the host the first time.
  const float* HostLogits() const;
  // Makes hidden states readable on the host, and logits_ where that costs nothing.
  void FetchRows();
  void ComputeLogits(std::span<const SequenceStep> steps);
  int64_t n_held_words() const {
    return weights_->shard().words.end - weights_->shard().words.begin;
  }

  std::shared_ptr<ModelWeights> weights_;
  bool is_deterministic_ = false;
  RotationTables rotations_;
  Schedule schedule_ = Schedule::kBalanced;
  CacheLayout layout_;
  std::optional<CacheLayout> whole_layout_;
  std::vector<BlockShape> row_shapes_;  // CachePlan::row_shapes
  RanksAtRate ranks_at_;                // null: rates are not offered
  struct RateLayout {
    double rate;
    CacheLayout layout;
  };
  std::deque<RateLayout> rate_layouts_;  // that LayoutAt has given, but for layout_
  bool has_basis_ = false;
  std::optional<OnlineInputs> online_;  // where sequences find their bases by them
  ModelCodebooks codebooks_;            // [n_layers], or empty
  std::vector<Resident<CodebooksId>> resident_codebooks_;  // the same on the machine
  std::vector<LayerProgram> programs_;                     // [n_layers]
  ActivationWidths widths_;                                // of all layers
  Activations activations_;
  StepSequences sequences_;
  std::vector<Status> failures_;  // [n_steps] of the last step
  int64_t n_logit_rows_ = 0;
  bool has_logits_ = false;  // some row of the step is of logits
  bool has_hidden_ = false;  // some is of hidden states
  MachineBuffer logits_;     // [n_logit_rows, vocab_size] f32
  // The same where the host can read them; null where nobody has asked for them yet.
  mutable std::atomic<const float*> host_logits_ = nullptr;
  mutable std::mutex downloading_;  // threads that score rows side by side ask together
  mutable std::vector<float> downloaded_logits_;
  std::vector<LargestNumbers> likeliest_;  // [n_logit_rows], or empty
  std::vector<float> held_logits_;  // of a shard: [n_logit_rows, held words] of the whole step
  std::vector<float> host_hidden_;  // [n_logit_rows, hidden_dim], or empty
  // Of the steps of a shard so far, the slowest; negative: there was none.
  double seconds_per_token_ = -1;
  ForwardProfile profile_;
};

}  // namespace kvlathe
