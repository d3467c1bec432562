#include "calibration/attention_moments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"

namespace kvlathe {
namespace {

constexpr StatisticsShape kShape = {2, 4, 2, 8};

struct Sequence {  // of one layer
  std::vector<float> q, k, v;
  int n_tokens;
};

Sequence RandomSequence(int n_tokens, uint64_t seed) {
  Random random(seed);
  Sequence s;
  s.n_tokens = n_tokens;
  s.q.resize(int64_t{n_tokens} * kShape.n_heads * kShape.head_dim);
  s.k.resize(int64_t{n_tokens} * kShape.n_kv_heads * kShape.head_dim);
  s.v.resize(s.k.size());
  for (auto* rows : {&s.q, &s.k, &s.v}) {
    for (float& x : *rows) x = static_cast<float>(0.3 + random.Normal());
  }
  return s;
}

struct Moments {
  std::vector<double> mean = std::vector<double>(8), gram = std::vector<double>(64);
  double weight = 0;
  void Add(const double* row, double w) {
    weight += w;
    for (int i = 0; i < 8; ++i) {
      mean[i] += w * row[i];
      for (int j = 0; j < 8; ++j) gram[i * 8 + j] += w * row[i] * row[j];
    }
  }
};

struct Expected {
  Moments q, k, v, k_in_blocks;
};

std::vector<double> Row(const std::vector<float>& rows, int t, int n_heads, int head) {
  const auto first = rows.begin() + (int64_t{t} * n_heads + head) * 8;
  return {first, first + 8};
}

// Keys of the whole blocks before position t less their means, by the weights of the blocks:
// weights[j - first].
void AddBlocks(const Sequence& s, int kv_head, int t, int first, const std::vector<double>& weights,
               double sum, Moments* moments) {
  for (int begin = 4; begin + 64 <= t; begin += 64) {
    double weight = 0;
    for (int j = std::max(begin, first); j < begin + 64; ++j) weight += weights[j - first] / sum;
    std::vector<double> mean(8);
    for (int j = begin; j < begin + 64; ++j) {
      for (int i = 0; i < 8; ++i) mean[i] += Row(s.k, j, 2, kv_head)[i] / 64;
    }
    for (int j = begin; j < begin + 64; ++j) {
      std::vector<double> k = Row(s.k, j, 2, kv_head);
      for (int i = 0; i < 8; ++i) k[i] -= mean[i];
      moments->Add(k.data(), weight / 64);
    }
  }
}

// Attention by its definition, a query at a time.
void AddSequence(const Sequence& s, int kv_head, int window, Expected* expected) {
  for (int t = 4; t < s.n_tokens; ++t) {
    for (int h = 2 * kv_head; h < 2 * kv_head + 2; ++h) {
      const std::vector<double> q = Row(s.q, t, 4, h);
      const int first = window > 0 ? std::max(0, t + 1 - window) : 0;
      std::vector<double> weights;
      double sum = 0;
      for (int j = first; j <= t; ++j) {
        const std::vector<double> k = Row(s.k, j, 2, kv_head);
        weights.push_back(
            std::exp(std::inner_product(q.begin(), q.end(), k.begin(), 0.0) / std::sqrt(8.0)));
        sum += weights.back();
      }
      AddBlocks(s, kv_head, t, first, weights, sum, &expected->k_in_blocks);
      std::vector<double> output(8, 0.0);
      double behind_sinks = 0;
      for (int j = first; j <= t; ++j) {
        const double weight = weights[j - first] / sum;
        const std::vector<double> k = Row(s.k, j, 2, kv_head), v = Row(s.v, j, 2, kv_head);
        for (int i = 0; i < 8; ++i) output[i] += weight * v[i];
        if (j < 4) continue;
        behind_sinks += weight;
        expected->k.Add(k.data(), weight);
      }
      expected->q.Add(q.data(), behind_sinks);
      expected->v.Add(output.data(), 1);
    }
  }
}

void ExpectNear(const HeadMoments& found, int head_idx, const Moments& expected, double total) {
  for (int i = 0; i < 8; ++i) {
    EXPECT_NEAR(found.mean[head_idx * 8 + i], expected.mean[i] / total, 1e-5);
    for (int j = 0; j < 8; ++j) {
      EXPECT_NEAR(found.gram[(head_idx * 8 + i) * 8 + j], expected.gram[i * 8 + j] / total, 1e-4);
    }
  }
}

class AttentionMomentsTest : public ::testing::TestWithParam<int> {};

TEST_P(AttentionMomentsTest, AreThoseOfTheDefinitionHoweverASequenceIsCut) {
  const int window = GetParam();
  ThreadPool pool(2);
  // The second of the two layers sees everything where the first has a window.
  const AttentionLayers layers_of = {{{.window = window}, {}}, {0, 1}};
  AttentionMoments attention(kShape, {.attention = layers_of}, &pool, AvailableIsas().back());
  std::vector<std::vector<Sequence>> layers(2);
  for (int l = 0; l < 2; ++l) {
    layers[l] = {RandomSequence(300, 10 + l), RandomSequence(3, 20 + l),
                 RandomSequence(40, 30 + l)};
  }
  for (int s = 0; s < 3; ++s) {
    const int n_tokens = layers[0][s].n_tokens;
    for (int begin = 0, n = 2; begin < n_tokens; begin += n, n = 140) {
      n = std::min(n, n_tokens - begin);
      std::vector<int> positions(n);
      std::iota(positions.begin(), positions.end(), begin);
      for (int l = 0; l < 2; ++l) {
        const Sequence& rows = layers[l][s];
        const float* q = rows.q.data() + begin * 4 * 8;
        const float* k = rows.k.data() + begin * 2 * 8;
        attention.Observe({l, n, positions.data(), q, q, k, k, rows.v.data() + begin * 2 * 8});
      }
    }
  }
  CalibrationStatistics statistics = MakeStatistics(kShape);
  attention.Finish(&statistics);
  const double n_queries = 296 + 36;
  for (int l = 0; l < 2; ++l) {
    for (int g = 0; g < 2; ++g) {
      Expected expected;
      for (const Sequence& s : layers[l]) AddSequence(s, g, layers_of.of(l).window, &expected);
      ExpectNear(statistics.attended_q, 2 * l + g, expected.q, n_queries);
      ExpectNear(statistics.attended_k, 2 * l + g, expected.k, expected.k.weight);
      ExpectNear(statistics.attended_v, 2 * l + g, expected.v, 2 * n_queries);
      const Moments& in_blocks = expected.k_in_blocks;
      EXPECT_GT(in_blocks.weight, 0);
      for (int i = 0; i < 64; ++i) {
        const double want = in_blocks.gram[i] / in_blocks.weight;
        EXPECT_NEAR(statistics.k_in_blocks[(2 * l + g) * 64 + i], want, 1e-4);
        EXPECT_NEAR(statistics.k_pre_in_blocks[(2 * l + g) * 64 + i], want, 1e-4);
      }
      // Nothing turns without RoPE.
      ExpectNear(statistics.attended_q_pre, 2 * l + g, expected.q, n_queries);
      ExpectNear(statistics.attended_k_pre, 2 * l + g, expected.k, expected.k.weight);
    }
  }
}

// Moments of 1500 tokens of which one query in `stride` counts, seen in chunks of `chunk`.
CalibrationStatistics Sampled(const Sequence& rows, int stride, int chunk, int n_workers) {
  ThreadPool pool(n_workers);
  AttentionMoments attention(kShape, {.query_stride = stride}, &pool, AvailableIsas().back());
  for (int begin = 0; begin < rows.n_tokens; begin += chunk) {
    const int n = std::min(chunk, rows.n_tokens - begin);
    std::vector<int> positions(n);
    std::iota(positions.begin(), positions.end(), begin);
    const float* q = rows.q.data() + begin * 4 * 8;
    const float* k = rows.k.data() + begin * 2 * 8;
    for (int l = 0; l < 2; ++l) {
      attention.Observe({l, n, positions.data(), q, q, k, k, rows.v.data() + begin * 2 * 8});
    }
  }
  CalibrationStatistics statistics = MakeStatistics(kShape);
  attention.Finish(&statistics);
  return statistics;
}

double Distance(const std::vector<float>& from, const std::vector<float>& to) {
  double square = 0, norm = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    square += std::pow(from[i] - to[i], 2);
    norm += std::pow(from[i], 2);
  }
  return std::sqrt(square / norm);
}

TEST(SampledMomentsTest, AFewQueriesStandForAllHoweverASequenceIsCut) {
  const Sequence rows = RandomSequence(1500, 40);
  const CalibrationStatistics all = Sampled(rows, 1, 512, 2), few = Sampled(rows, 4, 512, 2);
  const auto distances = [&](const CalibrationStatistics& from, const CalibrationStatistics& to) {
    return std::vector<double>{Distance(from.attended_q.gram, to.attended_q.gram),
                               Distance(from.attended_k.gram, to.attended_k.gram),
                               Distance(from.attended_v.gram, to.attended_v.gram),
                               Distance(from.attended_q_pre.gram, to.attended_q_pre.gram),
                               Distance(from.attended_k_pre.gram, to.attended_k_pre.gram),
                               Distance(from.k_in_blocks, to.k_in_blocks)};
  };
  for (const double distance : distances(all, few)) {
    EXPECT_GT(distance, 1e-4);
    EXPECT_LT(distance, 0.15);
  }
  for (const double distance : distances(few, Sampled(rows, 4, 100, 3))) EXPECT_EQ(distance, 0);
}

// The first 6 of 8 channels turn, and grow by a quarter.
constexpr int kTurned = 6;
const RopeConfig kRope = {.theta = 100, .amplitude = 1.25};

// The transpose of the turn to `position`.
std::vector<double> TurnedBack(std::vector<double> row, int position) {
  for (int i = 0; i < kTurned / 2; ++i) {
    const double angle = position * std::pow(100.0, -2.0 * i / kTurned);
    const double a = row[i], b = row[i + kTurned / 2];
    row[i] = 1.25 * (a * std::cos(angle) + b * std::sin(angle));
    row[i + kTurned / 2] = 1.25 * (b * std::cos(angle) - a * std::sin(angle));
  }
  return row;
}

struct LiteralPairs {
  Moments q_pre, k_pre;
};

// Every pair of a query and a key behind the sinks, by the weight of the key.
LiteralPairs PairsOf(const Sequence& s, const std::vector<float>& k_pre, int kv_head) {
  LiteralPairs pairs;
  for (int t = 4; t < s.n_tokens; ++t) {
    for (int h = 2 * kv_head; h < 2 * kv_head + 2; ++h) {
      const std::vector<double> q = Row(s.q, t, 4, h);
      std::vector<double> scores;
      for (int j = 0; j <= t; ++j) {
        const std::vector<double> k = Row(s.k, j, 2, kv_head);
        scores.push_back(std::inner_product(q.begin(), q.end(), k.begin(), 0.0) / std::sqrt(8.0));
      }
      const double most = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& x : scores) sum += x = std::exp(x - most);
      for (int j = 4; j <= t; ++j) {
        pairs.q_pre.Add(TurnedBack(q, j).data(), scores[j] / sum);
        pairs.k_pre.Add(Row(k_pre, j, 2, kv_head).data(), scores[j] / sum);
      }
    }
  }
  return pairs;
}

// Queries of which each looks at one key only (sharp), or at many.
class TurnedMomentsTest : public ::testing::TestWithParam<bool> {};

TEST_P(TurnedMomentsTest, QueriesAreAsTheKeysTheyLookAtSeeThem) {
  const bool is_sharp = GetParam();
  Sequence s = RandomSequence(300, 5);
  std::vector<float> k_pre = RandomSequence(300, 6).k;
  Random random(7);
  for (int t = 0; t < s.n_tokens; ++t) {
    for (int h = 0; h < 4; ++h) {
      float* q = &s.q[(t * 4 + h) * 8];
      if (!is_sharp) {  // in few directions, so that it matters how far they are turned back
        for (int i = 0; i < 8; ++i) q[i] = 0.3f * q[i] + (i == 1 ? 2.0f : 0.0f);
        continue;
      }
      const float* k = &s.k[(static_cast<int>(random.Below(t + 1)) * 2 + h / 2) * 8];
      double norm = 0;
      for (int i = 0; i < 8; ++i) norm += double{k[i]} * k[i];
      for (int i = 0; i < 8; ++i) q[i] = static_cast<float>(3e5 * k[i] / norm);
    }
  }
  ThreadPool pool(2);
  AttentionMoments attention(kShape, {.attention = {{{.rope = kRope}}}, .rope_dim = kTurned}, &pool,
                             AvailableIsas().back());
  std::vector<int> positions(s.n_tokens);
  std::iota(positions.begin(), positions.end(), 0);
  for (int l = 0; l < 2; ++l) {
    attention.Observe({l, s.n_tokens, positions.data(), s.q.data(), s.q.data(), k_pre.data(),
                       s.k.data(), s.v.data()});
  }
  CalibrationStatistics statistics = MakeStatistics(kShape);
  attention.Finish(&statistics);
  for (int g = 0; g < 2; ++g) {
    const LiteralPairs expected = PairsOf(s, k_pre, g);
    const float* found = &statistics.attended_q_pre.gram[g * 64];
    const float* as_they_are = &statistics.attended_q.gram[g * 64];
    double error = 0, turn = 0, norm = 0;
    for (int i = 0; i < 64; ++i) {
      const double e = expected.q_pre.gram[i] / 296;
      error += std::pow(found[i] - e, 2);
      turn += std::pow(as_they_are[i] - e, 2);
      norm += e * e;
    }
    EXPECT_LT(std::sqrt(error / norm), is_sharp ? 1e-3 : 0.05);
    EXPECT_GT(std::sqrt(turn / norm), 0.2);
    for (int i = 0; i < 64; ++i) {
      EXPECT_NEAR(statistics.attended_k_pre.gram[g * 64 + i],
                  expected.k_pre.gram[i] / expected.k_pre.weight, 1e-3);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Attention, TurnedMomentsTest, ::testing::Bool());

INSTANTIATE_TEST_SUITE_P(Windows, AttentionMomentsTest, ::testing::Values(0, 50, 3));

}  // namespace
}  // namespace kvlathe
