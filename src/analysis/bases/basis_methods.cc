#include "analysis/bases/basis_methods.h"

#include <algorithm>
#include <utility>

#include "analysis/bases/hadamard.h"
#include "analysis/ranks/bit_ladder.h"
#include "base/check.h"

namespace kvlathe {
namespace {

// Columns [first, first + n_columns) of the first n_rows rows of a matrix of `dim` columns.
std::vector<float> Part(const std::vector<float>& matrix, int dim, int64_t n_rows, int first,
                        int n_columns) {
  std::vector<float> part(n_rows * n_columns);
  for (int64_t row = 0; row < n_rows; ++row) {
    std::copy_n(matrix.begin() + row * dim + first, n_columns, part.begin() + row * n_columns);
  }
  return part;
}

std::vector<float> Columns(const std::vector<float>& matrix, int dim, int first, int n_columns) {
  return Part(matrix, dim, std::ssize(matrix) / dim, first, n_columns);
}

// Of the offsets of several heads, those of head `idx`.
std::vector<float> OffsetOf(const std::vector<float>& offsets, int idx, int head_dim) {
  if (offsets.empty()) return {};
  const auto first = offsets.begin() + int64_t{idx} * head_dim;
  return {first, first + head_dim};
}

// Columns of a map [dim, n_columns] times factors.
void ScaleColumns(std::span<const float> factors, int n_columns, std::vector<float>* map) {
  for (size_t i = 0; i < map->size(); ++i) (*map)[i] *= factors[i % n_columns];
}

// Rows of a map [n_rows, n_columns] times factors.
void ScaleRows(std::span<const float> factors, int n_columns, std::vector<float>* map) {
  for (size_t i = 0; i < map->size(); ++i) (*map)[i] *= factors[i / n_columns];
}

std::vector<float> Inverses(std::vector<float> numbers) {
  for (float& x : numbers) x = 1 / x;
  return numbers;
}

// Gives stored channels unit variance, and back.
void DivideByDeviations(const HeadAnalysis& full, int head_dim, HeadBasis* head) {
  ScaleColumns(full.key_deviations, head->rank_k, &head->query_basis);
  ScaleRows(full.key_deviations, head_dim, &head->key_way_back);
  ScaleColumns(Inverses(full.key_deviations), head->rank_k, &head->key_basis);
  ScaleColumns(Inverses(full.value_deviations), head->rank_v, &head->value_basis);
  ScaleRows(full.value_deviations, head_dim, &head->output_basis);
}

}  // namespace

ModelBasis CutBasis(const BasisAnalysis& analysis, const std::vector<HeadRanks>& ranks) {
  const int n = HeadsPerLatent(analysis.keys);
  KVL_CHECK_EQ(ranks.size(), analysis.heads.size() * n);
  const int head_dim = analysis.shape.head_dim;
  const int n_channels = JoinsValues(analysis.keys) ? 2 * head_dim : head_dim;  // of rows, uncut
  const int width = n * n_channels, width_back = n * head_dim;
  ModelBasis basis;
  basis.n_layers = analysis.shape.n_layers;
  basis.n_kv_heads = analysis.shape.n_kv_heads;
  basis.head_dim = head_dim;
  basis.keys = analysis.keys;
  basis.heads.reserve(ranks.size());
  for (size_t h = 0; h < ranks.size(); ++h) {
    const HeadAnalysis& full = analysis.heads[h / n];
    const int slice = static_cast<int>(h % n);
    const auto& [rank_k, rank_v, bits] = ranks[h];
    KVL_CHECK(rank_k >= 1 && rank_k <= n_channels && rank_v >= 1 && rank_v <= n_channels);
    KVL_CHECK(rank_k == ranks[h - slice].rank_k && rank_v == ranks[h - slice].rank_v);
    HeadBasis head;
    const int made_v = analysis.keeps_sink_values ? n_channels : rank_v;
    head.rank_k = rank_k;
    head.rank_v = made_v;
    if (analysis.keeps_sink_values) head.stored_rank_v = rank_v;
    if (!TurnWhenRead(analysis.keys)) {
      head.query_basis = Columns(full.query_basis, n_channels, 0, rank_k);
      const int n_cut = n_channels - rank_k;
      head.cut = {Columns(full.query_basis, n_channels, rank_k, n_cut),
                  Columns(full.key_basis, n_channels, rank_k, n_cut)};
    } else {
      head.key_way_back =
          Part(full.key_way_back, width_back, n * rank_k, slice * head_dim, head_dim);
    }
    head.key_basis = Columns(full.key_basis, width, slice * rank_k, rank_k);
    head.value_basis = Columns(full.value_basis, width, slice * made_v, made_v);
    head.output_basis = Part(full.output_basis, width_back, n * made_v, slice * head_dim, head_dim);
    head.key_offset = OffsetOf(full.key_offset, slice, head_dim);
    head.turning_mean = OffsetOf(full.turning_mean, slice, head_dim);
    head.value_offset = OffsetOf(full.value_offset, slice, head_dim);
    if (bits.middle.k != BitSplit{}) {
      const EntryBits& most = bits.most == EntryBits() ? bits.middle : bits.most;
      KVL_CHECK(most.k.n_channels() <= rank_k && most.v.n_channels() <= rank_v);
      head.bits = bits;
      MixChannels(kBitGroup, kBitGroup, head_dim, &head);
      DivideByDeviations(full, head_dim, &head);
    }
    basis.heads.push_back(std::move(head));
  }
  return basis;
}

}  // namespace kvlathe
