#include "model/steps/project.h"

#include <memory>
#include <utility>

#include "model/steps/step_fixture.h"

namespace kvlathe {
namespace {

class ProjectStepTest : public StepTest {
 protected:
  ProjectStepTest() {
    weights.qk = Matrix(6 * kHeadDim, config.hidden_dim);
    weights.mlp_in = Matrix(config.mlp_rows(), config.hidden_dim);
    weights.down = Matrix(config.hidden_dim, config.ffn_dim);
    weights.down_bias = Table({1, 2, 3});
    weights.ffn_out_norm.weight = Table({4, 5, 6});
    ValueProjection values;
    values.v = Matrix(2 * kHeadDim, config.hidden_dim);
    values.o = Matrix(config.hidden_dim, 4 * kHeadDim);
    layer.values = std::make_shared<const ValueProjection>(std::move(values));
    activations.types = DType::kBf16;
  }
  Weight Matrix(int64_t n_out, int64_t n_in) {
    auto matrix = Weight::Create(&residents, n_out, n_in, WeightType::kBf16);
    EXPECT_TRUE(matrix.ok());
    return *std::move(matrix);
  }

  SequenceCache cache{&layout, &pool};
};

TEST_F(ProjectStepTest, RowsThatStillTurnLeaveTheProductInF32) {
  Begin(&cache, 3);
  ASSERT_TRUE(ProjectStep(&layer).Run(&state).ok());
  ASSERT_EQ(backend.products.size(), 2u);
  const ProductPlan& qk = backend.products[0];
  EXPECT_EQ(qk.w, weights.qk.id());
  EXPECT_EQ(qk.n_rows, 3);
  EXPECT_EQ(qk.x, activations.normed.place());
  EXPECT_EQ(qk.y_stride, 6 * kHeadDim);
  EXPECT_EQ(qk.y_type, DType::kF32);
  EXPECT_TRUE(qk.bias.is_null());
  EXPECT_EQ(backend.products[1].y, activations.v.place());
  EXPECT_EQ(backend.products[1].y_type, DType::kBf16);
}

TEST_F(ProjectStepTest, WhereNothingTurnsThemTheyAreRowsOfTheCacheAtOnce) {
  layer.rows.turn = false;
  layer.folded_qk.emplace();
  layer.folded_qk->qk = Matrix(4 * kHeadDim, config.hidden_dim);
  Begin(&cache, 1);
  ASSERT_TRUE(ProjectStep(&layer).Run(&state).ok());
  EXPECT_EQ(backend.products[0].w, layer.folded_qk->qk.id());
  EXPECT_EQ(backend.products[0].y_type, DType::kBf16);
}

TEST_F(ProjectStepTest, TheOutputOfAttentionIsAddedToTheStream) {
  Begin(&cache, 2);
  ASSERT_TRUE(OutputStep(&layer).Run(&state).ok());
  ASSERT_EQ(backend.products.size(), 1u);
  EXPECT_EQ(backend.products[0].x, activations.attended.place());
  EXPECT_EQ(backend.products[0].y, activations.hidden.place());
  EXPECT_TRUE(backend.products[0].accumulate);
  EXPECT_TRUE(backend.norms.empty());
}

TEST_F(ProjectStepTest, WithNormsOfOutputsWhatIsAddedIsNormalisedFirst) {
  config.norms.of_outputs = true;
  config.mlp = MlpKind::kGeglu;
  Begin(&cache, 2);
  ASSERT_TRUE(activations.added.EnsureSize(&memory, 2 * config.hidden_dim * 4, "activations").ok());
  ASSERT_TRUE(FeedForwardStep(&layer).Run(&state).ok());
  ASSERT_EQ(backend.gates.size(), 1u);
  EXPECT_EQ(backend.gates[0].kind, GateKind::kGegluTanh);
  EXPECT_EQ(backend.gates[0].n_in(), 2 * config.ffn_dim);
  ASSERT_EQ(backend.products.size(), 2u);
  const ProductPlan& down = backend.products[1];
  EXPECT_EQ(down.bias, weights.down_bias.place());
  EXPECT_EQ(down.y, activations.added.place());
  EXPECT_FALSE(down.accumulate);
  ASSERT_EQ(backend.norms.size(), 1u);
  EXPECT_EQ(backend.norms[0].weight, weights.ffn_out_norm.weight.place());
  EXPECT_EQ(backend.norms[0].x, activations.added.place());
  EXPECT_EQ(backend.norms[0].added_to, activations.hidden.place());
}

TEST_F(ProjectStepTest, HeadsThatShareLatentsReadTheirColumnsOfWhatAttentionPutsOut) {
  layer.rows.keys = LatentKeys{.heads_per_latent = 2};
  for (int g = 0; g < 2; ++g) layer.basis.output.push_back(Matrix(kHeadDim, 2 * kHeadDim));
  Begin(&cache, 1);
  ASSERT_TRUE(activations.attended.EnsureSize(&memory, 8 * kHeadDim * 4, "activations").ok());
  ASSERT_TRUE(activations.outputs.EnsureSize(&memory, 4 * kHeadDim * 4, "activations").ok());
  ASSERT_TRUE(ReadOutputsStep(&layer).Run(&state).ok());
  ASSERT_EQ(backend.head_products.size(), 4u);
  for (int h = 0; h < 4; ++h) {
    // Attention puts out the latents of both KV heads for each query head.
    EXPECT_EQ(backend.head_products[h].w, layer.basis.output[h / 2].id());
    EXPECT_EQ(backend.head_products[h].x, activations.attended.place() + h * 2 * kHeadDim * 2);
    EXPECT_EQ(backend.head_products[h].y, activations.outputs.place() + h * kHeadDim * 2);
  }
}

}  // namespace
}  // namespace kvlathe
