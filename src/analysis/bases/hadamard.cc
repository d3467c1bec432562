#include "analysis/bases/hadamard.h"

#include <bit>
#include <cmath>
#include <vector>

#include "format/sphere_codes/sphere_codes.h"

namespace kvlathe {
namespace {

// x[0], x[stride], ..., n of them, times H / sqrt(n); n is a power of two.
void Transform(float* x, int64_t stride, int n) {
  for (int half = 1; half < n; half *= 2) {
    for (int i = 0; i < n; ++i) {
      if ((i & half) != 0) continue;
      float& a = x[i * stride];
      float& b = x[(i + half) * stride];
      const float sum = a + b;
      b = a - b;
      a = sum;
    }
  }
  const float scale = 1 / std::sqrt(static_cast<float>(n));
  for (int i = 0; i < n; ++i) x[i * stride] *= scale;
}

// The blocks of a vector of n numbers.
void TransformBlocks(float* x, int64_t stride, int n) {
  for (int begin = 0; begin < n;) {
    const int n_block = static_cast<int>(std::bit_floor(static_cast<unsigned>(n - begin)));
    Transform(x + begin * stride, stride, n_block);
    begin += n_block;
  }
}

// H M, of every n neighbouring rows of n_columns numbers.
void MixRows(int n, int n_columns, std::vector<float>* m) {
  const int64_t n_values = int64_t{n} * n_columns;
  for (int64_t first = 0; first < std::ssize(*m); first += n_values) {
    for (int j = 0; j < n_columns; ++j) TransformBlocks(&(*m)[first + j], n_columns, n);
  }
}

// M D, and D M: columns, or rows of n_columns numbers, whose channel has a negative sign change
// theirs.
void FlipColumns(int n, std::vector<float>* m) {
  for (int64_t i = 0; i < std::ssize(*m); ++i) {
    (*m)[i] *= SignOfChannel(SphereRotation::kOfRows, static_cast<int>(i % n));
  }
}
void FlipRows(int n, int n_columns, std::vector<float>* m) {
  for (int64_t i = 0; i < std::ssize(*m); ++i) {
    const auto row = static_cast<int>(i / n_columns % n);
    (*m)[i] *= SignOfChannel(SphereRotation::kOfRows, row);
  }
}

constexpr int kGgmlChannels = 64;

}  // namespace

void MixColumns(int n, std::vector<float>* m) {
  for (int64_t first = 0; first < std::ssize(*m); first += n) TransformBlocks(&(*m)[first], 1, n);
}

ModelBasis IdentityBasis(int n_layers, int n_kv_heads, int head_dim) {
  std::vector<float> identity(int64_t{head_dim} * head_dim, 0.0f);
  for (int i = 0; i < head_dim; ++i) identity[i * head_dim + i] = 1;
  HeadBasis head{head_dim, head_dim, identity, identity, identity, identity};
  head.cut.emplace();
  return {n_layers, n_kv_heads, head_dim,
          std::vector<HeadBasis>(int64_t{n_layers} * n_kv_heads, head)};
}

void MixChannels(int n_k, int n_v, int head_dim, HeadBasis* head) {
  MixColumns(n_k, &head->query_basis);
  MixRows(n_k, head_dim, &head->key_way_back);
  MixColumns(n_k, &head->key_basis);
  MixColumns(n_v, &head->value_basis);
  MixRows(n_v, head_dim, &head->output_basis);
}

void MixAsGgml(ModelBasis* basis) {
  for (HeadBasis& head : basis->heads) {
    int n_k = head.rank_k, n_v = head.rank_v;
    if (n_k % kGgmlChannels == 0) n_k &= -n_k;
    if (n_v % kGgmlChannels == 0) n_v = kGgmlChannels;
    MixChannels(n_k, n_v, basis->head_dim, &head);
  }
}

void FlipSigns(ModelBasis* basis) {
  for (HeadBasis& head : basis->heads) {
    FlipColumns(head.rank_k, &head.query_basis);
    FlipRows(head.rank_k, basis->head_dim, &head.key_way_back);
    FlipColumns(head.rank_k, &head.key_basis);
    FlipColumns(head.rank_v, &head.value_basis);
    FlipRows(head.rank_v, basis->head_dim, &head.output_basis);
  }
}

void MixByHadamard(ModelBasis* basis) {
  for (HeadBasis& head : basis->heads) {
    MixChannels(head.rank_k, head.rank_v, basis->head_dim, &head);
  }
}

}  // namespace kvlathe
