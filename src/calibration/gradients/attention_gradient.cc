#include "calibration/gradients/attention_gradient.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "cpu/kernels/linear/dense_product.h"

namespace kvlathe {
namespace {

// Their scores against 1,024 keys are 512 KiB.
constexpr int64_t kQueryRows = 128;

int64_t BytesOf(int64_t n_floats) { return n_floats * static_cast<int64_t>(sizeof(float)); }

}  // namespace

Status WindowAttention::Prepare(const AttentionShape& shape) {
  shape_ = shape;
  constexpr const char* kWhat = "gradients of attention";
  const int64_t near_columns = std::min<int64_t>(kQueryRows + shape.newest, shape.n_tokens);
  for (Scratch& scratch : scratch_) {
    const int64_t n_bytes = BytesOf(kQueryRows * shape.n_tokens);
    KVL_RETURN_IF_ERROR(scratch.weights.EnsureSize(n_bytes, kWhat));
    KVL_RETURN_IF_ERROR(scratch.d_scores.EnsureSize(n_bytes, kWhat));
    if (shape.cap != 0) KVL_RETURN_IF_ERROR(scratch.slopes.EnsureSize(n_bytes, kWhat));
    KVL_RETURN_IF_ERROR(scratch.row.EnsureSize(BytesOf(shape.n_tokens + 1), kWhat));
    KVL_RETURN_IF_ERROR(scratch.near.EnsureSize(BytesOf(kQueryRows * near_columns), kWhat));
  }
  return head_gradients_.EnsureSize(
      BytesOf(int64_t{4} * shape.n_heads * shape.n_tokens * shape.head_dim), kWhat);
}

WindowAttention::Block WindowAttention::BlockFrom(int64_t begin) const {
  const int64_t end = std::min(begin + kQueryRows, shape_.n_tokens);
  const int64_t first = shape_.window > 0 ? begin - shape_.window + 1 : 0;
  return {begin, end, std::max<int64_t>(first, 0)};
}

void WindowAttention::WeighRow(int head_idx, std::span<float> scores, Scratch* scratch) const {
  const auto n = static_cast<int64_t>(scores.size());
  const float scale = shape_.cap != 0 ? 1 : shape_.scale;
  if (shape_.sink_logits == nullptr) return kernels_->softmax(scores.data(), n, scale);
  float* const row = scratch->row.as<float>();
  for (int64_t j = 0; j < n; ++j) row[j] = scale * scores[j];
  row[n] = shape_.sink_logits[head_idx];
  kernels_->softmax(row, n + 1, 1);
  std::copy_n(row, n, scores.data());
}

void WindowAttention::Weigh(const AttentionRows& rows, int head_idx, const Block& block,
                            Scratch* scratch) const {
  float* const weights = scratch->weights.as<float>();
  const int64_t d = shape_.head_dim, n_keys = block.n_keys();
  const int64_t kv_head_idx = head_idx / shape_.gqa_group();
  Multiply({.n_rows = block.n_rows(),
            .n_columns = n_keys,
            .n_inner = d,
            .a = rows.q + block.begin * rows.q_stride + head_idx * d,
            .a_stride = rows.q_stride,
            .b = rows.k + block.first_key * rows.k_stride + kv_head_idx * d,
            .b_stride = rows.k_stride,
            .is_b_transposed = true,
            .c = weights,
            .c_stride = n_keys});
  for (int64_t i = block.begin; i < block.end; ++i) {
    float* const row = weights + (i - block.begin) * n_keys;
    const int64_t first = shape_.window > 0 ? std::max<int64_t>(i - shape_.window + 1, 0) : 0;
    const std::span<float> seen(row + first - block.first_key, i + 1 - first);
    if (shape_.cap != 0) {
      float* const slopes =
          scratch->slopes.as<float>() + (i - block.begin) * n_keys + first - block.first_key;
      for (size_t j = 0; j < seen.size(); ++j) {
        const float t = std::tanh(seen[j] * shape_.scale / shape_.cap);
        seen[j] = shape_.cap * t;
        slopes[j] = 1 - t * t;
      }
    }
    std::fill(row, row + first - block.first_key, 0.0f);
    WeighRow(head_idx, seen, scratch);
    std::fill(row + i + 1 - block.first_key, row + n_keys, 0.0f);
  }
}

void WindowAttention::Run(const AttentionRows& rows, float* out) {
  const int64_t d = shape_.head_dim, stride = shape_.n_heads * d;
  std::atomic<int> next_head{0};
  pool_->Run([&](int worker_id) {
    Scratch* const scratch = &scratch_[worker_id];
    for (int h = next_head++; h < shape_.n_heads; h = next_head++) {
      for (int64_t begin = 0; begin < shape_.n_tokens; begin += kQueryRows) {
        const Block block = BlockFrom(begin);
        Weigh(rows, h, block, scratch);
        Multiply({.n_rows = block.n_rows(),
                  .n_columns = d,
                  .n_inner = block.n_keys(),
                  .a = scratch->weights.as<float>(),
                  .a_stride = block.n_keys(),
                  .b = rows.v + block.first_key * rows.v_stride + h / shape_.gqa_group() * d,
                  .b_stride = rows.v_stride,
                  .c = out + begin * stride + h * d,
                  .c_stride = stride});
      }
    }
  });
}

WindowAttention::HeadGradients WindowAttention::GradientsOfHead(int head_idx) {
  const int64_t n = shape_.n_tokens * shape_.head_dim;
  float* const first = head_gradients_.as<float>() + 4 * n * head_idx;
  return {first, first + n, first + 2 * n, first + 3 * n};
}

void WindowAttention::RunBack(const AttentionRows& rows, const float* out, const float* d_out,
                              const AttentionGradients& gradients) {
  std::atomic<int> next_head{0};
  pool_->Run([&](int worker_id) {
    for (int h = next_head++; h < shape_.n_heads; h = next_head++) {
      std::fill_n(GradientsOfHead(h).far_k, 4 * shape_.n_tokens * shape_.head_dim, 0.0f);
      for (int64_t begin = 0; begin < shape_.n_tokens; begin += kQueryRows) {
        RunBlockBack(rows, h, BlockFrom(begin), out, d_out, gradients, &scratch_[worker_id]);
      }
    }
  });
  SumHeads(gradients);
}

void WindowAttention::ScoresBack(const Block& block, const float* out, const float* d_out,
                                 Scratch* scratch) const {
  const int64_t d = shape_.head_dim, stride = shape_.n_heads * d, n_keys = block.n_keys();
  const float* const weights = scratch->weights.as<float>();
  float* const d_scores = scratch->d_scores.as<float>();
  for (int64_t i = 0; i < block.n_rows(); ++i) {
    // Through softmax: what moves all weights of a query alike is lost, but for what a sink takes,
    // which puts nothing out.
    float common = 0;
    for (int64_t c = 0; c < d; ++c) common += d_out[i * stride + c] * out[i * stride + c];
    float* const row = d_scores + i * n_keys;
    const float* const p = weights + i * n_keys;
    for (int64_t j = 0; j < n_keys; ++j) row[j] = shape_.scale * p[j] * (row[j] - common);
    if (shape_.cap == 0) continue;
    const float* const slopes = scratch->slopes.as<float>() + i * n_keys;
    for (int64_t j = 0; j < n_keys; ++j) row[j] = p[j] > 0 ? row[j] * slopes[j] : 0;
  }
}

void WindowAttention::RunBlockBack(const AttentionRows& rows, int head_idx, const Block& block,
                                   const float* out, const float* d_out,
                                   const AttentionGradients& gradients, Scratch* scratch) {
  const int64_t d = shape_.head_dim, n_keys = block.n_keys(), n_rows = block.n_rows();
  const int64_t stride = shape_.n_heads * d, column = head_idx * d;
  const int64_t kv_column = head_idx / shape_.gqa_group() * d;
  float* const weights = scratch->weights.as<float>();
  float* const d_scores = scratch->d_scores.as<float>();
  Weigh(rows, head_idx, block, scratch);
  const float* const d_out_rows = d_out + block.begin * stride + column;
  Multiply({.n_rows = n_rows,
            .n_columns = n_keys,
            .n_inner = d,
            .a = d_out_rows,
            .a_stride = stride,
            .b = rows.v + block.first_key * rows.v_stride + kv_column,
            .b_stride = rows.v_stride,
            .is_b_transposed = true,
            .c = d_scores,
            .c_stride = n_keys});
  ScoresBack(block, out + block.begin * stride + column, d_out_rows, scratch);
  Multiply({.n_rows = n_rows,
            .n_columns = d,
            .n_inner = n_keys,
            .a = d_scores,
            .a_stride = n_keys,
            .b = rows.k + block.first_key * rows.k_stride + kv_column,
            .b_stride = rows.k_stride,
            .c = gradients.q + block.begin * gradients.q_stride + column,
            .c_stride = gradients.q_stride});
  const HeadGradients head = GradientsOfHead(head_idx);
  float* const near = scratch->near.as<float>();
  AddByDistance(block, d_out_rows, stride, weights, near, head.far_v, head.near_v);
  AddByDistance(block, rows.q + block.begin * rows.q_stride + column, rows.q_stride, d_scores, near,
                head.far_k, head.near_k);
}

void WindowAttention::AddByDistance(const Block& block, const float* x, int64_t x_stride,
                                    float* weights, float* near, float* to_far,
                                    float* to_near) const {
  const int64_t d = shape_.head_dim, n_keys = block.n_keys(), newest = shape_.newest;
  const int64_t first_near = std::max(block.first_key, block.begin - newest + 1);
  const int64_t n_near = block.end - first_near;
  std::fill_n(near, block.n_rows() * n_near, 0.0f);
  for (int64_t i = block.begin; i < block.end; ++i) {
    const int64_t begin = std::max(first_near, i - newest + 1);
    float* const from = weights + (i - block.begin) * n_keys + begin - block.first_key;
    std::copy_n(from, i + 1 - begin, near + (i - block.begin) * n_near + begin - first_near);
    std::fill_n(from, i + 1 - begin, 0.0f);
  }
  DenseProduct product = {.n_rows = n_near,
                          .n_columns = d,
                          .n_inner = block.n_rows(),
                          .a = near,
                          .a_stride = n_near,
                          .is_a_transposed = true,
                          .b = x,
                          .b_stride = x_stride,
                          .c = to_near + first_near * d,
                          .c_stride = d,
                          .accumulate = true};
  if (newest > 0) Multiply(product);
  product.n_rows = block.end - newest - block.first_key;
  if (product.n_rows <= 0) return;
  product.a = weights;
  product.a_stride = n_keys;
  product.c = to_far + block.first_key * d;
  Multiply(product);
}

void WindowAttention::SumHeads(const AttentionGradients& gradients) {
  const int64_t d = shape_.head_dim, group = shape_.gqa_group(), width = shape_.n_kv_heads * d;
  const auto sum = [&](Range tokens, int64_t g, float* HeadGradients::*far,
                       float* HeadGradients::*near, float* to_far, float* to, int64_t to_stride) {
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
      float* const far_row = to_far + t * width + g * d;
      float* const row = to + t * to_stride + g * d;
      std::fill_n(far_row, d, 0.0f);
      std::fill_n(row, d, 0.0f);
      for (int64_t h = g * group; h < (g + 1) * group; ++h) {
        const HeadGradients head = GradientsOfHead(static_cast<int>(h));
        for (int64_t c = 0; c < d; ++c) {
          far_row[c] += (head.*far)[t * d + c];
          row[c] += (head.*near)[t * d + c];
        }
      }
      for (int64_t c = 0; c < d; ++c) row[c] += far_row[c];
    }
  };
  pool_->Run([&](int worker_id) {
    const Range tokens = ShareOf(shape_.n_tokens, 1, worker_id, pool_->n_workers());
    for (int64_t g = 0; g < shape_.n_kv_heads; ++g) {
      sum(tokens, g, &HeadGradients::far_k, &HeadGradients::near_k, gradients.far_k, gradients.k,
          gradients.k_stride);
      sum(tokens, g, &HeadGradients::far_v, &HeadGradients::near_v, gradients.far_v, gradients.v,
          gradients.v_stride);
    }
  });
}

}  // namespace kvlathe
