#include "analysis/bases/lathe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "analysis/ranks/bit_ladder.h"
#include "base/random.h"
#include "format/rows/block_layout.h"

namespace kvlathe {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

constexpr int kHeadDim = 32, kLayers = 2, kKvHeads = 2, kGroup = 2, kTokens = 300;
constexpr int kWidth = kKvHeads * kHeadDim;  // of the rows of a layer

// Rows whose directions differ in size, the same in all heads, about a mean.
Rows RandomRows(Random* random, double decay, double mean) {
  Rows mixing(kWidth, Row(kWidth));
  for (Row& row : mixing) {
    for (double& x : row) x = random->Normal();
  }
  Rows rows(kTokens, Row(kWidth));
  for (Row& row : rows) {
    for (int i = 0; i < kWidth; ++i) row[i] = mean * (i % 3 - 1);
    for (int i = 0; i < kWidth; ++i) {
      const double latent = random->Normal() * std::exp(-decay * i);
      for (int j = 0; j < kWidth; ++j) row[j] += latent * mixing[i][j];
    }
  }
  return rows;
}

// The rows of one kind in one layer, and gradients with respect to them.
struct KindRows {
  Rows rows, gradients;
};

void SetMoments(const KindRows& of, int layer_idx, JointMoments* moments) {
  for (int i = 0; i < kWidth; ++i) {
    double sum = 0;
    for (const Row& row : of.rows) sum += row[i];
    moments->mean[layer_idx * kWidth + i] = static_cast<float>(sum / kTokens);
    moments->weighed_mean[layer_idx * kWidth + i] = static_cast<float>(sum / kTokens);
    for (int j = 0; j < kWidth; ++j) {
      double sum_of_j = 0, products = 0, fisher = 0;
      for (const Row& row : of.rows) sum_of_j += row[j], products += row[i] * row[j];
      for (const Row& g : of.gradients) fisher += g[i] * g[j];
      const int64_t at = (int64_t{layer_idx} * kWidth + i) * kWidth + j;
      moments->covariance[at] = moments->weighed_covariance[at] =
          static_cast<float>((products - sum * sum_of_j / kTokens) / kTokens);
      moments->fisher[at] = static_cast<float>(fisher / kTokens / 2);
    }
  }
}

Row Times(const Row& row, const std::vector<float>& map, int n_columns) {
  Row y(n_columns, 0.0);
  for (size_t i = 0; i < row.size(); ++i) {
    for (int j = 0; j < n_columns; ++j) y[j] += row[i] * map[i * n_columns + j];
  }
  return y;
}

double SquaresBeyond(const std::vector<double>& values, int rank) {
  double sum = 0;
  for (size_t i = rank; i < values.size(); ++i) sum += values[i] * values[i];
  return sum;
}

// [row][column] to [column][row].
std::vector<float> Transposed(const std::vector<float>& m, int n_columns) {
  const auto n_rows = static_cast<int>(std::ssize(m)) / n_columns;
  std::vector<float> t(m.size());
  for (int i = 0; i < n_rows; ++i) {
    for (int j = 0; j < n_columns; ++j) t[j * n_rows + i] = m[i * n_columns + j];
  }
  return t;
}

// Of a map [dim, dim].
std::vector<float> FirstColumns(const std::vector<float>& map, int dim, int n) {
  std::vector<float> columns;
  for (auto row = map.begin(); row != map.end(); row += dim) {
    columns.insert(columns.end(), row, row + n);
  }
  return columns;
}

class LatheTest : public ::testing::Test {
 protected:
  LatheTest() {
    Random random(5);
    statistics_ = MakeStatistics({kLayers, kKvHeads * kGroup, kKvHeads, kHeadDim});
    statistics_.joint.n_tokens = kTokens;
    for (int l = 0; l < kLayers; ++l) {
      k_.push_back({RandomRows(&random, 0.03, 3), RandomRows(&random, 0.02 + 0.01 * l, 0)});
      k_pre_.push_back({RandomRows(&random, 0.05, 2), RandomRows(&random, 0.03, 0)});
      v_.push_back({RandomRows(&random, 0.02, 1), RandomRows(&random, 0.06 - 0.02 * l, 0)});
      SetMoments(k_[l], l, &statistics_.joint.k);
      SetMoments(k_pre_[l], l, &statistics_.joint.k_pre);
      SetMoments(v_[l], l, &statistics_.joint.v);
    }
  }
  BasisAnalysis Analyse(const BasisOptions& options) const {
    auto analysis = AnalyseLathe({&statistics_, {}, {}, options});
    EXPECT_TRUE(analysis.ok()) << analysis.status();
    return *std::move(analysis);
  }
  const KindRows& KeysOf(int layer_idx, bool is_latent) const {
    return is_latent ? k_pre_[layer_idx] : k_[layer_idx];
  }

  CalibrationStatistics statistics_;
  std::vector<KindRows> k_, k_pre_, v_;  // [kLayers]
};

// The channels of head h of the cache.
Row PartOf(const Row& row, int head, int dim) {
  return {row.begin() + int64_t{head} * dim, row.begin() + (int64_t{head} + 1) * dim};
}

// What errors of a head's rows cost: 1/2 of the mean square of gradient times error, over pairs of
// a gradient and an error of different tokens, as an F and a Gram matrix have it; and the ridge of
// F.
double CostOf(const KindRows& of, int head, int dim, const std::function<Row(const Row&)>& error) {
  std::vector<double> fisher(int64_t{dim} * dim);
  for (const Row& all : of.gradients) {
    const Row g = PartOf(all, head, dim);
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j < dim; ++j) fisher[i * dim + j] += g[i] * g[j] / kTokens / 2;
    }
  }
  double trace = 0;
  for (int i = 0; i < dim; ++i) trace += fisher[i * (dim + 1)];
  for (int i = 0; i < dim; ++i) fisher[i * (dim + 1)] += 0.1 * trace / dim;
  double cost = 0;
  for (const Row& all : of.rows) {
    const Row e = error(PartOf(all, head, dim));
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j < dim; ++j) cost += e[i] * fisher[i * dim + j] * e[j] / kTokens;
    }
  }
  return cost;
}

// What a row loses in a map and its way back, [rank, dim].
Row Lost(Row row, const std::vector<float>& offset, const std::vector<float>& map,
         const std::vector<float>& way_back, int rank) {
  for (size_t i = 0; i < offset.size(); ++i) row[i] -= offset[i];
  const Row read = Times(Times(row, map, rank), way_back, static_cast<int>(std::ssize(row)));
  for (size_t i = 0; i < row.size(); ++i) row[i] -= read[i];
  return row;
}

TEST_F(LatheTest, SpectraSayWhatCutsCost) {
  for (const int choice : {0, 1, 2, 3, 4}) {
    const BasisOptions options = {.is_centred = choice != 4,
                                  .keys_before_rope = choice % 2 == 1,
                                  .joint_channels = choice >= 2 ? kWidth : 0};
    const BasisAnalysis analysis = Analyse(options);
    const int dim = analysis.shape.head_dim, n_heads = analysis.shape.n_kv_heads;
    ASSERT_EQ(dim, options.joint_channels > 0 ? kWidth : kHeadDim);
    for (const int rank : {16, 32}) {
      const ModelBasis cut =
          CutBasis(analysis, std::vector<HeadRanks>(kLayers * n_heads, {rank, rank}));
      EXPECT_EQ(HeadsPerMap(cut.keys), options.joint_channels > 0 ? kKvHeads : 1);
      for (int h = 0; h < kLayers * n_heads; ++h) {
        SCOPED_TRACE(::testing::Message() << choice << " head " << h << " rank " << rank);
        const HeadBasis& head = cut.heads[h];
        const std::vector<float> back =
            options.keys_before_rope ? head.key_way_back : Transposed(head.query_basis, rank);
        const double of_keys = CostOf(
            KeysOf(h / n_heads, options.keys_before_rope), h % n_heads, dim,
            [&](const Row& k) { return Lost(k, head.key_offset, head.key_basis, back, rank); });
        // Values are made in all channels, for sinks; the cache holds the first `rank`.
        EXPECT_EQ(head.rank_v, dim);
        EXPECT_EQ(head.stored_rank_v, rank);
        const std::vector<float> map = FirstColumns(head.value_basis, dim, rank);
        const std::vector<float> way_back(head.output_basis.begin(),
                                          head.output_basis.begin() + int64_t{rank} * dim);
        const double of_values = CostOf(v_[h / n_heads], h % n_heads, dim, [&](const Row& v) {
          return Lost(v, head.value_offset, map, way_back, rank);
        });
        EXPECT_NEAR(SquaresBeyond(analysis.spectra[h].qk, rank), of_keys, 1e-3 * of_keys + 1e-6);
        EXPECT_NEAR(SquaresBeyond(analysis.spectra[h].v, rank), of_values, 1e-3 * of_values + 1e-6);
      }
    }
  }
}

TEST_F(LatheTest, RanksArePricedByGradientsThroughAllQueries) {
  statistics_.through_all = statistics_.joint;
  for (float& x : statistics_.through_all.k.fisher) x *= 9;
  for (float& x : statistics_.through_all.v.fisher) x *= 4;
  const BasisAnalysis far = Analyse({}), all = Analyse({.counts_all_queries = true});
  for (size_t h = 0; h < far.spectra.size(); ++h) {
    for (int i = 0; i < kHeadDim; ++i) {
      const HeadSpectra &a = far.spectra[h], &b = all.spectra[h];
      EXPECT_NEAR(b.qk[i], 3 * a.qk[i], 1e-3 * b.qk[i]);
      EXPECT_NEAR(b.v[i], 2 * a.v[i], 1e-3 * b.v[i]);
    }
  }
}

TEST_F(LatheTest, JoinedHeadsLoseNoMoreThanHeadsOfTheirOwn) {
  const BasisAnalysis own = Analyse({}), joined = Analyse({.joint_channels = kWidth});
  for (int l = 0; l < kLayers; ++l) {
    double of_own = 0;
    for (int g = 0; g < kKvHeads; ++g)
      of_own += SquaresBeyond(own.spectra[l * kKvHeads + g].qk, 16);
    EXPECT_LT(SquaresBeyond(joined.spectra[l].qk, 16 * kKvHeads), of_own);
  }
}

TEST_F(LatheTest, OffsetsAreTheMeans) {
  const BasisAnalysis own = Analyse({}), joined = Analyse({.joint_channels = kWidth});
  const BasisAnalysis plain = Analyse({.is_centred = false});
  for (int l = 0; l < kLayers; ++l) {
    for (int i = 0; i < kWidth; ++i) {
      const int h = l * kKvHeads + i / kHeadDim;
      const float mean = statistics_.joint.k.mean[l * kWidth + i];
      EXPECT_EQ(joined.heads[l].key_offset[i], mean);
      EXPECT_EQ(own.heads[h].key_offset[i % kHeadDim], mean);
      EXPECT_EQ(joined.heads[l].value_offset[i], statistics_.joint.v.mean[l * kWidth + i]);
      EXPECT_TRUE(plain.heads[h].key_offset.empty() && plain.heads[h].value_offset.empty());
    }
  }
}

TEST_F(LatheTest, StoredChannelsHaveUnitVarianceAndComeBackWhole) {
  for (const bool joins : {false, true}) {
    const BasisAnalysis analysis =
        Analyse({.keys_before_rope = true, .joint_channels = joins ? kWidth : 0});
    const int dim = analysis.shape.head_dim, n_heads = analysis.shape.n_kv_heads;
    BitSplit split;
    split.channels[0] = dim;
    const ModelBasis basis =
        CutBasis(analysis,
                 std::vector<HeadRanks>(kLayers * n_heads, {dim, dim, {.middle = {split, split}}}));
    for (int h = 0; h < kLayers * n_heads; ++h) {
      const HeadBasis& head = basis.heads[h];
      EXPECT_TRUE(head.query_basis.empty());
      Row variance(dim);
      for (const Row& all : k_pre_[h / n_heads].rows) {
        Row k = PartOf(all, h % n_heads, dim);
        for (const double x : Lost(k, head.key_offset, head.key_basis, head.key_way_back, dim)) {
          ASSERT_NEAR(x, 0, 1e-3);
        }
        for (int i = 0; i < dim; ++i) k[i] -= head.key_offset[i];
        const Row stored = Times(k, head.key_basis, dim);
        for (int i = 0; i < dim; ++i) variance[i] += stored[i] * stored[i] / kTokens;
      }
      for (const double x : variance) EXPECT_NEAR(x, 1, 0.01);
    }
  }
}

TEST(KeyValueHeadsTest, AreThoseThatOneMapJoins) {
  for (const StatisticsShape& shape : {StatisticsShape{1, 9, 3, 64},
                                       {1, 12, 12, 64},
                                       {1, 32, 8, 128},
                                       {1, 4, 1, 256},
                                       {1, 5, 5, 96}}) {
    EXPECT_EQ(KeyValueHeads(shape), HeadsPerMap(shape, kMostKeyValueChannels));
  }
}

TEST_F(LatheTest, KeysAndValuesComeBackFromOneMap) {
  const BasisOptions options = {.joins_values = true, .joint_channels = kWidth};
  EXPECT_EQ(AnalyseLathe({&statistics_, {}, {}, options}).status().code(),
            StatusCode::kFailedPrecondition);
  constexpr int kBoth = 2 * kWidth;
  JointMoments& moments = statistics_.key_values;
  std::vector<Rows> both(kLayers);
  for (int l = 0; l < kLayers; ++l) {
    Row mean(kBoth);
    Rows gradients;
    for (int t = 0; t < kTokens; ++t) {
      both[l].push_back(k_[l].rows[t]);
      both[l][t].insert(both[l][t].end(), v_[l].rows[t].begin(), v_[l].rows[t].end());
      gradients.push_back(k_[l].gradients[t]);
      for (const double g : v_[l].gradients[t]) gradients[t].push_back(50 * g);
      for (int i = 0; i < kBoth; ++i) mean[i] += both[l][t][i] / kTokens;
    }
    for (int i = 0; i < kBoth; ++i) {
      moments.mean.push_back(static_cast<float>(mean[i]));
      for (int j = 0; j < kBoth; ++j) {
        double covariance = 0, fisher = 0;
        for (int t = 0; t < kTokens; ++t) {
          covariance += (both[l][t][i] - mean[i]) * (both[l][t][j] - mean[j]) / kTokens;
          fisher += gradients[t][i] * gradients[t][j] / kTokens / 2;
        }
        moments.covariance.push_back(static_cast<float>(covariance));
        moments.fisher.push_back(static_cast<float>(fisher));
      }
    }
  }
  moments.weighed_mean = moments.mean;
  moments.weighed_covariance = moments.covariance;
  const BasisAnalysis analysis = Analyse(options);
  BitSplit split;
  split.channels[0] = kBoth;
  const ModelBasis basis =
      CutBasis(analysis, std::vector<HeadRanks>(kLayers, {kBoth, kBoth, {.middle = {.k = split}}}));
  ASSERT_TRUE(JoinsValues(basis.keys));
  for (int l = 0; l < kLayers; ++l) {
    const HeadBasis& head = basis.heads[l];
    EXPECT_EQ(std::ssize(analysis.spectra[l].qk), kBoth);
    EXPECT_TRUE(analysis.spectra[l].v.empty());
    const std::vector<float> key_back = Transposed(head.query_basis, kBoth);
    Row variance(kBoth);
    for (const Row& row : both[l]) {
      Row k = PartOf(row, 0, kWidth), v = PartOf(row, 1, kWidth);
      for (int i = 0; i < kWidth; ++i) k[i] -= head.key_offset[i], v[i] -= head.value_offset[i];
      Row stored = Times(k, head.key_basis, kBoth);
      const Row of_v = Times(v, head.value_basis, kBoth);
      for (int i = 0; i < kBoth; ++i) {
        stored[i] += of_v[i];
        variance[i] += stored[i] * stored[i] / kTokens;
      }
      const Row k_again = Times(stored, key_back, kWidth);
      const Row v_again = Times(stored, head.output_basis, kWidth);
      for (int i = 0; i < kWidth; ++i) {
        ASSERT_NEAR(k_again[i], k[i], 2e-3);
        ASSERT_NEAR(v_again[i], v[i], 2e-3);
      }
    }
    for (const double x : variance) EXPECT_NEAR(x, 1, 0.02);
  }
}

// An error of a stored channel's own variance costs what gradients have in that channel. Channels
// that share their bits cost about the same, and together no more than unmixed.
TEST_F(LatheTest, NoiseIsWhatAnErrorOfAStoredChannelCosts) {
  const BasisAnalysis analysis = Analyse({.joint_channels = kWidth});
  BitSplit split;
  split.channels[0] = kWidth;
  const ModelBasis basis = CutBasis(
      analysis, std::vector<HeadRanks>(kLayers, {kWidth, kWidth, {.middle = {split, split}}}));
  for (int l = 0; l < kLayers; ++l) {
    const HeadNoise& noise = analysis.noise[l];
    const std::vector<float> back = Transposed(basis.heads[l].query_basis, kWidth);
    for (int i = 0; i < kWidth; ++i) {
      const Row error(back.begin() + int64_t{i} * kWidth, back.begin() + (int64_t{i} + 1) * kWidth);
      const double of_keys = CostOf(k_[l], 0, kWidth, [&](const Row&) { return error; });
      EXPECT_NEAR(noise.qk[i], of_keys, 2e-2 * of_keys) << i;
      const auto row = basis.heads[l].output_basis.begin() + int64_t{i} * kWidth;
      const Row of_v(row, row + kWidth);
      const double of_values = CostOf(v_[l], 0, kWidth, [&](const Row&) { return of_v; });
      EXPECT_NEAR(noise.v[i], of_values, 2e-2 * of_values) << i;
    }
    for (int first = 0; first < kWidth; first += kBitGroup) {
      const auto group = noise.qk.begin() + first;
      const double mixed = std::accumulate(group, group + kBitGroup, 0.0);
      const std::vector<double>& s = analysis.spectra[l].qk;
      EXPECT_LE(mixed, 1.001 * (SquaresBeyond(s, first) - SquaresBeyond(s, first + kBitGroup)));
    }
  }
}

TEST(HeadsPerMapTest, AreAsManyAsChannelsAllow) {
  EXPECT_EQ(HeadsPerMap({30, 9, 3, 64}, 256), 3);
  EXPECT_EQ(HeadsPerMap({30, 9, 3, 64}, 0), 1);
  EXPECT_EQ(HeadsPerMap({18, 4, 1, 256}, 256), 1);
  EXPECT_EQ(HeadsPerMap({32, 32, 32, 128}, 256), 2);
  EXPECT_EQ(HeadsPerMap({32, 32, 8, 128}, kMaxRowRank), 4);
  EXPECT_EQ(HeadsPerMap({16, 32, 8, 64}, kMaxRowRank), 8);
  EXPECT_EQ(HeadsPerMap({12, 7, 7, 64}, 256), 1);  // 3 would fit, but do not divide 7
  EXPECT_EQ(HeadsPerMap({1, 1, 1, 1024}, kMaxRowRank), 1);
}

TEST_F(LatheTest, DamagedInputsAreNamedByLayerAndHead) {
  statistics_.joint.k.fisher[kWidth * kWidth] = INFINITY;
  const auto analysis = AnalyseLathe({&statistics_, {}, {}});
  EXPECT_EQ(analysis.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(MessageOf(analysis.status()), ::testing::HasSubstr("layer 1, KV head 0"));
}

// Rounding may leave a little less than nothing to rows that gradients weigh; a channel still gets
// its part of the deviation that all rows have in it.
TEST_F(LatheTest, DeviationsAreNotBelowTheirPartOfAllRows) {
  JointMoments& keys = statistics_.joint.k;
  const auto first = static_cast<int64_t>(kHeadDim) * (kWidth + 1);  // head 1 of layer 0, alone
  for (int i = 0; i < kHeadDim; ++i) {
    for (int j = 0; j < kWidth; ++j) {
      const int64_t at = first - kHeadDim + i * kWidth + j;
      keys.covariance[at] = keys.weighed_covariance[at] = 0;
      keys.fisher[at] = 0;
    }
    const int64_t diagonal = first + i * (kWidth + 1);
    // The last 16 channels, which are a group of bits, for their cost is the least.
    const bool is_lost = i >= 16;
    keys.covariance[diagonal] = is_lost ? 1e-8f : 1;
    keys.weighed_covariance[diagonal] = is_lost ? -1e-8f : 1;
    keys.fisher[diagonal] = is_lost ? 1e-4f : 1;
  }
  const BasisAnalysis analysis = Analyse({});
  const HeadAnalysis& head = analysis.heads[1];
  for (int column = 16; column < kHeadDim; ++column) {
    // The columns of a group, mixed evenly, have the mean of their squares.
    double square = 0;
    for (int i = 0; i < kHeadDim; ++i) {
      for (int c = 16; c < kHeadDim; ++c) {
        const double e = head.key_basis[i * kHeadDim + c];
        square += e * e * (i >= 16 ? 1e-8 : 1) / 16;
      }
    }
    EXPECT_GT(head.key_deviations[column], 0.9 * std::sqrt(square * 0.1 / 1.1)) << column;
  }
}

TEST_F(LatheTest, MomentsOfNoRowsAreRefusedByLayerAndHead) {
  std::vector<float>& covariance = statistics_.joint.v.weighed_covariance;
  const float whole = covariance[kWidth * kWidth];
  covariance[kWidth * kWidth] = -0.01f * whole;
  const auto analysis = AnalyseLathe({&statistics_, {}, {}});
  EXPECT_EQ(analysis.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(MessageOf(analysis.status()),
              ::testing::HasSubstr("layer 1, KV head 0: rows of the calibration have a negative"));
  covariance[kWidth * kWidth] = whole;
  EXPECT_TRUE(AnalyseLathe({&statistics_, {}, {}}).ok());
}

TEST_F(LatheTest, WithoutGradientsThereIsNoPrice) {
  statistics_.joint.n_tokens = 0;
  const auto analysis = AnalyseLathe({&statistics_, {}, {}});
  EXPECT_EQ(analysis.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(MessageOf(analysis.status()), ::testing::HasSubstr("longer text"));
}

}  // namespace
}  // namespace kvlathe
