#include "analysis/bases/lathe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "analysis/ranks/bit_ladder.h"
#include "analysis/statistics/gram.h"
#include "base/random.h"

namespace kvlathe {
namespace {

using Rows = std::vector<std::vector<double>>;

constexpr int kHeadDim = 64, kHiddenDim = 40, kLayers = 2, kKvHeads = 2, kGroup = 2, kTokens = 80;
constexpr int kHeads = kLayers * kKvHeads, kSquare = kHeadDim * kHeadDim;

Rows RandomRows(Random* random, int n_rows, double decay, double mean) {
  Rows mixing(kHeadDim, std::vector<double>(kHeadDim));
  for (auto& row : mixing) {
    for (double& x : row) x = random->Normal();
  }
  Rows rows(n_rows, std::vector<double>(kHeadDim));
  for (auto& row : rows) {
    for (int i = 0; i < kHeadDim; ++i) row[i] = mean * (i % 3 - 1);
    for (int i = 0; i < kHeadDim; ++i) {
      const double latent = random->Normal() * std::exp(-decay * i);
      for (int j = 0; j < kHeadDim; ++j) row[j] += latent * mixing[i][j];
    }
  }
  return rows;
}

// Mean and second moments of `rows`, over `total` each.
void SetMoments(const Rows& rows, double total, int head_idx, HeadMoments* moments) {
  for (int i = 0; i < kHeadDim; ++i) {
    double sum = 0;
    for (const auto& row : rows) sum += row[i];
    moments->mean[head_idx * kHeadDim + i] = static_cast<float>(sum / total);
    for (int j = 0; j < kHeadDim; ++j) {
      double product = 0;
      for (const auto& row : rows) product += row[i] * row[j];
      moments->gram[head_idx * kSquare + i * kHeadDim + j] = static_cast<float>(product / total);
    }
  }
}

struct HeadRows {
  Rows q, k, o;  // o: what attention puts out
  Rows q_pre, k_pre;
  Rows w;  // W_O of the group's query heads: [kGroup * kHiddenDim, kHeadDim], transposed
};

std::vector<double> Less(std::vector<double> row, const std::vector<float>& offset) {
  for (size_t i = 0; i < offset.size(); ++i) row[i] -= offset[i];
  return row;
}

std::vector<double> Times(const std::vector<double>& row, const std::vector<float>& map,
                          int n_columns) {
  std::vector<double> y(n_columns, 0.0);
  for (size_t i = 0; i < row.size(); ++i) {
    for (int j = 0; j < n_columns; ++j) y[j] += row[i] * map[i * n_columns + j];
  }
  return y;
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// A key as it is read from what is stored of it before RoPE.
std::vector<double> KeyOfLatent(const std::vector<double>& k, const HeadBasis& basis) {
  const std::vector<double> latent =
      Times(Less(k, basis.key_offset), basis.key_basis, basis.rank_k);
  std::vector<double> key = Times(latent, basis.key_way_back, kHeadDim);
  for (size_t i = 0; i < basis.key_offset.size(); ++i) key[i] += basis.key_offset[i];
  return key;
}

// The squared error of all scores: over keys a mean, over queries a mean per token.
double LatentScoreError(const HeadRows& rows, const HeadBasis& basis) {
  Rows lost;
  for (const auto& k : rows.k_pre) {
    lost.push_back(KeyOfLatent(k, basis));
    for (int i = 0; i < kHeadDim; ++i) lost.back()[i] -= k[i];
  }
  double error = 0;
  for (const auto& q : rows.q_pre) {
    for (const auto& k : lost) error += std::pow(Dot(q, k), 2);
  }
  return error / kTokens / kTokens;
}

double ScoreError(const HeadRows& rows, const HeadBasis& basis) {
  if (!basis.key_way_back.empty()) return LatentScoreError(rows, basis);
  Rows centred, stored;
  for (const auto& k : rows.k) {
    centred.push_back(Less(k, basis.key_offset));
    stored.push_back(Times(centred.back(), basis.key_basis, basis.rank_k));
  }
  double error = 0;
  for (const auto& q : rows.q) {
    const std::vector<double> rotated = Times(q, basis.query_basis, basis.rank_k);
    for (int t = 0; t < kTokens; ++t) {
      error += std::pow(Dot(q, centred[t]) - Dot(rotated, stored[t]), 2);
    }
  }
  return error / kTokens / kTokens;
}

// The squared error of attention's contribution to the hidden state, a mean over the outputs.
double OutputError(const HeadRows& rows, const HeadBasis& basis) {
  double error = 0;
  for (const auto& o : rows.o) {
    const std::vector<double> centred = Less(o, basis.value_offset);
    std::vector<double> lost =
        Times(Times(centred, basis.value_basis, basis.rank_v), basis.output_basis, kHeadDim);
    for (int i = 0; i < kHeadDim; ++i) lost[i] -= centred[i];
    for (const auto& w : rows.w) error += std::pow(Dot(lost, w), 2);
  }
  return error / static_cast<double>(rows.o.size());
}

double SquaresBeyond(const std::vector<double>& values, int rank) {
  double sum = 0;
  for (int i = rank; i < kHeadDim; ++i) sum += values[i] * values[i];
  return sum;
}

class LatheTest : public ::testing::Test {
 protected:
  LatheTest() {
    Random random(5);
    statistics_ = MakeStatistics({kLayers, kKvHeads * kGroup, kKvHeads, kHeadDim});
    for (int h = 0; h < kHeads; ++h) {
      HeadRows rows;
      rows.q = RandomRows(&random, kGroup * kTokens, 0.02 + 0.01 * h, 0.5);
      rows.k = RandomRows(&random, kTokens, 0.03, 3);
      rows.o = RandomRows(&random, kGroup * kTokens, 0.06 - 0.01 * h, 2);
      rows.w = RandomRows(&random, kGroup * kHiddenDim, 0.02, 0);
      rows.q_pre = RandomRows(&random, kGroup * kTokens, 0.01 + 0.01 * h, 0.3);
      rows.k_pre = RandomRows(&random, kTokens, 0.035, 2);
      SetMoments(rows.q, kTokens, h, &statistics_.attended_q);
      SetMoments(rows.k, kTokens, h, &statistics_.attended_k);
      SetMoments(rows.q_pre, kTokens, h, &statistics_.attended_q_pre);
      SetMoments(rows.k_pre, kTokens, h, &statistics_.attended_k_pre);
      SetMoments(rows.o, kGroup * kTokens, h, &statistics_.attended_v);
      std::vector<double> gram(kSquare, 0.0);
      for (int i = 0; i < kHeadDim; ++i) {
        for (int j = 0; j < kHeadDim; ++j) {
          for (const auto& w : rows.w) gram[i * kHeadDim + j] += w[i] * w[j];
        }
      }
      output_grams_.push_back(gram);
      rows_.push_back(std::move(rows));
      // As measured at ranks 16, 32 and 48: of a size of its own for each pair.
      for (int cut = 0; cut < 3; ++cut) {
        statistics_.probes.kl_qk[h * 3 + cut] = 0.01f * static_cast<float>((1 + h) * (3 - cut));
        statistics_.probes.kl_qk_pre[h * 3 + cut] =
            0.003f * static_cast<float>((2 + h) * (4 - cut));
        statistics_.probes.kl_v[h * 3 + cut] =
            0.002f * static_cast<float>(5 - h) / static_cast<float>(1 + cut);
      }
    }
  }
  BasisAnalysis Analyse(bool is_centred = true, bool is_latent = false) const {
    const BasisOptions options = {.is_centred = is_centred, .keys_before_rope = is_latent};
    return *AnalyseLathe({&statistics_, {}, output_grams_, options});
  }

  CalibrationStatistics statistics_;
  std::vector<std::vector<double>> output_grams_;
  std::vector<HeadRows> rows_;
};

// What a cut to `rank` loses: measured at 16, 32 and 48, in between as the errors of the rows say.
double Interpolated(const float* kl, const std::vector<double>& error_at, int rank) {
  double measured[] = {kl[0], kl[1], kl[2], 0};
  int below = 2;
  while (below > 0 && 16 * (below + 1) > rank) --below;
  const double low = error_at[16 * (below + 1)], high = error_at[16 * (below + 2)];
  return measured[below + 1] +
         (measured[below] - measured[below + 1]) * (error_at[rank] - high) / (low - high);
}

TEST_F(LatheTest, SpectraFollowTheErrorsOfTheRowsBetweenTheProbes) {
  for (const int options : {0, 1, 2, 3}) {
    const bool is_latent = options >= 2;
    const BasisAnalysis analysis = Analyse(options % 2 == 0, is_latent);
    const std::vector<float>& probes =
        is_latent ? statistics_.probes.kl_qk_pre : statistics_.probes.kl_qk;
    const std::vector<int> ranks = {8, 16, 20, 32, 40, 48, 60};
    std::vector<ModelBasis> cut;
    for (const int rank : ranks) {
      cut.push_back(CutBasis(analysis, std::vector<HeadRanks>(kHeads, {rank, rank})));
    }
    for (int h = 0; h < kHeads; ++h) {
      std::vector<double> qk_error(kHeadDim + 1, 0.0), v_error(kHeadDim + 1, 0.0);
      for (size_t i = 0; i < ranks.size(); ++i) {
        qk_error[ranks[i]] = ScoreError(rows_[h], cut[i].heads[h]);
        v_error[ranks[i]] = OutputError(rows_[h], cut[i].heads[h]);
      }
      for (const int rank : ranks) {
        SCOPED_TRACE(::testing::Message() << "head " << h << " rank " << rank);
        const double qk = Interpolated(&probes[h * 3], qk_error, rank);
        const double v = Interpolated(&statistics_.probes.kl_v[h * 3], v_error, rank);
        // The ridge shows in the last dimensions, which hold next to nothing.
        EXPECT_NEAR(SquaresBeyond(analysis.spectra[h].qk, rank), qk, 3e-2 * qk);
        EXPECT_NEAR(SquaresBeyond(analysis.spectra[h].v, rank), v, 3e-2 * v);
      }
    }
  }
}

TEST_F(LatheTest, CentringTakesTheMeansAndLowersTheError) {
  const BasisAnalysis centred = Analyse(), plain = Analyse(false);
  const std::vector<HeadRanks> ranks(kHeads, {8, 8});
  const ModelBasis a = CutBasis(centred, ranks), b = CutBasis(plain, ranks);
  for (int h = 0; h < kHeads; ++h) {
    EXPECT_TRUE(b.heads[h].key_offset.empty());
    EXPECT_TRUE(b.heads[h].value_offset.empty());
    for (int i = 0; i < kHeadDim; ++i) {
      EXPECT_EQ(a.heads[h].key_offset[i], statistics_.attended_k.mean[h * kHeadDim + i]);
      EXPECT_EQ(a.heads[h].value_offset[i], statistics_.attended_v.mean[h * kHeadDim + i]);
    }
    EXPECT_LT(ScoreError(rows_[h], a.heads[h]), ScoreError(rows_[h], b.heads[h]));
    EXPECT_LT(OutputError(rows_[h], a.heads[h]), OutputError(rows_[h], b.heads[h]));
  }
}

TEST_F(LatheTest, KeysBeforeRopeComeBackWhole) {
  for (const bool is_centred : {true, false}) {
    const BasisAnalysis analysis = Analyse(is_centred, true);
    const ModelBasis whole =
        CutBasis(analysis, std::vector<HeadRanks>(kHeads, {kHeadDim, kHeadDim}));
    BitSplit split;
    split.channels[0] = kHeadDim;
    const ModelBasis scaled =
        CutBasis(analysis, std::vector<HeadRanks>(kHeads, {kHeadDim, kHeadDim, split, split}));
    for (int h = 0; h < kHeads; ++h) {
      EXPECT_TRUE(whole.heads[h].query_basis.empty());
      EXPECT_EQ(whole.heads[h].key_offset.empty(), !is_centred);
      std::vector<double> variance(kHeadDim);
      for (const auto& k : rows_[h].k_pre) {
        for (const ModelBasis* basis : {&whole, &scaled}) {
          const std::vector<double> read = KeyOfLatent(k, basis->heads[h]);
          for (int i = 0; i < kHeadDim; ++i) ASSERT_NEAR(read[i], k[i], 1e-3);
        }
        const HeadBasis& head = scaled.heads[h];
        const std::vector<double> stored =
            Times(Less(k, head.key_offset), head.key_basis, kHeadDim);
        for (int i = 0; i < kHeadDim; ++i) variance[i] += stored[i] * stored[i] / kTokens;
      }
      // Channels of unit variance, but for what keys of unlike attention reach beyond.
      for (int i = 0; i < 32; ++i) EXPECT_NEAR(variance[i], 1 / 1.21, 0.01);
    }
  }
}

// The mean square of column i of rows [*, kHeadDim] times a map, over `total`.
double MeanSquare(const Rows& rows, const std::vector<float>& map, int i, double total) {
  double sum = 0;
  for (const auto& row : rows) sum += std::pow(Times(row, map, kHeadDim)[i], 2);
  return sum / total;
}

// An error of variance 1 in a stored channel costs a score what queries, or output weights, have in
// that channel. Channels that share their bits cost the same, and together no more than unmixed.
TEST_F(LatheTest, NoiseIsWhatAnErrorOfAStoredChannelCosts) {
  statistics_.probes.kl_qk.assign(kHeads * 3, 0);
  for (int h = 0; h < kHeads; ++h) {
    SetMoments(rows_[h].o, kGroup * kTokens, h, &statistics_.v);
  }
  BitSplit split;
  split.channels[0] = kHeadDim;
  const BasisAnalysis analysis = Analyse();
  const ModelBasis basis =
      CutBasis(analysis, std::vector<HeadRanks>(kHeads, {kHeadDim, kHeadDim, split, split}));
  for (int h = 0; h < kHeads; ++h) {
    const HeadBasis& head = basis.heads[h];
    const HeadNoise& noise = analysis.noise[h];
    double qk_of_group = 0;
    for (int i = 0; i < 48; ++i) {  // the ridge shows in the last, which hold next to nothing
      SCOPED_TRACE(::testing::Message() << "head " << h << " channel " << i);
      const double of_queries = MeanSquare(rows_[h].q, head.query_basis, i, kTokens);
      EXPECT_NEAR(noise.qk[i], of_queries, 1e-2 * of_queries);
      EXPECT_NEAR(noise.qk[i], noise.qk[i / 16 * 16], 1e-2 * noise.qk[i]);
      double of_weights = 0;
      for (const auto& w : rows_[h].w) {
        of_weights += std::pow(Dot(w, std::vector<double>(&head.output_basis[i * kHeadDim],
                                                          &head.output_basis[(i + 1) * kHeadDim])),
                               2);
      }
      EXPECT_NEAR(noise.v[i], of_weights, 1e-2 * of_weights);
      qk_of_group += noise.qk[i];
      if (i % 16 != 15) continue;
      const std::vector<double>& s = analysis.spectra[h].qk;
      EXPECT_LT(qk_of_group, 1.21 * (SquaresBeyond(s, i - 15) - SquaresBeyond(s, i + 1)));
      qk_of_group = 0;
    }
  }
}

TEST_F(LatheTest, WithoutProbesErrorsCountAsTheyAre) {
  statistics_.probes.kl_qk.assign(kHeads * 3, 0);
  statistics_.probes.kl_v.assign(kHeads * 3, 0);
  const BasisAnalysis analysis = Analyse();
  const ModelBasis basis = CutBasis(analysis, std::vector<HeadRanks>(kHeads, {8, 8}));
  for (int h = 0; h < kHeads; ++h) {
    const double error = OutputError(rows_[h], basis.heads[h]);
    EXPECT_NEAR(SquaresBeyond(analysis.spectra[h].v, 8), error, 2e-3 * error);
  }
}

// Of a loss of 0.001 at 2 bits with scales, and more without.
TEST_F(LatheTest, KeysInTheirBlocksSayWhatScalesSave) {
  for (const double inside : {0.01, 0.1}) {
    for (const double gain : {0.0, 0.5, 8.0}) {
      statistics_.k_in_blocks.resize(kHeads * kSquare);
      for (int h = 0; h < kHeads; ++h) {
        const std::vector<double> gram = CentredGramOf(statistics_.attended_k, h, kHeadDim);
        for (int i = 0; i < kSquare; ++i) {
          statistics_.k_in_blocks[h * kSquare + i] = static_cast<float>(inside * gram[i]);
        }
      }
      statistics_.probes.noise_qk.assign(kHeads, 0.001f);
      statistics_.probes.noise_qk_static.assign(kHeads, static_cast<float>(0.001 * gain));
      const BasisAnalysis analysis = Analyse();
      for (const HeadNoise& noise : analysis.noise) {
        const auto sum = [](const std::vector<double>& x) {
          return std::accumulate(x.begin(), x.end(), 0.0);
        };
        // Not measured: 1.21 of what is inside, and 0.3 of the rest of 1.21 of all.
        const double expected = gain > 0 ? gain : 1.21 + 0.3 * 1.21 * (1 / inside - 1);
        EXPECT_NEAR(noise.scale_gain / expected, 1, 1e-3);
        if (gain > 0 && gain < kLeastScaleGain) {
          EXPECT_TRUE(noise.qk_in_blocks.empty());
          EXPECT_NEAR(sum(noise.qk) * 0.150466, 0.001 * gain, 1e-6);
        } else {
          EXPECT_NEAR(sum(noise.qk_in_blocks) * 0.150466, 0.001, 1e-6);
          EXPECT_NEAR(sum(noise.qk) / sum(noise.qk_in_blocks) / expected, 1, 1e-3);
        }
        // Steps of 1/16 against codes of 4 bits.
        EXPECT_EQ(noise.needs_whole_rows, 1.21 / 256 / 12 / inside > 0.0141481);
      }
    }
  }
}

// Heads that get no scales share out the measured noise as if nobody had looked at blocks.
TEST_F(LatheTest, BlocksSayNothingOfHeadsWithoutScales) {
  statistics_.k_in_blocks.assign(kHeads * kSquare, 0);
  statistics_.probes.noise_qk.assign(kHeads, 0.0005f);
  const BasisAnalysis expected = Analyse();
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < kHeadDim; ++i) {
      statistics_.k_in_blocks[h * kSquare + i * (kHeadDim + 1)] = 0.01f * static_cast<float>(i + 1);
    }
  }
  statistics_.probes.noise_qk.assign(kHeads, 0.0002f);
  statistics_.probes.noise_qk_static.assign(kHeads, 0.0005f);
  const BasisAnalysis analysis = Analyse();
  for (int h = 0; h < kHeads; ++h) {
    EXPECT_THAT(analysis.noise[h].qk, ::testing::ElementsAreArray(expected.noise[h].qk));
  }
}

TEST_F(LatheTest, DamagedInputsAreNamedByLayerAndHead) {
  statistics_.attended_q.gram[2 * kSquare] = INFINITY;
  const auto analysis = AnalyseLathe({&statistics_, {}, output_grams_});
  EXPECT_EQ(analysis.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(MessageOf(analysis.status()), ::testing::HasSubstr("layer 1, KV head 0"));
}

}  // namespace
}  // namespace kvlathe
