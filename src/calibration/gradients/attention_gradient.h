// This is attention over a whole window of tokens in F32, with its gradients and without a cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "cpu/kernels/elementwise/elementwise.h"
#include "tensor/buffer.h"

namespace kvlathe {

struct AttentionShape {
  int64_t n_tokens = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int window = 0;  // a query sees the last `window` positions, its own counted; 0: all
  // Queries fewer positions behind a row are near to it: positions i - newest < j <= i are near to
  // the query at i.
  int newest = 0;
  // Queries times keys are multiplied by it, and where cap is not 0 become cap tanh(score / cap).
  float scale = 1;
  float cap = 0;
  // [n_heads]: what counts in the sum that a head's weights are divided by; null: nothing.
  const float* sink_logits = nullptr;

  int gqa_group() const { return n_heads / n_kv_heads; }
};

// Rows that attend, those of a token side by side by head; strides are between tokens. Queries and
// keys have been turned to their positions.
struct AttentionRows {
  const float* q = nullptr;  // [n_tokens, n_heads, head_dim]
  int64_t q_stride = 0;
  const float* k = nullptr;  // [n_tokens, n_kv_heads, head_dim]
  int64_t k_stride = 0;
  const float* v = nullptr;  // [n_tokens, n_kv_heads, head_dim]
  int64_t v_stride = 0;
};

struct AttentionGradients {
  float* q = nullptr;  // [n_tokens, n_heads, head_dim]
  int64_t q_stride = 0;
  float* k = nullptr;  // [n_tokens, n_kv_heads, head_dim]
  int64_t k_stride = 0;
  float* v = nullptr;  // [n_tokens, n_kv_heads, head_dim]
  int64_t v_stride = 0;
  // Of the same rows, but only what queries that are not near to them read; dense.
  float* far_k = nullptr;
  float* far_v = nullptr;
};

// Scores of a head go through memory by blocks of query rows, so that it grows with the tokens and
// not with their square. Not for concurrent use.
class WindowAttention {
 public:
  WindowAttention(ThreadPool* pool, const ElementwiseKernels* kernels)
      : pool_(pool), kernels_(kernels), scratch_(pool->n_workers()) {}

  // Returns kResourceExhausted when there is no memory for the shape; call it before the others.
  Status Prepare(const AttentionShape& shape);

  // out [n_tokens, n_heads * head_dim] dense.
  void Run(const AttentionRows& rows, float* out);

  // From the output and the gradient d_out with respect to it, both like `out` of Run.
  void RunBack(const AttentionRows& rows, const float* out, const float* d_out,
               const AttentionGradients& gradients);

 private:
  struct Scratch {  // of a worker
    // [query rows of a block, n_tokens], `near` only near columns. `slopes` are of the cap.
    Buffer weights, d_scores, near, slopes;
    Buffer row;  // [n_tokens + 1]: scores and a sink's logit
  };
  // Rows of queries, and the columns of all keys that one of them sees.
  struct Block {
    int64_t begin, end;
    int64_t first_key;

    int64_t n_rows() const { return end - begin; }
    int64_t n_keys() const { return end - first_key; }
  };
  // Gradients of keys and values as the queries of one head make them.
  struct HeadGradients {
    float *far_k, *near_k, *far_v, *near_v;  // [n_tokens, head_dim] each
  };

  Block BlockFrom(int64_t begin) const;
  // Attention weights of a block, [n_rows, n_keys], into scratch: 0 where a query does not see a
  // key.
  void Weigh(const AttentionRows& rows, int head_idx, const Block& block, Scratch* scratch) const;
  // Scores of a query become its weights.
  void WeighRow(int head_idx, std::span<float> scores, Scratch* scratch) const;
  // Gradients with respect to weights become those with respect to products of queries and keys.
  void ScoresBack(const Block& block, const float* out, const float* d_out, Scratch* scratch) const;
  HeadGradients GradientsOfHead(int head_idx);
  void RunBlockBack(const AttentionRows& rows, int head_idx, const Block& block, const float* out,
                    const float* d_out, const AttentionGradients& gradients, Scratch* scratch);
  // Adds weights^T x to the gradients of the rows that a block sees: to those of its near columns
  // what is near to it, which leaves `weights`, and the rest to the others. x: [n_rows, head_dim],
  // its rows x_stride apart.
  void AddByDistance(const Block& block, const float* x, int64_t x_stride, float* weights,
                     float* near, float* to_far, float* to_near) const;
  void SumHeads(const AttentionGradients& gradients);

  ThreadPool* pool_;
  const ElementwiseKernels* kernels_;
  AttentionShape shape_;
  std::vector<Scratch> scratch_;
  Buffer head_gradients_;  // [n_heads, 4, n_tokens, head_dim]
};

}  // namespace kvlathe
