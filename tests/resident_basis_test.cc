// Sequences that store as much of every row as each of them chose, on one model with the maps of
// all dimensions: the literal decoder with the cut maps, and the bits of a model that was made with
// them.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>

#include "loaded_model.h"
#include "model/planned_model.h"
#include "model_shapes.h"
#include "random_model.h"
#include "reference_decoder.h"

namespace kvlathe {
namespace {

using testing::Columns;
using testing::Flat;
using testing::LoadedModel;
using testing::LoadModel;
using testing::Matrix;
using testing::NamedShape;
using testing::ReferenceBasis;
using testing::ReferenceModel;

constexpr double kRates[] = {0.25, 0.5};

// Orthonormal rows, by Gram and Schmidt.
Matrix RandomRotation(int dim, std::mt19937_64* random) {
  std::normal_distribution<double> normal;
  Matrix rows;
  for (int i = 0; i < dim; ++i) {
    std::vector<double> row(dim);
    for (double& x : row) x = normal(*random);
    for (const auto& other : rows) {
      double along = 0;
      for (int j = 0; j < dim; ++j) along += row[j] * other[j];
      for (int j = 0; j < dim; ++j) row[j] -= along * other[j];
    }
    double square = 0;
    for (const double x : row) square += x * x;
    for (double& x : row) x /= std::sqrt(square);
    rows.push_back(row);
  }
  return rows;
}

class ResidentBasisTest : public ::testing::TestWithParam<NamedShape> {
 protected:
  void SetUp() override {
    directory_ = testing::FreshDirectory(std::string("resident_") + GetParam().name);
    testing::RandomModelShape shape = GetParam().shape;
    if (shape.head_dim == 16) shape.head_dim = 48;
    if (shape.model_type == "gpt2" || shape.model_type == "falcon") {
      shape.hidden = shape.n_heads * shape.head_dim;
    }
    reference_ = testing::WriteRandomModel(shape, directory_, 23);
    d_ = reference_.head_dim;
    std::mt19937_64 random(5);
    for (int i = 0; i < 85; ++i) ids_.push_back(static_cast<int>(random() % reference_.vocab));
    full_ = testing::RandomBases(reference_, 6);  // for the offsets
    for (ReferenceBasis& head : full_) {
      head.query = head.key = RandomRotation(d_, &random);
      head.value = RandomRotation(d_, &random);
      head.output = RandomRotation(d_, &random);
    }
    for (int i = 0; i < 3; ++i) {
      for (size_t h = 0; h < full_.size(); ++h) {
        const auto draw = [&] { return 16 * (1 + static_cast<int>(random() % (d_ / 16))); };
        ranks_[i].push_back({draw(), draw()});
      }
    }
    ranks_[2][0] = {d_, d_};
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::vector<ReferenceBasis> Cut(const std::vector<HeadRanks>& ranks) const {
    std::vector<ReferenceBasis> bases = full_;
    for (size_t h = 0; h < bases.size(); ++h) {
      bases[h].query = bases[h].key = Columns(full_[h].key, 0, ranks[h].rank_k);
      bases[h].value = Columns(full_[h].value, 0, ranks[h].rank_v);
      bases[h].output.resize(ranks[h].rank_v);
    }
    return bases;
  }
  ModelBasis ModelCut(const std::vector<HeadRanks>& ranks) const {
    ModelBasis basis = testing::ToModelBasis(reference_, Cut(ranks));
    for (size_t h = 0; h < full_.size(); ++h) {
      const std::vector<float> rest = Flat(Columns(full_[h].key, ranks[h].rank_k, d_));
      basis.heads[h].cut = {rest, rest};
    }
    return basis;
  }
  LoadedModel LoadFixed(const std::vector<HeadRanks>& ranks, DType dtype, Isa isa, int n_sink) {
    const ModelBasis basis = ModelCut(ranks);
    LoadedModel loaded = LoadModel(directory_, dtype, isa, &basis, n_sink);
    loaded.model->set_deterministic(true);
    return loaded;
  }
  // With ranks_[2] unless a sequence has one of kRates.
  LoadedModel LoadResident(DType dtype, Isa isa, int n_sink) {
    const auto ranks_at = [this](double rate) -> StatusOr<std::vector<HeadRanks>> {
      for (size_t i = 0; i < std::size(kRates); ++i) {
        if (rate == kRates[i]) return ranks_[i];
      }
      return Error(StatusCode::kInvalidArgument, "another rate");
    };
    LoadedModel loaded = LoadModel(directory_, dtype, isa);
    PlanParts parts;
    parts.basis = ModelCut(std::vector<HeadRanks>(full_.size(), {d_, d_}));
    parts.n_sink = n_sink;
    parts.allocation = RankAllocation{.ranks = ranks_[2]};
    parts.ranks_at = ranks_at;
    auto model = CreateModel(loaded.weights, std::move(parts));
    EXPECT_TRUE(model.ok()) << model.status();
    loaded.model = *std::move(model);
    loaded.model->set_deterministic(true);
    return loaded;
  }
  static const CacheLayout& LayoutOf(const LoadedModel& loaded, int i) {
    return i < 2 ? **loaded.model->LayoutAt(kRates[i]) : loaded.model->layout();
  }

  // Logits after every token, in chunks that cut the sink, blocks and single tokens.
  Matrix Logits(LoadedModel* loaded, const CacheLayout& layout) {
    const std::vector<int32_t> tokens(ids_.begin(), ids_.end());
    SequenceCache cache(&layout, loaded->blocks.get());
    Matrix logits;
    size_t begin = 0;
    for (const size_t n : {2, 1, 37, 1, 40, 4}) {
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
    EXPECT_EQ(begin, tokens.size());
    EXPECT_EQ(cache.bytes().total(), SequenceBytes(layout, std::ssize(tokens), 4));
    return logits;
  }

  std::string directory_;
  ReferenceModel reference_;
  int d_ = 0;
  std::vector<int> ids_;
  std::vector<ReferenceBasis> full_;
  std::vector<HeadRanks> ranks_[3];
};

TEST_P(ResidentBasisTest, IsTheLiteralDecoderAtEveryRate) {
  for (const int n_sink : {0, 4}) {
    std::vector<Matrix> expected;
    for (const auto& ranks : ranks_) {
      expected.push_back(testing::ReferenceLogits(reference_, ids_, Cut(ranks), n_sink));
    }
    for (const Isa isa : AvailableIsas()) {
      LoadedModel resident = LoadResident(DType::kF32, isa, n_sink);
      for (int i = 0; i < 3; ++i) {
        SCOPED_TRACE(fmt::format("{} n_sink {} ranks {}", IsaName(isa), n_sink, i));
        EXPECT_LT(testing::MaxDifference(Logits(&resident, LayoutOf(resident, i)), expected[i]),
                  1e-3);
      }
    }
  }
}

TEST_P(ResidentBasisTest, HasTheBitsAndBytesOfTheModelThatWasMadeWithTheRanks) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const int n_sink : {0, 4}) {
      for (const Isa isa : AvailableIsas()) {
        LoadedModel resident = LoadResident(dtype, isa, n_sink);
        for (const int i : {0, 2}) {
          SCOPED_TRACE(
              fmt::format("{} {} n_sink {} ranks {}", IsaName(isa), DTypeName(dtype), n_sink, i));
          LoadedModel fixed = LoadFixed(ranks_[i], dtype, isa, n_sink);
          const CacheLayout& layout = LayoutOf(resident, i);
          EXPECT_EQ(layout.shapes, fixed.model->layout().shapes);
          EXPECT_TRUE(Logits(&resident, layout) == Logits(&fixed, fixed.model->layout()));
        }
      }
    }
  }
}

TEST_P(ResidentBasisTest, ABatchMixesRates) {
  LoadedModel resident = LoadResident(DType::kBf16, AvailableIsas().back(), 4);
  std::vector<std::unique_ptr<SequenceCache>> caches;
  std::vector<SequenceStep> steps;
  const std::vector<int32_t> tokens(ids_.begin(), ids_.end());
  for (int i = 0; i < 4; ++i) {
    const size_t n = 70 - 9 * i;
    caches.push_back(
        std::make_unique<SequenceCache>(&LayoutOf(resident, i % 3), resident.blocks.get()));
    ASSERT_TRUE(caches.back()->Extend(static_cast<int>(n)).ok());
    steps.push_back(
        {caches.back().get(), std::span(tokens).subspan(i, n), SequenceStep::Logits::kLast});
  }
  ASSERT_TRUE(resident.model->Forward(steps).ok());
  Matrix together;
  for (int64_t i = 0; i < 4; ++i) {
    const auto row = resident.model->logits(i);
    together.emplace_back(row.begin(), row.end());
  }
  for (int i = 0; i < 4; ++i) {
    SequenceCache cache(&LayoutOf(resident, i % 3), resident.blocks.get());
    ASSERT_TRUE(cache.Extend(static_cast<int>(steps[i].token_ids.size())).ok());
    const SequenceStep step{&cache, steps[i].token_ids, SequenceStep::Logits::kLast};
    ASSERT_TRUE(resident.model->Forward({&step, 1}).ok());
    const auto row = resident.model->logits(0);
    EXPECT_EQ(together[i], std::vector<double>(row.begin(), row.end())) << i;
    EXPECT_EQ(caches[i]->bytes().total(),
              SequenceBytes(cache.layout(), cache.n_tokens(), cache.n_tokens()));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ResidentBasisTest, ::testing::ValuesIn(testing::ModelShapes()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace kvlathe
