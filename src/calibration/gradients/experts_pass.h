// Routers and experts of a layer over a whole window of tokens, forwards and back. Matrices are
// unpacked expert by expert, so that memory grows with the widest of them and not with their
// number.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "calibration/gradients/layer_products.h"
#include "calibration/gradients/row_operators.h"
#include "machine/machine_buffer.h"
#include "model/steps/experts.h"
#include "model/weights.h"

namespace kvlathe {

class ExpertsPass {
 public:
  // All outlive this; the model has experts in some layers.
  ExpertsPass(const ModelWeights* weights, LayerProducts* products,
              const ElementwiseKernels* kernels)
      : weights_(*weights), products_(*products), kernels_(*kernels) {}

  Status Prepare();
  // Numbers of the widest rows for a token.
  int64_t WidestRow() const;
  Status Load(int layer_idx);

  // What the part makes of `from` [n_tokens, hidden_dim]. Errors are those of unpacking.
  Status Run(TokenRows* from, TokenRows* to);
  // From the gradient with respect to what it made of `from` that with respect to `from`.
  Status RunBack(TokenRows* from, const float* d_to, TokenRows* d_from);

 private:
  // An expert, or the MLP that every token goes through.
  struct Part {
    const Weight* in = nullptr;
    const Weight* down = nullptr;
    RowBias in_bias, down_bias;
    int64_t ffn_dim = 0;
  };
  // The rows that a part gets of `from`.
  struct Rows {
    const int64_t* tokens = nullptr;  // [n]
    int64_t n = 0;
    const float* from = nullptr;
  };

  const ExpertsConfig& config() const { return *weights_.config().experts; }
  const ExpertWeights& experts() const { return weights_.layer(layer_idx_).experts; }
  Part PartOf(int expert_idx) const;
  Part SharedPart() const;
  RowGate GateOf(const Part& part) const;
  void Route(TokenRows* from);
  // Leaves what the part makes of rows in out_, and what stands between its matrices in up_.
  Status RunPart(const Part& part, const Rows& rows, PassWays ways);
  // Adds to d_from; d_weights [n] get the gradients with respect to the weights of the rows.
  Status RunPartBack(const Part& part, const Rows& rows, const float* weights, const float* d_to,
                     double* d_weights, TokenRows* d_from);
  // Adds what flows through the weights of rows.
  void RouterBack(TokenRows* from, TokenRows* d_from);

  const ModelWeights& weights_;
  LayerProducts& products_;
  const ElementwiseKernels& kernels_;
  int layer_idx_ = -1;
  RoutedRows routed_;
  ExpertRows rows_;
  std::vector<float> row_weights_;   // of rows that are grouped by expert
  std::vector<double> d_weights_;    // likewise
  std::vector<double> d_gates_;      // of the shared MLP, by token
  std::vector<float> ones_;          // by token
  std::vector<int64_t> all_tokens_;  // 0, 1, ...
  MachineBuffer routed_by_;
  LayerMatrix in_, down_, router_;
  // Rows of a part, and gradients with respect to them.
  TokenRows x_, up_, gated_, out_, d_x_, d_up_, d_gated_, d_out_;
  TokenRows logits_, d_logits_;
};

}  // namespace kvlathe
