// What caches that drop entries hold and give back, in bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/cpu_features.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
#include "retained_model.h"

namespace kvlathe {
namespace {

// The closed formulas by hand: whole keys until the prompt ends, and what was there before counts
// for admission.
TEST_F(RetainedModelTest, WholeKeysAreAdmittedAndGoWhereThePromptEnds) {
  for (const char* spec : {"fdc+h2o(keep=0.4,prune=prompt,score=exact,sink=4)",
                           "fdc+tova(budget=40,score=exact,sink=0)",
                           "fdc+snapkv(budget=100,score=exact,sink=0)+kivi(bits=2)"}) {
    SCOPED_TRACE(spec);
    std::unique_ptr<Model> model = Load(AvailableIsas().back(), DType::kBf16, spec);
    const CacheLayout& layout = model->layout();
    const auto read = [&](int64_t budget) {
      HostPool pool(budget);
      SequenceCache cache(&layout, &pool);
      cache.set_n_prompt(kPrompt, kTokens - kPrompt);
      while (cache.n_tokens() < kTokens) {
        const int begin = cache.n_tokens();
        const int n = static_cast<int>(std::min<int64_t>(kTokens - begin, cache.max_step()));
        KVL_RETURN_IF_ERROR(cache.Extend(n));
        if (begin + n == kPrompt) {  // before it is cut
          int64_t n_bytes = 0;
          for (int l = 0; l < layout.n_layers; ++l) {
            for (int g = 0; g < layout.n_kv_heads; ++g) {
              n_bytes += std::ssize(cache.head(l, g).blocks()) * kBlockSize * 2 *
                         (reference_.head_dim + layout.shape(l, g).rank_v);
            }
          }
          EXPECT_EQ(cache.bytes().blocks, n_bytes);
        }
        const SequenceStep step{&cache, std::span(ids_).subspan(begin, n)};
        KVL_RETURN_IF_ERROR(model->Forward({&step, 1}));
        EXPECT_EQ(pool.usage().used_bytes, SequenceBytes(layout, begin + n, n, kPrompt));
      }
      return OkStatus();
    };
    const int64_t peak = PeakSequenceBytes(layout, kTokens, 512, kPrompt);
    EXPECT_GT(peak, SequenceBytes(layout, kTokens, 1, kPrompt));
    const Status status = read(peak);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(read(peak - 1).code(), StatusCode::kResourceExhausted);
  }
}

// What is dropped is free for others, sealed or not.
TEST_F(RetainedModelTest, FreedBytesAdmitAnotherSequence) {
  struct Budget {
    const char* spec;
    int n_tokens;
  };
  for (const auto& [spec, n_tokens] : {Budget{"h2o(budget=64,sink=0)", kPrompt},
                                       Budget{"h2o(budget=70,sink=0)+gear(bits=4)", kManyTokens}}) {
    SCOPED_TRACE(spec);
    std::unique_ptr<Model> model = Load(AvailableIsas().back(), DType::kBf16, spec);
    const int64_t full = SequenceBytes(model->layout(), n_tokens, 1, kPrompt);
    HostPool pool(PeakSequenceBytes(model->layout(), n_tokens, 512, kPrompt) + full);
    std::vector<std::unique_ptr<SequenceCache>> caches;
    const auto read = [&] {
      caches.push_back(std::make_unique<SequenceCache>(&model->layout(), &pool));
      caches.back()->set_n_prompt(kPrompt);
      while (caches.back()->n_tokens() < n_tokens) {
        const int begin = caches.back()->n_tokens();
        const int n =
            static_cast<int>(std::min<int64_t>(n_tokens - begin, caches.back()->max_step()));
        KVL_RETURN_IF_ERROR(caches.back()->Extend(n));
        const SequenceStep step{caches.back().get(), std::span(ids_).subspan(begin, n)};
        KVL_RETURN_IF_ERROR(model->Forward({&step, 1}));
      }
      return OkStatus();
    };
    EXPECT_TRUE(read().ok());
    const int64_t used = pool.usage().used_bytes;
    EXPECT_EQ(used, full);
    EXPECT_TRUE(read().ok());  // in what the first gave back
    EXPECT_EQ(pool.usage().used_bytes, 2 * full);
    EXPECT_EQ(read().code(), StatusCode::kResourceExhausted);
    caches.erase(caches.begin());
    caches.pop_back();
    EXPECT_TRUE(read().ok());
  }
}

}  // namespace
}  // namespace kvlathe
