// A RowCodec is the compressed cache of a model without the model: rows of queries, keys and values
// come from outside, layer by layer, and attention's outputs go back.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codec/codec_layer.h"
#include "codec/codec_sequence.h"
#include "codec/given_statistics.h"
#include "codec/stored_entries.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/sequence_file.h"
#include "machine/machine.h"
#include "model/config.h"
#include "plan/planner.h"

namespace kvlathe {

struct CodecOptions {
  std::string spec = "none";
  DType row_type = DType::kF32;  // of rows on their way and of plain blocks: kF32 or kBf16
  int max_positions = 0;         // at which a promised ratio holds; 0: those of the config
  NamedStatistics statistics;
  GivenWeights weights = {};
};

// Rows of one layer for several sequences, one after the other: queries [n_tokens, n_heads,
// head_dim], keys and values [n_tokens, n_kv_heads, head_dim], F32 and dense.
struct CodecRows {
  int layer_idx = 0;
  const float* q = nullptr;  // null: rows are only stored
  const float* k = nullptr;
  const float* v = nullptr;
  bool are_turned = true;       // queries and keys come after RoPE
  std::optional<double> scale;  // of q k^T; none: that of the model, 1 / sqrt(head_dim) in most
  // [n_heads], where the config has sink logits: what counts in the sum that the probabilities of a
  // head are divided by as a score without a value does. It is needed with queries.
  const float* sink_logits = nullptr;
  float* out = nullptr;  // [n_tokens, n_heads, head_dim], with queries
};

// The tokens of a sequence among such rows.
struct CodecStep {
  CodecSequence* sequence = nullptr;
  int n_new = 0;
};

// One thread at a time uses a codec and its sequences.
class RowCodec {
 public:
  // `config` says all of the model's attention (codec/row_shape.h). Errors are those of the
  // spec and of plans; kUnimplemented where a method needs what rows do not show.
  static StatusOr<std::unique_ptr<RowCodec>> Create(const ModelConfig& config,
                                                    const CodecOptions& options,
                                                    std::shared_ptr<Machine> machine);

  const ModelConfig& config() const { return config_; }
  const Spec& spec() const { return spec_; }
  const CacheLayout& layout() const { return layout_; }  // of all layers
  const NumberTypes& types() const { return types_; }
  CodecLayer& layer(int layer_idx) { return *layers_[layer_idx]; }
  Machine& machine() { return *machine_; }
  BlockPool& pool() { return pool_; }
  // How time was spent; reading sealed blocks counts as `rebuild`.
  const ForwardProfile& profile() const { return profile_; }

  // Bytes of a sequence of which n_prompt positions were its prompt, as the allocator counts them
  // where no method decides by what the rows are.
  int64_t BytesAt(int64_t n_tokens, int64_t n_prompt) const;
  // Of the context that was asked for, over those of rows in 16 bits.
  double Fraction() const;

  // A sequence without rows. n_prompt: where its prompt ends; 0: with its first step.
  std::unique_ptr<CodecSequence> NewSequence(int64_t n_prompt = 0);
  // kResourceExhausted; kFailedPrecondition within a step.
  StatusOr<std::unique_ptr<CodecSequence>> Copy(const CodecSequence& sequence);

  // Appends the rows of a layer and, with queries, attends to all that each sequence holds. The
  // layers of a step come from 0 on, and a step of a sequence has one length in all of them. An
  // error that is returned concerns all sequences, and nothing has changed where it is
  // kInvalidArgument or kFailedPrecondition; else (*failures)[i] says why steps[i] failed, which
  // harms no other: kDataLoss when its rows are to be compressed and hold NaN or infinity. Outputs
  // of failed steps are zero.
  Status Run(std::span<const CodecStep> steps, const CodecRows& rows,
             std::vector<Status>* failures);

  // What the sequence holds of a layer; errors are those of ReadEntries and of Save.
  StatusOr<StoredEntries> Read(const CodecSequence& sequence, int layer_idx);

  // The rows of all positions, in their order, into [n_layers, n_tokens, n_kv_heads, head_dim]
  // each; kFailedPrecondition too where some are not held any more.
  Status Decode(const CodecSequence& sequence, float* k, float* v);

  // The sequence as bytes, which only a codec of the same shape, spec and statistics loads.
  StatusOr<std::string> Save(const CodecSequence& sequence);
  // kDataLoss for bytes that are damaged or of another codec, kResourceExhausted.
  StatusOr<std::unique_ptr<CodecSequence>> Load(std::span<const std::byte> bytes);

 private:
  RowCodec(const ModelConfig& config, const CodecOptions& options,
           std::shared_ptr<Machine> machine);
  // kFailedPrecondition within a step; `verb` is what was asked.
  Status CheckIsBetweenSteps(const CodecSequence& sequence, const char* verb) const;
  Status MakePlan(const CodecOptions& options);
  Status MakeLayers(const CachePlan& plan);
  StatusOr<StoredEntries> ReadThrough(ScratchBlocks* scratch, const CodecSequence& sequence,
                                      int layer_idx, const EntryTarget* target);
  Status CheckSteps(std::span<const CodecStep> steps, const CodecRows& rows);
  // The next piece of every sequence: as many tokens as its cache takes at once, and no more than
  // kMostTokens together.
  struct Piece {
    CodecStep step;         // of the piece
    size_t number = 0;      // among the steps of the call
    int64_t first_row = 0;  // among the rows of the call
  };
  Status RunPieces(std::span<const Piece> pieces, const CodecRows& rows,
                   std::vector<Status>* failures);
  Status PlacePieces(std::span<const Piece> pieces, const CodecRows& rows);
  // The row of each token among those of the call.
  static std::vector<int64_t> RowsOfCall(std::span<const Piece> pieces);
  void FillRows(std::span<const Piece> pieces, const CodecRows& rows);
  void FetchOutputs(std::span<const Piece> pieces, const CodecRows& rows);
  // Rows [0, n_tokens) of the activations, shared out among the workers: fn(begin, end).
  template <typename F>
  void ForTokens(int64_t n_tokens, const F& fn);

  static constexpr int kMostTokens = 512;

  std::shared_ptr<Machine> machine_;
  ModelConfig config_;
  NumberTypes types_;
  Spec spec_;
  GivenStatistics source_;
  std::unique_ptr<CachePlanner> planner_;  // which rates of plans refer to
  CacheLayout layout_;
  SequenceIdentity identity_;
  std::deque<KindOfLayers> kinds_;
  std::vector<std::unique_ptr<CodecLayer>> layers_;
  BlockPool pool_;

  Activations activations_;
  ActivationWidths widths_;
  StepSequences sequences_;
  ForwardProfile profile_;
  std::vector<SequenceStep> steps_;
  std::vector<int32_t> no_ids_ = std::vector<int32_t>(kMostTokens);  // words mean nothing here
  std::vector<std::byte> outputs_;  // where the host does not read the machine's memory
};

}  // namespace kvlathe
