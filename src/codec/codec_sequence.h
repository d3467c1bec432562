// The compressed rows of one sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kv/blocks/sequence_cache.h"

namespace kvlathe {

// Every layer has a cache of its own, of one layer each, so that a layer may take many rows, in
// several pieces, before the next gets its first. Together they hold the bytes of a cache of all
// layers. A RowCodec fills it.
class CodecSequence {
 public:
  using Caches = std::vector<std::unique_ptr<SequenceCache>>;  // [n_layers]

  // n_prompt: where the prompt ends; 0: with the first step.
  CodecSequence(Caches caches, int64_t n_prompt)
      : caches_(std::move(caches)), n_prompt_(n_prompt) {}

  int n_layers() const { return static_cast<int>(caches_.size()); }
  // Positions that all layers have.
  int n_tokens() const { return caches_.back()->n_tokens(); }
  // Of which the next layer is next_layer(), which is 0 between steps; 0 before one.
  int n_new() const { return n_new_; }
  int next_layer() const { return next_layer_; }
  int64_t n_prompt() const { return n_prompt_; }
  // What went wrong; then the rows mean nothing, until Clear.
  const Status& failure() const { return failure_; }
  SequenceCache& cache(int layer_idx) const { return *caches_[layer_idx]; }
  KvBytes bytes() const;

  // Gives all rows back. n_prompt as above.
  void Clear(int64_t n_prompt);

  // --- For a RowCodec. ---
  void BeginStep(int n_new);
  void EndLayer();
  void Fail(const Status& status) { failure_.Update(status); }
  void set_n_prompt(int64_t n_prompt) { n_prompt_ = n_prompt; }
  void set_failure(const Status& status) { failure_ = status; }

 private:
  Caches caches_;
  int64_t n_prompt_;
  int n_new_ = 0;
  int next_layer_ = 0;
  Status failure_;
};

}  // namespace kvlathe
