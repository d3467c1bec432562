// These specs together hold everything a sequence can, on a small random model.
#pragma once

#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "analysis/bases/basis.h"
#include "base/cpu_features.h"
#include "base/threads.h"
#include "kv/blocks/sequence_cache.h"
#include "machine/machine.h"
#include "model/model.h"

namespace kvlathe::testing {

enum class CaseBasis {
  kNone,
  kPlain,
  kSplit,
  kSplitClasses,
  kLatents,
  kSplitLatents,
  kSplitCentred,  // keys less their mean
  kSplitFrames,
  kSplitJoined,
  kSplitClassLatents,
  kSplitPressed,
  kSplitPressedCentred,
  kSplitPressedLatents,
  kSplitPressedFrames,
  kSplitPressedJoined,
  kSharedLatents,
  kOnline
};

// What attention of the model asks for besides.
enum class CaseScores { kPlain, kCapped, kSinkLogits };

struct SequenceCase {
  std::string name;  // of the test
  std::string spec;
  CaseBasis basis = CaseBasis::kNone;
  CaseScores scores = CaseScores::kPlain;

  friend void PrintTo(const SequenceCase& of, std::ostream* out) { *out << of.spec; }
};

// Plain blocks, sinks, runs with and without records, records that a layer shares, a window,
// positions and votes, entries that still merge, queries gathered for a basis, and combinations of
// them.
std::span<const SequenceCase> SequenceCases();

// Those whose caches may be shared (SharesPrefixes).
std::vector<SequenceCase> SharingCases();

// Every spec that the recording names (tests/recording/specs.txt).
std::vector<SequenceCase> RecordedCases();

// Of random weights, which merge half of the positions where the case merges.
std::unique_ptr<Model> MakeCaseModel(const SequenceCase& of, std::shared_ptr<Machine> machine);
// On the processors of this computer.
std::unique_ptr<Model> MakeCaseModel(const SequenceCase& of, ThreadPool* threads, Isa isa);

// Seals the oldest run again with fewer bits, of a cache that has such runs.
void PressOldest(Model* model, SequenceCache* cache);

// Reads tokens in pieces of at most that many. The bits of the last logits.
std::string Feed(Model* model, SequenceCache* cache, std::span<const int32_t> ids, size_t piece);

std::vector<int32_t> RandomTokens(int n, uint64_t seed);

}  // namespace kvlathe::testing
