#include "loaded_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/planned_model.h"
#include "random_model.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe::testing {
namespace {

constexpr int64_t kBudgetBytes = int64_t{256} << 20;

// Of a directory or a GGUF file; null, with a failure of the test, if it cannot be opened.
std::unique_ptr<TensorSource> OpenSource(const std::string& model) {
  if (model.ends_with(".gguf")) {
    auto file = GgufFile::Open(model);
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? MakeGgufSource(std::make_shared<const GgufFile>(*std::move(file))) : nullptr;
  }
  auto reader = SafetensorsReader::OpenModel(model);
  EXPECT_TRUE(reader.ok()) << reader.status();
  return reader.ok() ? MakeFileSource(*std::move(reader)) : nullptr;
}

}  // namespace

LoadedModel LoadModel(const std::string& directory, const NumberTypes& types, Isa isa,
                      const ModelBasis* basis, int n_sink, int context,
                      const std::function<std::shared_ptr<Machine>(ThreadPool*)>& make_machine) {
  LoadedModel loaded;
  loaded.pool = std::make_unique<ThreadPool>(2);
  loaded.machine =
      make_machine ? make_machine(loaded.pool.get()) : MakeMachine(loaded.pool.get(), isa);
  loaded.blocks = std::make_unique<BlockPool>(kBudgetBytes, &loaded.machine->memory());
  auto config = LoadModelConfig(directory);
  EXPECT_TRUE(config.ok()) << config.status();
  if (context > 0) config->ChooseContext(context);
  auto weights = ModelWeights::Load(*config, types, OpenSource(directory), loaded.machine);
  EXPECT_TRUE(weights.ok()) << weights.status();
  loaded.weights = *std::move(weights);
  auto model = CreateModel(loaded.weights, PartsOf(basis, n_sink));
  EXPECT_TRUE(model.ok()) << model.status();
  loaded.model = *std::move(model);
  return loaded;
}

std::unique_ptr<Model> LoadWithBases(const ModelOnDisk& on_disk, const NumberTypes& types,
                                     const char* spec_text, std::shared_ptr<Machine> machine) {
  const auto spec = Spec::Parse(spec_text);
  EXPECT_TRUE(spec.ok() && CheckSupported(*spec).ok()) << spec.status();
  auto weights = ModelWeights::Load(*LoadModelConfig(on_disk.directory), types,
                                    OpenSource(on_disk.directory), std::move(machine));
  EXPECT_TRUE(weights.ok()) << weights.status();
  ModelBasis basis = ToModelBasis(on_disk.reference, on_disk.bases);
  if (FactsOf(spec->sealing()).splits_bits) DrawSplitBits(&basis);
  auto model =
      CreateModel(*std::move(weights), PartsOf(*spec, on_disk.bases.empty() ? nullptr : &basis));
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

Matrix EngineLogits(LoadedModel* loaded, const std::vector<int>& ids,
                    const std::vector<int>& chunks, int n_prompt) {
  SequenceCache cache(&loaded->model->layout(), loaded->blocks.get());
  if (n_prompt > 0) cache.set_n_prompt(n_prompt);
  Matrix logits;
  const std::vector<int32_t> tokens(ids.begin(), ids.end());
  for (size_t begin = 0, chunk = 0; begin < tokens.size(); ++chunk) {
    const int64_t wanted = chunks[std::min(chunk, chunks.size() - 1)];
    const auto n = static_cast<size_t>(
        std::min<int64_t>({wanted, static_cast<int64_t>(tokens.size() - begin), cache.max_step()}));
    EXPECT_TRUE(cache.Extend(static_cast<int>(n)).ok());
    const SequenceStep step{&cache, std::span(tokens).subspan(begin, n),
                            SequenceStep::Logits::kAll};
    EXPECT_TRUE(loaded->model->Forward({&step, 1}).ok());
    for (size_t t = 0; t < n; ++t) {
      const auto row = loaded->model->logits(static_cast<int64_t>(t));
      logits.emplace_back(row.begin(), row.end());
    }
    begin += n;
  }
  return logits;
}

double MaxDifference(const Matrix& a, const Matrix& b) {
  EXPECT_EQ(a.size(), b.size());
  double max = 0;
  for (size_t t = 0; t < a.size(); ++t) {
    for (size_t i = 0; i < a[t].size(); ++i) {
      const double difference = std::abs(a[t][i] - b[t][i]);
      max = std::isnan(difference) ? INFINITY : std::max(max, difference);
    }
  }
  return max;
}

double MeanNll(const Matrix& logits, const std::vector<int>& ids) {
  double sum = 0;
  for (size_t t = 0; t + 1 < ids.size(); ++t) {
    double max = logits[t][0], total = 0;
    for (double x : logits[t]) max = std::max(max, x);
    for (double x : logits[t]) total += std::exp(x - max);
    sum += max + std::log(total) - logits[t][ids[t + 1]];
  }
  return ids.size() > 1 ? sum / static_cast<double>(ids.size() - 1) : 0;
}

}  // namespace kvlathe::testing
