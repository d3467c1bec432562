// What tests of requests on a small random model share.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "engine/engine.h"
#include "model/config.h"
#include "model/small_config.h"

namespace kvlathe {

// The small model, wider.
inline ModelConfig WideConfig(int head_dim) {
  ModelConfig c = SmallConfig(head_dim);
  c.hidden_dim = 128;
  c.ffn_dim = 352;
  c.max_seq_len = 1024;
  return c;
}

// What one request saw and gave.
struct Trace {
  RequestOutcome outcome;
  std::vector<std::vector<float>> logits;  // behind each token

  bool operator==(const Trace& other) const {
    return outcome.tokens == other.outcome.tokens && logits == other.logits &&
           outcome.kv_bytes.total() == other.outcome.kv_bytes.total();
  }
};

// Runs requests that name no stop ids together to their end, under a budget of bytes that the peak
// does not exceed.
inline std::vector<Trace> RunRequests(Model* model, const std::vector<Request>& requests,
                                      int64_t budget, const EngineOptions& options) {
  BlockPool pool(budget);
  std::vector<Trace> traces(requests.size());
  {
    Engine engine(model, &pool, options);
    int row = 0;  // of the step's logits: without stop ids every row gives a token
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto id = engine.Submit(
          requests[i],
          [&, i](auto, int32_t) {
            const std::span<const float> logits = model->logits(row++);
            traces[i].logits.emplace_back(logits.begin(), logits.end());
            return FinishReason::kNone;
          },
          [&, i](auto, const RequestOutcome& o) { traces[i].outcome = o; });
      EXPECT_TRUE(id.ok()) << id.status();
    }
    while (engine.Step()) row = 0;
    for (const Trace& trace : traces) EXPECT_TRUE(trace.outcome.status.ok());
  }
  EXPECT_EQ(pool.usage().used_bytes, 0);
  EXPECT_LE(pool.usage().peak_bytes, budget);
  return traces;
}

}  // namespace kvlathe
