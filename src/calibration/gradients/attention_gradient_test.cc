#include "calibration/gradients/attention_gradient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/cpu_features.h"
#include "base/random.h"

namespace kvlathe {
namespace {

using Values = std::vector<double>;

constexpr int kHeads = 4, kKvHeads = 2, kHeadDim = 16;
constexpr int64_t kTokens = 150;  // two blocks of queries

struct DrawnRows {
  std::vector<float> q, k, v, d_out;
  explicit DrawnRows(uint64_t seed) {
    Random random(seed);
    for (auto* values : {&q, &k, &v, &d_out}) {
      const int heads = values == &k || values == &v ? kKvHeads : kHeads;
      for (int64_t i = 0; i < kTokens * heads * kHeadDim; ++i) {
        values->push_back(static_cast<float>(random.Normal()));
      }
    }
  }
  AttentionRows rows() const {
    return {q.data(), kHeads * kHeadDim,  k.data(), kKvHeads * kHeadDim,
            v.data(), kKvHeads * kHeadDim};
  }
};

// What scores become and what counts beside them.
struct Rules {
  double scale = 1 / std::sqrt(kHeadDim), cap = 0;
  std::vector<float> sink_logits;  // empty: none
};

// The gradients by their definition, in double.
struct Expected {
  Values out = Values(kTokens * kHeads * kHeadDim), dq = out;
  Values dk = Values(kTokens * kKvHeads * kHeadDim), dv = dk, far_k = dk, far_v = dk;

  Expected(const DrawnRows& r, int window, int newest, const Rules& rules = {}) {
    for (int h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < kTokens; ++i) AddQuery(r, h, i, window, newest, rules);
    }
  }
  void AddQuery(const DrawnRows& r, int h, int64_t i, int window, int newest, const Rules& rules) {
    const int64_t first = window > 0 ? std::max<int64_t>(0, i - window + 1) : 0;
    const int64_t q = (i * kHeads + h) * kHeadDim, group = kHeads / kKvHeads;
    const auto kv = [&](int64_t j) { return (j * kKvHeads + h / group) * kHeadDim; };
    Values p(i + 1), dp(i + 1), slope(i + 1, rules.scale);
    double sum = rules.sink_logits.empty() ? 0 : std::exp(rules.sink_logits[h]), common = 0;
    for (int64_t j = first; j <= i; ++j) {
      double score = 0;
      for (int c = 0; c < kHeadDim; ++c) {
        score += double{r.q[q + c]} * r.k[kv(j) + c];
        dp[j] += double{r.d_out[q + c]} * r.v[kv(j) + c];
      }
      score *= rules.scale;
      if (rules.cap > 0) {
        const double t = std::tanh(score / rules.cap);
        score = rules.cap * t;
        slope[j] *= 1 - t * t;
      }
      sum += p[j] = std::exp(score);
    }
    for (int64_t j = first; j <= i; ++j) common += (p[j] /= sum) * dp[j];
    for (int64_t j = first; j <= i; ++j) {
      const double ds = p[j] * (dp[j] - common) * slope[j];
      const bool is_far = i - j >= newest;
      for (int c = 0; c < kHeadDim; ++c) {
        out[q + c] += p[j] * r.v[kv(j) + c];
        dq[q + c] += ds * r.k[kv(j) + c];
        dk[kv(j) + c] += ds * r.q[q + c];
        dv[kv(j) + c] += p[j] * r.d_out[q + c];
        if (!is_far) continue;
        far_k[kv(j) + c] += ds * r.q[q + c];
        far_v[kv(j) + c] += p[j] * r.d_out[q + c];
      }
    }
  }
};

void ExpectNear(const std::vector<float>& found, const Values& expected, const char* what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], 1e-4) << what << " " << i;
  }
}

void ExpectDefinition(const DrawnRows& drawn, const Rules& rules, int window, int newest,
                      WindowAttention* attention) {
  const Expected expected(drawn, window, newest, rules);
  const AttentionShape shape = {
      .n_tokens = kTokens,
      .n_heads = kHeads,
      .n_kv_heads = kKvHeads,
      .head_dim = kHeadDim,
      .window = window,
      .newest = newest,
      .scale = static_cast<float>(rules.scale),
      .cap = static_cast<float>(rules.cap),
      .sink_logits = rules.sink_logits.empty() ? nullptr : rules.sink_logits.data()};
  ASSERT_TRUE(attention->Prepare(shape).ok());
  std::vector<float> out(expected.out.size()), dq = out;
  std::vector<float> dk(expected.dk.size()), dv = dk, far_k = dk, far_v = dk;
  attention->Run(drawn.rows(), out.data());
  attention->RunBack(drawn.rows(), out.data(), drawn.d_out.data(),
                     {dq.data(), kHeads * kHeadDim, dk.data(), kKvHeads * kHeadDim, dv.data(),
                      kKvHeads * kHeadDim, far_k.data(), far_v.data()});
  ExpectNear(out, expected.out, "out");
  ExpectNear(dq, expected.dq, "dq");
  ExpectNear(dk, expected.dk, "dk");
  ExpectNear(dv, expected.dv, "dv");
  ExpectNear(far_k, expected.far_k, "far_k");
  ExpectNear(far_v, expected.far_v, "far_v");
}

TEST(AttentionGradientTest, IsTheDefinitionWithAndWithoutAWindow) {
  ThreadPool pool(3);
  const DrawnRows drawn(1);
  for (const Isa isa : AvailableIsas()) {
    WindowAttention attention(&pool, &GetElementwiseKernels(isa));
    for (const int window : {0, 40, 9}) {
      for (const int newest : {0, 1, 32, 200}) {
        ExpectDefinition(drawn, {}, window, newest, &attention);
      }
    }
  }
}

TEST(AttentionGradientTest, ScalesCapsAndSinksAreTheDefinition) {
  ThreadPool pool(3);
  const DrawnRows drawn(2);
  const Rules scaled = {.scale = 0.4, .cap = 0, .sink_logits = {}};
  const Rules capped = {.scale = 0.3, .cap = 1.5, .sink_logits = {}};
  const Rules sinks = {.scale = 0.3, .cap = 0, .sink_logits = {1, 4, -2, 0.5}};
  const Rules both = {.scale = 0.3, .cap = 2, .sink_logits = {1, 4, -2, 0.5}};
  for (const Isa isa : AvailableIsas()) {
    WindowAttention attention(&pool, &GetElementwiseKernels(isa));
    for (const Rules& rules : {scaled, capped, sinks, both}) {
      for (const int window : {0, 9}) ExpectDefinition(drawn, rules, window, 4, &attention);
    }
  }
}

}  // namespace
}  // namespace kvlathe
