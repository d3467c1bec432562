#include "model/steps/experts.h"

#include <gmock/gmock.h>

#include "model/steps/step_fixture.h"

namespace kvlathe {
namespace {

using ::testing::ElementsAre;

TEST(ExpertRowsTest, RowsOfAnExpertFollowEachOtherInTheOrderOfTheTokens) {
  ExpertRows rows;
  rows.Assign(std::vector<int32_t>{3, 1, 1, 3, 0, 3}, 2, 5);
  ASSERT_EQ(rows.groups().size(), 3u);
  EXPECT_EQ(rows.groups()[0].expert_idx, 0);
  EXPECT_EQ(rows.groups()[1].expert_idx, 1);
  EXPECT_EQ(rows.groups()[1].first, 1);
  EXPECT_EQ(rows.groups()[1].n_rows, 2);
  EXPECT_EQ(rows.groups()[2].expert_idx, 3);
  EXPECT_EQ(rows.groups()[2].n_rows, 3);
  EXPECT_THAT(rows.tokens(), ElementsAre(2, 0, 1, 0, 1, 2));
  EXPECT_THAT(rows.rows(), ElementsAre(3, 1, 2, 4, 0, 5));
}

class ExpertsStepTest : public StepTest {
 protected:
  static constexpr int kFfn = 32, kShared = 48;

  ExpertsStepTest() {
    ExpertsConfig experts = {.n_experts = 3, .n_used = 2, .ffn_dim = kFfn};
    experts.shared_ffn_dim = kShared;
    experts.has_shared_gate = true;
    experts.of_layer = {true};
    config.experts = experts;
    const int64_t hidden = config.hidden_dim;
    for (int e = 0; e < 3; ++e) {
      weights.experts.in.push_back(Matrix(2 * kFfn, hidden));
      weights.experts.down.push_back(Matrix(hidden, kFfn));
    }
    weights.experts.shared_in = Matrix(2 * kShared, hidden);
    weights.experts.shared_down = Matrix(hidden, kShared);
    activations.types = DType::kBf16;
  }
  Weight Matrix(int64_t n_out, int64_t n_in) {
    return *Weight::Create(&residents, n_out, n_in, WeightType::kBf16);
  }
  void BeginTokens(int n_new) {
    Begin(&cache, n_new);
    ASSERT_TRUE(activations.Reserve(WidthsOf(layer)).ok());
  }
  static ActivationWidths WidthsOf(const Layer& layer) {
    const int64_t hidden = layer.config->hidden_dim;
    return {.mlp_in = 4 * kFfn,
            .gated = 2 * kFfn,
            .routed_by = hidden,
            .routed_in = 2 * hidden,
            .routed_out = 3 * hidden};
  }

  SequenceCache cache{&layout, &pool};
};

TEST_F(ExpertsStepTest, OneTokenIsReadWhereItStandsByAllItsExperts) {
  BeginTokens(1);
  ASSERT_TRUE(ExpertsStep(&layer).Run(&state).ok());
  ASSERT_EQ(backend.routes.size(), 1u);
  EXPECT_EQ(backend.routes[0].x, activations.routed_by.place());
  EXPECT_TRUE(backend.routes[0].has_gate_row);
  EXPECT_TRUE(backend.gathers.empty());
  ASSERT_EQ(backend.expert_products.size(), 2u);
  ASSERT_EQ(backend.expert_products[0].size(), 2u);
  const ExpertProductsPlan::Item& second = backend.expert_products[0][1];
  EXPECT_EQ(second.w, weights.experts.in[1].id());
  EXPECT_EQ(second.first_x, 0);
  EXPECT_EQ(second.first_y, 1);
  EXPECT_EQ(backend.expert_products[1][1].w, weights.experts.down[1].id());
  EXPECT_EQ(backend.expert_products[1][1].first_x, 1);
}

TEST_F(ExpertsStepTest, TokensAreGatheredAndTheSharedPartIsOneRowMore) {
  BeginTokens(3);
  ASSERT_TRUE(ExpertsStep(&layer).Run(&state).ok());
  ASSERT_EQ(backend.gathers.size(), 1u);
  EXPECT_THAT(backend.gathers[0], ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_EQ(backend.expert_products[0][1].first_x, 3);
  EXPECT_EQ(backend.expert_products[0][1].n_rows, 3);
  ASSERT_EQ(backend.products.size(), 2u);
  EXPECT_EQ(backend.products[0].w, weights.experts.shared_in.id());
  const int64_t behind = 6 * config.hidden_dim * int64_t{sizeof(float)};
  EXPECT_EQ(backend.products[1].y, activations.routed_out.place() + behind);
  ASSERT_EQ(backend.weighted.size(), 1u);
  EXPECT_EQ(backend.weighted[0].n_each, 3);
  EXPECT_EQ(backend.weighted[0].y, activations.hidden.place());
  EXPECT_TRUE(backend.weighted[0].accumulate);
  EXPECT_THAT(backend.weighted_rows[0], ElementsAre(0, 3, 6, 1, 4, 7, 2, 5, 8));
}

}  // namespace
}  // namespace kvlathe
