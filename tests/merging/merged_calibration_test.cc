// What calibration learns of a cache that merges: the rows that the cache holds, as attention sees
// them, and not those of positions.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/statistics/gram.h"
#include "base/cpu_features.h"
#include "base/random.h"
#include "calibration/calibrate.h"
#include "cpu/memory/cpu_device.h"
#include "format/rows/block_layout.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "model/model.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "model/weight_grams.h"
#include "plan/planner.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int kTokens = 400, kDim = 32;

using Vector = std::vector<double>;

// All rows that the model shows, of one sequence in one chunk.
class Rows : public QkvObserver {
 public:
  struct Layer {
    std::vector<float> q, k, v;
    std::vector<uint8_t> is_entry;
  };

  void Observe(const QkvView& view) override {
    const auto copy = [&](const float* from, int n_heads, std::vector<float>* to) {
      to->assign(from, from + int64_t{view.n_tokens} * n_heads * kDim);
    };
    Layer& layer = layers.emplace_back();
    copy(view.q_post, 4, &layer.q);
    copy(view.k_post, 2, &layer.k);
    copy(view.v, 2, &layer.v);
    ASSERT_NE(view.is_entry, nullptr);
    layer.is_entry.assign(view.is_entry, view.is_entry + int64_t{view.n_tokens} * 2);
  }

  std::vector<Layer> layers;
};

class MergedCalibration : public ::testing::TestWithParam<const char*>, public PlanSource {
 protected:
  MergedCalibration() : config_(SmallConfig(kDim)) {
    config_.dmc = DmcConfig{.offset = 0, .weight_offset = 0};
    auto weights = ModelWeights::Load(config_, DType::kF32, MakeRandomSource(3),
                                      MakeMachine(&threads_, SelectIsa().value()));
    EXPECT_TRUE(weights.ok()) << weights.status();
    weights_ = *std::move(weights);
    Random random(5);
    for (int i = 0; i < kTokens; ++i) {
      ids_.push_back(static_cast<int32_t>(random.Below(kSmallVocabulary)));
    }
  }

  std::unique_ptr<Model> Make(const std::string& spec) {
    auto model = CreateModel(weights_, PartsOf(*Spec::Parse(spec)));
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  Status Read(Model* model, int chunk, SequenceCache* cache, QkvObserver* observer = nullptr) {
    while (cache->n_tokens() < kTokens) {
      const int begin = cache->n_tokens(), n = std::min(chunk, kTokens - begin);
      KVL_RETURN_IF_ERROR(cache->Extend(n));
      const SequenceStep step{cache, std::span(ids_).subspan(begin, n),
                              SequenceStep::Logits::kNone};
      KVL_RETURN_IF_ERROR(model->Forward({&step, 1}, observer));
    }
    return OkStatus();
  }

  CalibrationStatistics Calibrated(const std::string& spec) {
    const auto model = Make(spec);
    CalibrationJob job;
    job.shape = {config_.n_layers, config_.n_heads, config_.n_kv_heads, kDim};
    job.attention = config_.attention;
    job.n_positions = kTokens;  // of the sequence: it starts where it does
    job.rope_dim = config_.rope_dim();
    job.sequences = {ids_};
    job.pool = &threads_;
    job.isa = SelectIsa().value();
    job.forward = [&](std::span<const int32_t>, QkvObserver* observer) {
      SequenceCache cache(&model->layout(), &pool_);
      return Read(model.get(), kTokens, &cache, observer);
    };
    auto statistics = Calibrate(job);
    EXPECT_TRUE(statistics.ok()) << statistics.status();
    return *std::move(statistics);
  }

  // The entries of one head as its blocks hold them, keys or values.
  std::vector<Vector> EntriesOf(const SequenceCache& cache, int layer_idx, int g, bool is_key) {
    const CacheHead head = cache.head(layer_idx, g);
    const CpuAccess access(cache.device());
    std::vector<Vector> rows;
    for (int e = 0; e < head.n_entries(); ++e) {
      const auto* block = reinterpret_cast<const float*>(access.At(head.blocks()[e / kBlockSize]));
      const int t = e % kBlockSize;
      Vector& row = rows.emplace_back();
      for (int c = 0; c < kDim; ++c) {
        row.push_back(is_key ? block[KeyOffset(t, c)]
                             : block[kBlockSize * kDim + ValueOffset(head.shape(), t, c)]);
      }
    }
    return rows;
  }

  // PlanSource: statistics of merged rows, to whoever asks for them.
  bool is_random() const override { return false; }
  StatusOr<const CalibrationStatistics*> Statistics(const StatisticsNeed& need) override {
    asked_for_ = need.merge;
    return &statistics_[need.merge.has_value() ? 1 : 0];
  }
  StatusOr<const FisherWeights*> Fisher(const Spec&) override {
    return Error(StatusCode::kNotFound, "none");
  }
  StatusOr<std::vector<std::vector<double>>> ValueGrams(int n) override {
    return WeightGrams(weights_.get()).ValueGrams(n);
  }
  StatusOr<std::vector<std::vector<double>>> KeyGrams(int n) override {
    return WeightGrams(weights_.get()).KeyGrams(n);
  }
  StatusOr<std::vector<std::vector<double>>> OutputGrams() override {
    return WeightGrams(weights_.get()).OutputGrams(&threads_);
  }
  StatusOr<std::vector<std::vector<float>>> ValueBiases() override {
    return WeightGrams(weights_.get()).ValueBiases();
  }
  StatusOr<std::vector<std::vector<float>>> KeyBiases() override {
    return WeightGrams(weights_.get()).KeyBiases();
  }
  ThreadPool* threads() override { return &threads_; }

  ModelConfig config_;
  ThreadPool threads_{2};
  std::shared_ptr<ModelWeights> weights_;
  std::vector<int32_t> ids_;
  HostPool pool_{int64_t{64} << 20};
  CalibrationStatistics statistics_[2];  // of positions, of entries
  std::optional<MergePlan> asked_for_;
};

Vector MeanGram(const std::vector<Vector>& rows) {
  Vector gram(kDim * kDim);
  for (const Vector& row : rows) {
    for (int i = 0; i < kDim; ++i) {
      for (int j = 0; j < kDim; ++j) gram[i * kDim + j] += row[i] * row[j];
    }
  }
  for (double& x : gram) x /= static_cast<double>(rows.size());
  return gram;
}

// As a share of the size of `want`.
template <typename T>
double Distance(const T* got, const Vector& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  return std::sqrt(difference / size);
}

TEST_P(MergedCalibration, MomentsAreThoseOfTheEntriesThatTheCacheHolds) {
  const CalibrationStatistics merged = Calibrated(GetParam()), plain = Calibrated("none");
  const auto model = Make(GetParam());
  SequenceCache cache(&model->layout(), &pool_);
  ASSERT_TRUE(Read(model.get(), 23, &cache).ok());
  for (int l = 0; l < config_.n_layers; ++l) {
    for (int g = 0; g < config_.n_kv_heads; ++g) {
      const int64_t head_idx = merged.HeadIndex(l, g);
      ASSERT_LT(cache.head(l, g).n_entries(), kTokens * 3 / 4);
      const Vector keys = MeanGram(EntriesOf(cache, l, g, true));
      const Vector values = MeanGram(EntriesOf(cache, l, g, false));
      EXPECT_LT(Distance(GramOf(merged.k_post, head_idx, kDim).data(), keys), 1e-4);
      EXPECT_LT(Distance(GramOf(merged.v, head_idx, kDim).data(), values), 1e-4);
      EXPECT_GT(Distance(GramOf(plain.k_post, head_idx, kDim).data(), keys), 0.1);
      EXPECT_GT(Distance(GramOf(plain.v, head_idx, kDim).data(), values), 0.1);
    }
  }
}

// A basis of entries keeps more of entries than one of positions does.
TEST_P(MergedCalibration, ABasisThatIsComposedIsOneOfEntries) {
  statistics_[0] = Calibrated("none");
  statistics_[1] = Calibrated(GetParam());
  CachePlanner planner(FactsOf(config_, DType::kF32), this);
  const auto basis_of = [&](const std::string& spec) -> ModelBasis {
    const auto plan = planner.MakePlan(*Spec::Parse(spec));
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *plan->basis();
  };
  const std::string zack = "zack(rate=0.5,ranks=uniform)";
  const ModelBasis of_positions = basis_of(zack);
  EXPECT_EQ(asked_for_, std::nullopt);
  const ModelBasis of_entries = basis_of(zack + "+" + GetParam());
  ASSERT_TRUE(asked_for_.has_value());
  EXPECT_EQ(asked_for_, RetentionPlanOf(*Spec::Parse(GetParam()))->merge);
  // What is lost of queries and keys together, which is what ZACK's rotation keeps most of.
  const auto lost = [&](const HeadBasis& head, int64_t head_idx) {
    const CalibrationStatistics& s = statistics_[1];
    const std::vector<double> rows =
        WeightedSum(1, GramOf(s.q_post, head_idx, kDim, s.shape.gqa_group()), 1,
                    GramOf(s.k_post, head_idx, kDim));
    double whole = 0, kept = 0;
    for (int i = 0; i < kDim; ++i) {
      for (int j = 0; j < kDim; ++j) {
        const double x = rows[i * kDim + j];
        if (i == j) whole += x;
        for (int r = 0; r < head.rank_k; ++r) {
          kept += head.key_basis[i * head.rank_k + r] * x * head.key_basis[j * head.rank_k + r];
        }
      }
    }
    return (whole - kept) / whole;
  };
  double sum_of_positions = 0, sum_of_entries = 0;
  for (size_t h = 0; h < of_entries.heads.size(); ++h) {
    ASSERT_EQ(of_entries.heads[h].rank_k, of_positions.heads[h].rank_k);
    const double by_entries = lost(of_entries.heads[h], static_cast<int64_t>(h));
    EXPECT_LT(by_entries, lost(of_positions.heads[h], static_cast<int64_t>(h))) << h;
    sum_of_entries += by_entries;
    sum_of_positions += lost(of_positions.heads[h], static_cast<int64_t>(h));
  }
  EXPECT_LT(sum_of_entries, 0.99 * sum_of_positions);
}

std::string NameOfCase(const ::testing::TestParamInfo<const char*>& test) {
  constexpr const char* kNames[] = {"Dmc", "DmcOfThree", "Pool"};
  return kNames[test.index];
}

INSTANTIATE_TEST_SUITE_P(Merging, MergedCalibration,
                         ::testing::Values("dmc(sink=4)", "dmc(window=3,sink=4)",
                                           "pool(n=3,sink=4)"),
                         NameOfCase);

}  // namespace
}  // namespace kvlathe
