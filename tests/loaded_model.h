// A test runs a model directory or GGUF file, and gets its logits for a text however the text is
// cut.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "kv/blocks/block_pool.h"
#include "machine/machine.h"
#include "model/model.h"
#include "reference_decoder.h"

namespace kvlathe::testing {

// Members in the order in which they depend on each other.
struct LoadedModel {
  std::unique_ptr<ThreadPool> pool;
  std::shared_ptr<Machine> machine;
  std::unique_ptr<BlockPool> blocks;
  std::shared_ptr<ModelWeights> weights;
  std::unique_ptr<Model> model;
};

// `context`: the longest text it must serve, which chooses among the factors of LongRope; 0: as
// long as the model allows.
// `make_machine` makes one that takes the place of the processors with `isa`.
LoadedModel LoadModel(
    const std::string& directory, const NumberTypes& types, Isa isa,
    const ModelBasis* basis = nullptr, int n_sink = 0, int context = 0,
    const std::function<std::shared_ptr<Machine>(ThreadPool*)>& make_machine = nullptr);

// A random model in a directory, what it should compute, and bases of its heads; none: empty.
struct ModelOnDisk {
  const std::string& directory;
  const ReferenceModel& reference;
  const std::vector<ReferenceBasis>& bases;
};
// The model with the cache of a spec.
std::unique_ptr<Model> LoadWithBases(const ModelOnDisk& on_disk, const NumberTypes& types,
                                     const char* spec_text, std::shared_ptr<Machine> machine);

// Logits after every token, fed in chunks of the given sizes (the last one repeats) and of no more
// than the cache takes at once. n_prompt 0: the prompt does not end.
Matrix EngineLogits(LoadedModel* loaded, const std::vector<int>& ids,
                    const std::vector<int>& chunks, int n_prompt = 0);

// Infinite where one of the two is no number.
double MaxDifference(const Matrix& a, const Matrix& b);

// Mean negative log-likelihood of every token but the first, in nats.
double MeanNll(const Matrix& logits, const std::vector<int>& ids);

}  // namespace kvlathe::testing
