// A LayerPass takes one layer of the decoder over a whole window of tokens, forwards and back,
// without a cache. All is F32 but for products forwards, which the machine computes as it does for
// the model where that is faster (PackedProducts). It computes what the steps of a LayerProgram
// (model/layer_program.h) compute on an uncompressed cache.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"
#include "calibration/gradients/attention_gradient.h"
#include "calibration/gradients/feed_forward_pass.h"
#include "calibration/gradients/layer_products.h"
#include "calibration/gradients/model_norms.h"
#include "cpu/kernels/elementwise/elementwise.h"
#include "model/observer.h"
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
  // Of the projections, through all queries: the gradient with respect to W_K or W_V is the sum
  // over tokens of the gradient with respect to what it makes times what it reads.
  struct Projections {
    const float* inputs = nullptr;  // [n_tokens, hidden_dim]
    const float* k = nullptr;       // [n_tokens, n_kv_heads * head_dim], rows k_stride apart
    int64_t k_stride = 0;
    const float* v = nullptr;  // [n_tokens, n_kv_heads * head_dim]
  };
  Projections projections = {};
  // As k_post, k_pre and v, but through all queries; null where nobody shows them.
  struct ThroughAll {
    const float* k_post = nullptr;
    const float* k_pre = nullptr;
    const float* v = nullptr;
  };
  ThroughAll through_all = {};
};

// What layers compute forwards is kept for their way back as far as it has this many bytes.
inline constexpr int64_t kKeptLayerBytes = int64_t{1} << 30;

// Memory: the weights of a layer in F32, of experts those of one, about 4 * (hidden_dim + mlp_rows
// + heads) numbers for each token, and what is kept of layers.
class LayerPass {
 public:
  // `newest` (RowGradients) may be 0: all queries count. Of layers of which nothing is kept within
  // `kept_bytes`, RunBack computes anew what it needs; gradients have the same bits.
  LayerPass(ModelWeights* weights, ThreadPool* pool, Isa isa, int newest,
            int64_t kept_bytes = kKeptLayerBytes);

  // Makes room for windows of so many tokens. kResourceExhausted when there is none.
  Status Prepare(int64_t n_tokens);
  // Unpacks what `ways` needs of the weights of a layer, unless it is there; errors are those of
  // ModelWeights::FoldValues.
  Status Load(int layer_idx, PassWays ways);

  // Of the layer that was loaded: stream [n_tokens, hidden_dim] becomes what the layer makes of it.
  // Shows the rows of the window to `observer`, unless it is null. kResourceExhausted when there is
  // no memory for an expert in F32.
  Status Run(float* stream, QkvObserver* observer = nullptr);
  // Of a layer that was loaded for both ways, after Run of the same window: from what went into it
  // and the gradient with respect to what came out, which becomes the
  // gradient with respect to what went in. Returns what rows of the layer get. Errors as Run.
  StatusOr<RowGradients> RunBack(const float* stream, float* gradient);

 private:
  const ModelConfig& config() const { return weights_->config(); }
  const LayerWeights& layer() const { return weights_->layer(layer_idx_); }
  AttentionRows RowsThatAttend();

  void NormaliseTokens(const RowNorm& norm, const float* x, float* y);
  void NormaliseTokensBack(const RowNorm& norm, const float* x, const float* dy, bool accumulate,
                           float* dx);
  // What attention or the MLP reads of the stream: its norm, or the stream itself.
  void ReadStream(const NormWeights& norm, const float* stream, TokenRows* to);
  // Adds the gradient with respect to the stream.
  void ReadStreamBack(const NormWeights& norm, const float* stream, TokenRows* d_read,
                      float* gradient);
  // Of queries beside keys, each with its norm.
  void NormaliseHeads();
  void NormaliseHeadsBack();
  // What multiplies queries behind RoPE; the gradient is multiplied by the same.
  void WeighTurnedQueries(TokenRows* qk);
  // Turns the heads of rows that lie side by side to the positions of their tokens, in place; with
  // the sines that `Run` or, negated, the way back takes.
  void Turn(int n_heads, const float* sines, int64_t token_stride, float* rows);
  // Copies columns from `column` on, which lie dense then.
  void CopyColumns(TokenRows* from, int64_t column, TokenRows* to);
  void CopyKeys(TokenRows* qk, TokenRows* to) { CopyColumns(qk, qk->width() - to->width(), to); }
  QkvView View();
  void ZeroDecisions(int n_heads, int64_t token_stride, float* rows);
  // The channel of the first query of each KV head, where that decides; `again`: behind RoPE.
  void ZeroQueryChannel(bool again, TokenRows* qk);

  // The parts of Run, which leave what RunBack needs of them. Queries are copied where they are to
  // be shown.
  void RunAttention(const float* stream, bool shows_queries);
  void ProjectRows(bool shows_queries);
  void RunMlp(const float* from);
  void ReadForMlp(const float* from);
  // Adds `part`, normalised where the model does that, to the stream.
  void AddToStream(const NormWeights& norm, TokenRows* part, float* stream);
  // The parts of RunBack. `d_added` is the gradient with respect to what was added to the stream.
  Status RunMlpBack(const float* d_added);
  void RunAttentionBack(const float* d_added);
  void TurnRowsBack();
  Status PrepareKept();
  bool IsKept() const { return now_ != &kept_.back(); }
  const float* GradientOfPart(const NormWeights& norm, TokenRows* part, const float* d_added);

  ModelWeights* weights_;
  ThreadPool* pool_;
  const ElementwiseKernels* kernels_;
  int newest_;
  LayerProducts products_;
  ModelNorms norms_;
  FeedForwardPass feed_forward_;
  LayerRopes ropes_;
  std::vector<std::vector<float>> negated_sines_;  // of the tables, [n_tokens, rope_dim / 2]
  WindowAttention attention_;

  int layer_idx_ = -1;
  PassWays ways_ = PassWays::kForward;
  int64_t n_tokens_ = 0;
  std::vector<int> positions_;  // [n_tokens]
  struct {
    LayerMatrix qk, v, o;
  } matrices_;
  std::shared_ptr<const ValueProjection> values_;

  // What a layer computes on its way and its way back needs: heads of queries before those of keys
  // in qk, keys before RoPE, the stream behind attention.
  struct KeptRows {
    TokenRows raw_qk, qk, k_pre, v, attended, attention_out, middle, up;
  };
  std::vector<KeptRows>
      kept_;                 // of layers, as many as there is room for; the last one of all others
  KeptRows* now_ = nullptr;  // of the layer that was loaded
  int64_t kept_bytes_;
  // The rest of what it computes.
  struct {
    TokenRows normed, ffn_normed, mlp_out;
  } forward_;
  // Gradients with respect to it; `part` is what was added to the stream.
  struct {
    TokenRows normed, qk, v, attended, part, ffn_normed;
  } back_;
  // What RowGradients and QkvView point to.
  struct {
    TokenRows far_k_post, far_k_pre, far_v, all_k_post, all_k_pre, k_post_rows, q_post_rows,
        q_pre_rows;
  } shown_;
};

}  // namespace kvlathe
