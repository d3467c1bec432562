// A ForwardState is one step of the batch: its sequences, and what the steps of every layer share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/blocks/sequence_cache.h"
#include "machine/attention/schedule.h"
#include "machine/backend.h"
#include "model/activations.h"
#include "model/observer.h"

namespace kvlathe {

// The part of one sequence in a step: a prefill chunk or one decode token. The cache has been
// extended by token_ids.size() positions, which this step fills.
struct SequenceStep {
  // kHidden: in place of logits the hidden state of each token, behind the last norm.
  enum class Logits { kNone, kLast, kAll, kHidden };
  SequenceCache* cache = nullptr;
  std::span<const int32_t> token_ids;
  Logits logits = Logits::kLast;

  int n_new() const { return static_cast<int>(token_ids.size()); }
  int first_position() const { return cache->n_tokens() - n_new(); }
  int64_t n_logit_rows() const {
    const bool has_all = logits == Logits::kAll || logits == Logits::kHidden;
    return has_all ? n_new() : logits == Logits::kLast ? 1 : 0;
  }
};

// How the time of forwards was spent, in seconds, summed over calls.
struct ForwardProfile {
  double linear = 0;     // all products with model weights
  double rotate = 0;     // RoPE and the basis of q and k
  double append = 0;     // writing rows into blocks
  double attention = 0;  // plan, kernels, merge
  double plan = 0;       // of attention: sharing it out among workers
  double rebuild = 0;    // of attention: keys and values from latents and other bases
  double seal = 0;       // plain blocks to codes, scales and repairs
  double prune = 0;      // choosing entries and closing their gaps
  double messages = 0;   // to and from other ranks, and waiting for them
  double waiting = 0;    // of messages: for ranks that were not as far, where that is measured
  double other = 0;      // norms, gates, embedding

  // Adds `more` times `sign`.
  void Add(const ForwardProfile& more, double sign = 1) {
    for (double ForwardProfile::*part :
         {&ForwardProfile::linear, &ForwardProfile::rotate, &ForwardProfile::append,
          &ForwardProfile::attention, &ForwardProfile::plan, &ForwardProfile::rebuild,
          &ForwardProfile::seal, &ForwardProfile::prune, &ForwardProfile::messages,
          &ForwardProfile::waiting, &ForwardProfile::other}) {
      this->*part += sign * more.*part;
    }
  }
};

// The sequences of a step: which of them have failed, and which end a run that is to be sealed.
class StepSequences {
 public:
  // first_layer: the number of the first layer at work in the whole model, for errors.
  void Begin(std::span<const SequenceStep> steps, int first_layer = 0);

  std::span<const SequenceStep> steps() const { return steps_; }
  // Marks a sequence as failed: nothing of it is dropped, cut or sealed any more. Its first error
  // is kept.
  void Fail(SequenceCache* cache, const Status& status);
  // Marks those that failed on the machine and adds what re-sealing has cost.
  void Learn(const StepReport& report);
  // The number of the cache among steps(), by which plans know its sequence.
  int NumberOf(const SequenceCache* cache) const;
  bool has_failed(size_t step_idx) const { return !failures_[step_idx].ok(); }
  bool AllFailed() const;
  const std::vector<Status>& failures() const { return failures_; }  // [n_steps]
  // The caches whose step ended a run, but for failed ones.
  const std::vector<SequenceCache*>& sealing() const { return sealing_; }

 private:
  std::span<const SequenceStep> steps_;
  int first_layer_ = 0;
  std::vector<Status> failures_;
  std::vector<SequenceCache*> sealing_;
};

// A head whose sealed entries a prune opened, in the layer at work.
struct OpenedHead {
  SequenceCache* cache;
  int kv_head_idx;
};

// What the steps of a layer work on.
struct ForwardState {
  StepSequences* sequences = nullptr;
  Activations* activations = nullptr;
  Backend* backend = nullptr;
  ForwardProfile* profile = nullptr;
  QkvObserver* observer = nullptr;  // null: nobody looks
  Schedule schedule = Schedule::kBalanced;
  std::vector<OpenedHead> opened;

  std::span<const SequenceStep> steps() const { return sequences->steps(); }
};

}  // namespace kvlathe
