#include "calibration/sensitivity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include "analysis/statistics/probes.h"
#include "base/random.h"
#include "calibration/kl_meter.h"

namespace kvlathe {
namespace {

// Any maps with falling spectra: what is cut is looked at, not computed with.
BasisAnalysis RandomAnalysis(const StatisticsShape& shape) {
  Random random(1);
  const int d = shape.head_dim;
  const auto matrix = [&] {
    std::vector<float> m(int64_t{d} * d);
    for (float& x : m) x = static_cast<float>(random.Normal());
    return m;
  };
  BasisAnalysis analysis;
  analysis.shape = shape;
  for (int h = 0; h < shape.n_layers * shape.n_kv_heads; ++h) {
    analysis.heads.push_back({matrix(), matrix(), matrix(), matrix()});
    analysis.heads.back().key_offset.assign(d, 1.0f);
    analysis.heads.back().value_offset.assign(d, 2.0f);
    analysis.heads.back().key_deviations.assign(d, 1.0f);
    analysis.heads.back().value_deviations.assign(d, 1.0f);
    analysis.noise.push_back({std::vector<double>(d, 1.0 + h), std::vector<double>(d, 3.0)});
    HeadSpectra& spectra = analysis.spectra.emplace_back();
    for (int i = 0; i < d; ++i) {
      spectra.qk.push_back((1.0 + h) * (d - i));
      spectra.v.push_back((2.0 + h) * (d - i));
    }
  }
  return analysis;
}

// The same with keys as latents.
BasisAnalysis LatentsOf(BasisAnalysis analysis) {
  for (HeadAnalysis& head : analysis.heads) {
    head.key_way_back = std::move(head.query_basis);
    head.query_basis.clear();
  }
  return analysis;
}

// The one pair of the basis that is cut, of 6 heads of 64.
struct Cut {
  int head_idx = -1;
  bool is_qk = false;
  int rank = 0;
  bool is_latent = false;
  bool is_static = false;
  double Kl() const {
    return 0.1 * head_idx + (is_qk ? 1 : 2) + 1.0 / rank + (is_latent ? 5 : 0) +
           (is_static ? 7 : 0);
  }
};

// The pair whose codes are short, of a basis that splits bits; none where all have 8.
std::optional<Cut> FindNoise(const ModelBasis& basis) {
  std::optional<Cut> noisy;
  BitSplit narrow;
  narrow.channels[std::ranges::find(kSplitBits, kProbeBits) - kSplitBits.begin()] = 64;
  for (int h = 0; h < 6; ++h) {
    for (const bool is_qk : {true, false}) {
      BitSplit bits = is_qk ? basis.heads[h].k_bits : basis.heads[h].v_bits;
      const bool is_scaled = std::exchange(bits.scaled, 0) == 64;
      if (bits == BitSplit{{64}}) {  // keys after RoPE with scales
        EXPECT_EQ(is_scaled, is_qk && !basis.has_latent_keys());
        continue;
      }
      EXPECT_EQ(bits, narrow);
      EXPECT_FALSE(noisy.has_value());
      noisy = Cut{h, is_qk, 1, basis.has_latent_keys(), is_qk && !is_scaled};
    }
  }
  return noisy;
}

Cut FindCut(const ModelBasis& basis, const BasisAnalysis& analysis) {
  Cut cut;
  for (int h = 0; h < 6; ++h) {
    const HeadBasis& head = basis.heads[h];
    EXPECT_EQ(head.key_offset.empty(), head.rank_k == 64);
    EXPECT_EQ(head.value_offset.empty(), head.rank_v == 64);
    EXPECT_EQ(head.key_way_back.empty(), !basis.has_latent_keys());
    EXPECT_EQ(head.query_basis.empty(), basis.has_latent_keys());
    if (head.rank_k == 64) {
      const auto& way_back = basis.has_latent_keys() ? head.key_way_back : head.query_basis;
      EXPECT_EQ(way_back, head.key_basis);
      EXPECT_EQ(way_back[65], 1);
    }
    if (head.rank_k == 64 && head.rank_v == 64) continue;
    EXPECT_EQ(cut.head_idx, -1);
    EXPECT_EQ(std::max(head.rank_k, head.rank_v), 64);
    cut = {h, head.rank_k < 64, std::min(head.rank_k, head.rank_v), basis.has_latent_keys()};
    const HeadAnalysis& from = analysis.heads[h];
    const auto& found = cut.is_qk ? head.key_basis : head.value_basis;
    const auto& whole = cut.is_qk ? from.key_basis : from.value_basis;
    EXPECT_EQ(found[cut.rank + 3], whole[64 + 3]);  // row 1, column 3
  }
  return cut;
}

TEST(SensitivityTest, EveryPairOfEveryHeadIsCutAlone) {
  const StatisticsShape shape = {3, 4, 2, 64};
  BasisAnalysis analysis = RandomAnalysis(shape);
  const BasisAnalysis before_rope = LatentsOf(analysis);
  for (HeadNoise& noise : analysis.noise) noise.qk_in_blocks.assign(64, 0.5);
  CalibrationStatistics statistics = MakeStatistics(shape);
  int n_cuts = 0, n_noisy = 0;
  SensitivityJob job;
  job.analysis = &analysis;
  job.before_rope = &before_rope;
  job.kl = [&](const ModelBasis& basis, int first_layer) -> StatusOr<double> {
    if (basis.heads[0].k_bits != BitSplit{}) {
      ++n_noisy;
      const std::optional<Cut> noisy = FindNoise(basis);
      EXPECT_EQ(first_layer, noisy.has_value() ? noisy->head_idx / 2 : KlMeter::kAllLayers);
      return noisy.has_value() ? noisy->Kl() : 0.25;
    }
    ++n_cuts;
    const Cut cut = FindCut(basis, analysis);
    EXPECT_EQ(first_layer, cut.head_idx / 2);
    return cut.Kl();
  };
  ASSERT_TRUE(MeasureSensitivities(job, &statistics).ok());
  EXPECT_EQ(n_cuts, 54);
  EXPECT_EQ(n_noisy, 32);
  for (int h = 0; h < 6; ++h) {
    EXPECT_NEAR(statistics.probes.noise_qk[h], (Cut{h, true, 1}.Kl()), 1e-6);
    EXPECT_NEAR(statistics.probes.noise_v[h], (Cut{h, false, 1}.Kl()), 1e-6);
    EXPECT_NEAR(statistics.probes.noise_qk_static[h], (Cut{h, true, 1, false, true}.Kl()), 1e-6);
    // Latents have no scales here, so both of their probes are the same.
    EXPECT_NEAR(statistics.probes.noise_qk_pre[h], (Cut{h, true, 1, true, true}.Kl()), 1e-6);
    EXPECT_NEAR(statistics.probes.noise_qk_pre_static[h], (Cut{h, true, 1, true, true}.Kl()), 1e-6);
  }
  for (int h = 0; h < 6; ++h) {
    for (int cut = 0; cut < 3; ++cut) {
      const int rank = 16 * (cut + 1);
      EXPECT_NEAR(statistics.probes.kl_qk[h * 3 + cut], (Cut{h, true, rank}.Kl()), 1e-6);
      EXPECT_NEAR(statistics.probes.kl_v[h * 3 + cut], (Cut{h, false, rank}.Kl()), 1e-6);
      EXPECT_NEAR(statistics.probes.kl_qk_pre[h * 3 + cut], (Cut{h, true, rank, true}.Kl()), 1e-6);
    }
  }
}

TEST(SensitivityTest, HeadsCutTogetherShareByTheirExpectedErrors) {
  const StatisticsShape shape = {12, 4, 4, 64};  // 576 probes, were they single
  const BasisAnalysis analysis = RandomAnalysis(shape), before_rope = LatentsOf(analysis);
  CalibrationStatistics statistics = MakeStatistics(shape);
  int n_probes = 0;
  SensitivityJob job;
  job.analysis = &analysis;
  job.before_rope = &before_rope;
  job.kl = [&](const ModelBasis& basis, int) -> StatusOr<double> {
    ++n_probes;
    if (basis.heads[0].k_bits != BitSplit{}) {
      const BitSplit wide = {{64}};
      for (int l = 0; l < 12; ++l) {
        if (basis.head(l, 0).k_bits != wide || basis.head(l, 0).v_bits != wide) return l + 1.0;
      }
      return 1.0;
    }
    for (int l = 0; l < 12; ++l) {
      if (basis.head(l, 0).rank_k < 64) return l + 1.0;
    }
    return 0.5;
  };
  ASSERT_TRUE(MeasureSensitivities(job, &statistics).ok());
  EXPECT_EQ(n_probes, 170);
  for (int l = 0; l < 12; ++l) {
    double squares = 0;
    for (int h = 4 * l; h < 4 * l + 4; ++h) squares += (1.0 + h) * (1.0 + h);
    for (int h = 4 * l; h < 4 * l + 4; ++h) {
      EXPECT_NEAR(statistics.probes.noise_qk[h], (l + 1) * (1.0 + h) / (16.0 * l + 10), 1e-4);
      EXPECT_NEAR(statistics.probes.noise_v[h], (l + 1) / 4.0, 1e-4);
      for (int cut = 0; cut < 3; ++cut) {
        EXPECT_NEAR(statistics.probes.kl_qk[h * 3 + cut], (l + 1) * (1.0 + h) * (1.0 + h) / squares,
                    1e-4);
      }
    }
  }
}

TEST(SensitivityTest, DeepModelsAreMeasuredByACutAndNoiseOfALayer) {
  const StatisticsShape shape = {13, 2, 2, 64};
  const BasisAnalysis analysis = RandomAnalysis(shape);
  BasisAnalysis before_rope = LatentsOf(analysis);
  for (HeadSpectra& spectra : before_rope.spectra) {
    for (double& x : spectra.qk) x *= 0.5;
  }
  for (HeadNoise& noise : before_rope.noise) {
    for (double& x : noise.qk) x *= 0.125;
  }
  CalibrationStatistics statistics = MakeStatistics(shape);
  // What is cut of layer l costs (l + 1) of its error, of values three times that; noise that much.
  const auto cut_loss = [&](int h, bool is_qk, int rank) {
    const HeadSpectra& spectra = analysis.spectra[h];
    double squares = 0;
    for (int i = rank; i < 64; ++i) {
      const double x = is_qk ? spectra.qk[i] : spectra.v[i];
      squares += x * x;
    }
    return (h / 2 + 1) * (is_qk ? 1 : 3) * squares;
  };
  const auto noise_loss = [](int h, bool is_qk) {
    return is_qk ? (h / 2 + 1) * 64.0 * (1 + h) : 64.0 * 3;
  };
  int n_probes = 0;
  SensitivityJob job;
  job.analysis = &analysis;
  job.before_rope = &before_rope;
  job.kl = [&](const ModelBasis& basis, int first_layer) -> StatusOr<double> {
    ++n_probes;
    EXPECT_FALSE(basis.has_latent_keys());
    const bool is_noise = basis.heads[0].k_bits != BitSplit{};
    const BitSplit wide = {{64}};
    double kl = is_noise && first_layer == KlMeter::kAllLayers ? 7 : 0;
    for (int h = 0; h < 26; ++h) {
      const HeadBasis& head = basis.heads[h];
      if (head.rank_k < 64) kl += cut_loss(h, true, head.rank_k);
      if (head.rank_v < 64) kl += cut_loss(h, false, head.rank_v);
      if (is_noise && head.k_bits != wide) kl += noise_loss(h, true);
      if (is_noise && head.v_bits != wide) kl += noise_loss(h, false);
      EXPECT_TRUE(h / 2 >= first_layer || (head.rank_k == 64 && head.rank_v == 64));
    }
    return kl;
  };
  ASSERT_TRUE(MeasureSensitivities(job, &statistics).ok());
  EXPECT_EQ(n_probes, 53);
  const auto near = [](double from, double to) { EXPECT_NEAR(from / to, 1, 1e-5); };
  for (int h = 0; h < 26; ++h) {
    for (int cut = 0; cut < 3; ++cut) {
      const int rank = 16 * (cut + 1);
      near(statistics.probes.kl_qk[h * 3 + cut], cut_loss(h, true, rank));
      near(statistics.probes.kl_v[h * 3 + cut], cut_loss(h, false, rank));
      near(statistics.probes.kl_qk_pre[h * 3 + cut], cut_loss(h, true, rank) / 4);
    }
    near(statistics.probes.noise_qk[h], noise_loss(h, true));
    near(statistics.probes.noise_v[h], noise_loss(h, false));
    near(statistics.probes.noise_qk_pre[h], noise_loss(h, true) / 8);
  }
}

TEST(SensitivityTest, ProbesReadTheFirstTokensAsTwoTexts) {
  const auto count = [](int32_t first, int n_tokens) {
    std::vector<int32_t> ids(n_tokens);
    std::iota(ids.begin(), ids.end(), first);
    return ids;
  };
  const StatisticsShape shape = {2, 4, 2, 64}, deep = {13, 4, 2, 64};
  std::vector<int32_t> second = count(1024, 1024);
  second.front() = 0;
  EXPECT_EQ(ChooseProbeTexts({count(0, 2048), count(5000, 2048)}, shape).texts,
            (TokenSequences{count(0, 1024), second}));
  EXPECT_EQ(ChooseProbeTexts({count(0, 1024), count(5000, 1024), count(9000, 1024)}, shape).texts,
            (TokenSequences{count(0, 1024), count(5000, 1024)}));
  EXPECT_EQ(ChooseProbeTexts({count(0, 300), count(5000, 40)}, shape).texts,
            TokenSequences{count(0, 300)});
}

TEST(SensitivityTest, ProbesOfDeepModelsReadShortTextsFromAllParts) {
  TokenSequences sequences;
  for (int s = 0; s < 10; ++s) {
    std::vector<int32_t> ids(s < 9 ? 2048 : 100);
    std::iota(ids.begin(), ids.end(), s * 2048);
    ids.front() = -1;
    sequences.push_back(std::move(ids));
  }
  const StatisticsShape deep = {13, 4, 2, 64};
  const ProbeTexts chosen = ChooseProbeTexts(sequences, deep);
  const TokenSequences& texts = chosen.texts;
  EXPECT_EQ(chosen.options.n_whole_texts, 2);
  ASSERT_EQ(texts.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(texts[i].size(), 256u);
    EXPECT_EQ(texts[i][0], -1);
    for (int t = 2; t < 256; ++t) ASSERT_EQ(texts[i][t], texts[i][1] + t - 1);
    const int part = std::array{0, 2, 1, 3}[i];
    EXPECT_GT(texts[i][1], 18532 / 4 * part - 256);
    EXPECT_LT(texts[i][255], 18532 / 4 * (part + 1) + 256);
  }
  // Of a short text as many as it has.
  EXPECT_EQ(ChooseProbeTexts({sequences[9]}, deep).texts, TokenSequences{sequences[9]});
  const std::vector<int32_t> two(sequences[0].begin(), sequences[0].begin() + 600);
  EXPECT_EQ(ChooseProbeTexts({two}, deep).texts.size(), 2u);
}

TEST(SensitivityTest, ProgressRisesAndIsTheShareOfLayersRun) {
  for (const int n_layers : {2, 20}) {
    const StatisticsShape shape = {n_layers, 2, 1, 64};
    const BasisAnalysis analysis = RandomAnalysis(shape), before_rope = LatentsOf(analysis);
    CalibrationStatistics statistics = MakeStatistics(shape);
    double work = 0;
    std::vector<double> told, done;
    SensitivityJob job;
    job.analysis = &analysis;
    job.before_rope = &before_rope;
    job.kl = [&](const ModelBasis&, int first_layer) -> StatusOr<double> {
      if (first_layer == KlMeter::kAllLayers) return 1.0;
      done.push_back(work);
      work += 1.25 * n_layers - first_layer;
      return 1.0;
    };
    job.on_progress = [&](double fraction) { told.push_back(fraction); };
    ASSERT_TRUE(MeasureSensitivities(job, &statistics).ok());
    EXPECT_NEAR(work, ProbedLayers(shape), 1e-6);
    ASSERT_EQ(told.size(), done.size());
    for (size_t i = 0; i < told.size(); ++i) EXPECT_NEAR(told[i], done[i] / work, 1e-6);
  }
}

TEST(SensitivityTest, ErrorsComeThroughAndNothingIsExactlyZero) {
  const StatisticsShape shape = {1, 1, 1, 64};
  const BasisAnalysis analysis = RandomAnalysis(shape), before_rope = LatentsOf(analysis);
  CalibrationStatistics statistics = MakeStatistics(shape);
  SensitivityJob job;
  job.analysis = &analysis;
  job.before_rope = &before_rope;
  job.kl = [](const ModelBasis&, int) -> StatusOr<double> {
    return Error(StatusCode::kResourceExhausted, "no memory");
  };
  EXPECT_EQ(MeasureSensitivities(job, &statistics).code(), StatusCode::kResourceExhausted);
  job.kl = [](const ModelBasis&, int) -> StatusOr<double> { return 0.0; };
  ASSERT_TRUE(MeasureSensitivities(job, &statistics).ok());
  EXPECT_GT(statistics.probes.kl_v[0], 0);
}

}  // namespace
}  // namespace kvlathe
