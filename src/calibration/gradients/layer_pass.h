// A LayerPass takes one layer of the decoder over a whole window of tokens in F32, forwards and
// back, without a cache. It computes what the steps of a LayerProgram (model/layer_program.h)
// compute on an uncompressed cache.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "calibration/gradients/attention_gradient.h"
#include "calibration/gradients/products.h"
#include "calibration/gradients/row_operators.h"
#include "cpu/kernels/elementwise/elementwise.h"
#include "model/rope.h"
#include "model/weights.h"

namespace kvlathe {

// Gradients of a window's log-likelihood with respect to the rows of one layer, through those
// queries alone that are `newest` positions or more behind a row. [n_tokens, n_kv_heads, head_dim]
// each; valid only while they are shown.
struct RowGradients {
  int layer_idx = 0;
  int64_t n_tokens = 0;
  const float* k_post = nullptr;  // keys after RoPE
  const float* k_pre = nullptr;   // keys before RoPE
  const float* v = nullptr;
  // The rows themselves.
  const float* k_post_rows = nullptr;
  const float* k_pre_rows = nullptr;
  const float* v_rows = nullptr;
};

// Memory: the weights of a layer in F32, and about 4 * (hidden_dim + mlp_rows + heads) numbers for
// each token. Nothing is kept from one layer to the next.
class LayerPass {
 public:
  // `newest` (RowGradients) may be 0: all queries count.
  LayerPass(ModelWeights* weights, ThreadPool* pool, const ElementwiseKernels* kernels, int newest);

  // Makes room for windows of so many tokens. kResourceExhausted when there is none.
  Status Prepare(int64_t n_tokens);
  // Unpacks the weights of a layer, unless they are there; errors are those of
  // ModelWeights::FoldValues.
  Status Load(int layer_idx);

  // Of the layer that was loaded: stream [n_tokens, hidden_dim] becomes what the layer makes of it.
  void Run(float* stream);
  // From what went into the layer and the gradient with respect to what came out, which becomes the
  // gradient with respect to what went in. Returns what rows of the layer get.
  RowGradients RunBack(const float* stream, float* gradient);

 private:
  struct Matrices {
    FloatMatrix qk, v, o, mlp_in, down;
  };
  // Rows of one kind, [n_tokens, width].
  class Rows {
   public:
    Status Prepare(int64_t n_tokens, int64_t width);
    float* data() { return values_.as<float>(); }
    int64_t width() const { return width_; }

   private:
    Buffer values_;
    int64_t width_ = 0;
  };
  const ModelConfig& config() const { return weights_->config(); }
  const LayerWeights& layer() const { return weights_->layer(layer_idx_); }
  RowNorm NormOf(const NormWeights& norm) const;
  RowNorm OutputNormOf(const NormWeights& norm) const;
  RowNorm HeadNormOf(const NormWeights& norm) const;
  AttentionRows RowsThatAttend();

  template <typename F>
  void ForTokens(const F& fn);  // fn(Range) on all workers
  void NormaliseTokens(const RowNorm& norm, const float* x, float* y);
  void NormaliseTokensBack(const RowNorm& norm, const float* x, const float* dy, bool accumulate,
                           float* dx);
  void MultiplyTokens(const FloatMatrix& w, const FloatTable& bias, Rows* from, Rows* to);
  void MultiplyTokensBack(const FloatMatrix& w, const float* from, Rows* to, bool accumulate);
  // Turns the heads of rows that lie side by side to the positions of their tokens, in place; with
  // the sines that `Run` or, negated, the way back takes.
  void Turn(int n_heads, const float* sines, int64_t token_stride, float* rows);
  // Copies the keys of qk, which lie dense then.
  void CopyKeys(Rows* to);
  void ZeroDecisions(int n_heads, int64_t token_stride, float* rows);

  // The parts of Run, which leave what RunBack needs of them.
  void RunAttention(const float* stream);
  void ProjectRows();
  void RunMlp(const float* from);
  // Adds `part`, normalised where the model does that, to the stream.
  void AddToStream(const NormWeights& norm, Rows* part, float* stream);
  // The parts of RunBack. `d_added` is the gradient with respect to what was added to the stream.
  void RunMlpBack(const float* d_added);
  void RunAttentionBack(const float* d_added);
  void TurnRowsBack();
  const float* GradientOfPart(const NormWeights& norm, Rows* part, const float* d_added);

  ModelWeights* weights_;
  ThreadPool* pool_;
  const ElementwiseKernels* kernels_;
  int newest_;
  LayerRopes ropes_;
  std::vector<std::vector<float>> negated_sines_;  // of the tables, [n_tokens, rope_dim / 2]
  WindowAttention attention_;

  int layer_idx_ = -1;
  int64_t n_tokens_ = 0;
  Matrices matrices_;
  std::shared_ptr<const ValueProjection> values_;

  // What a layer computes on its way: heads of queries before those of keys in qk.
  struct {
    Rows normed, raw_qk, qk, v, attended, attention_out, middle, ffn_normed, up, gated, mlp_out;
  } forward_;
  // Gradients with respect to it; `part` is what was added to the stream.
  struct {
    Rows normed, qk, v, attended, part, ffn_normed, up, gated;
  } back_;
  // What RowGradients point to.
  struct {
    Rows far_k_post, far_k_pre, far_v, k_post_rows, k_pre_rows;
  } shown_;
};

}  // namespace kvlathe
