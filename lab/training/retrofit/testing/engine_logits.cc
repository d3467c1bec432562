#include "training/retrofit/testing/engine_logits.h"

#include <gtest/gtest.h>

#include <span>

#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/spec/spec.h"
#include "model/planned_model.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {

std::vector<std::vector<float>> StepwiseEngineLogits(const std::string& directory,
                                                     const std::string& spec,
                                                     const std::vector<int32_t>& tokens) {
  ThreadPool pool(1);
  auto weights = ModelWeights::Load(*LoadModelConfig(directory), DType::kF32,
                                    MakeFileSource(*SafetensorsReader::OpenModel(directory)),
                                    MakeMachine(&pool, Isa::kScalar));
  EXPECT_TRUE(weights.ok()) << weights.status();
  auto model = CreateModel(*std::move(weights), PartsOf(*Spec::Parse(spec), nullptr));
  EXPECT_TRUE(model.ok()) << model.status();
  std::vector<std::vector<float>> found;
  for (const size_t n_step : {size_t{1}, tokens.size()}) {
    HostPool blocks(int64_t{64} << 20);
    SequenceCache cache(&(*model)->layout(), &blocks);
    std::vector<float>& logits = found.emplace_back();
    for (size_t at = 0; at < tokens.size(); at += n_step) {
      EXPECT_TRUE(cache.Extend(static_cast<int>(n_step)).ok());
      const std::span<const int32_t> input = std::span(tokens).subspan(at, n_step);
      const SequenceStep step{&cache, {input.begin(), input.end()}, SequenceStep::Logits::kAll};
      EXPECT_TRUE((*model)->Forward({&step, 1}).ok());
      for (size_t i = 0; i < n_step; ++i) {
        const auto row = (*model)->logits(static_cast<int64_t>(i));
        logits.insert(logits.end(), row.begin(), row.end());
      }
    }
  }
  return found;
}

}  // namespace kvlathe
