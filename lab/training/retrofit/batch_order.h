// A run reads its corpus in this order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "training/corpus/corpus.h"
#include "training/retrofit/recipe.h"

namespace kvlathe {

// Which sequences a run reads, a function of (recipe, corpus, seed) and of one counter: the number
// of sequences that the phase has read. A source is read without repetition until it is used up,
// then again in another order.
class BatchOrder {
 public:
  // kInvalidArgument when the recipe names a source that the corpus lacks, rows of another length
  // than the phase's context, or a stream shorter than a sequence.
  static StatusOr<BatchOrder> Create(const TrainingRecipe* recipe, const Corpus* corpus);

  // Sequence `index` of a phase: context + 1 token ids (inputs, and targets one later) in `out`.
  // A sequence of a stream starts with BOS in place of the token that stood there, if the corpus
  // has BOS. Tokens that are only read carry kNotLearned.
  void Read(int phase_idx, int64_t index, std::span<int64_t> out) const;
  // Sequence `index` of the validation source in windows of `context` tokens, in order of the text.
  void ReadValidation(int64_t index, std::span<int64_t> out) const;
  int64_t n_validation_sequences(int context) const;

 private:
  // Sources alternate in a cycle that repeats: who is read at each place of it.
  struct Turn {
    int source_idx = 0;
    int n_before = 0;  // turns of the same source earlier in the cycle
  };
  struct PhaseOrder {
    std::vector<std::string> sources;
    std::vector<int> n_turns;  // of each source in a cycle
    std::vector<Turn> cycle;
  };
  static PhaseOrder MakeOrder(const TrainingPhase& phase, uint64_t seed);
  Status Check(const TrainingPhase& phase) const;
  void ReadStream(const TokenView& tokens, uint64_t key, int64_t index,
                  std::span<int64_t> out) const;

  const TrainingRecipe* recipe_ = nullptr;
  const Corpus* corpus_ = nullptr;
  std::vector<PhaseOrder> phases_;
};

// A permutation of [0, n) that depends on the key; position i of it.
int64_t PermutedIndex(uint64_t key, int64_t n, int64_t i);

}  // namespace kvlathe
