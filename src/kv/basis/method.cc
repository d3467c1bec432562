#include "kv/basis/method.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/basis/fdc.h"
#include "kv/basis/lathe.h"
#include "kv/basis/palu.h"
#include "kv/basis/zack.h"

namespace kvlathe {
namespace {

constexpr BasisMethod kMethods[] = {
    {"fdc", AnalyseFdc, AllocateFdc},
    {"zack", AnalyseZack, AllocateZack, nullptr, /*wants_text=*/true},
    {"lathe", AnalyseLathe, AllocateLathe, AllocateLatheBits, /*wants_text=*/true},
    {"palu", AnalysePalu, AllocatePalu, nullptr, /*wants_text=*/true},
};

// Columns [first, first + n_columns) of a square matrix.
std::vector<float> Columns(const std::vector<float>& square, int dim, int first, int n_columns) {
  std::vector<float> columns(int64_t{dim} * n_columns);
  for (int64_t row = 0; row < dim; ++row) {
    std::copy_n(square.begin() + row * dim + first, n_columns, columns.begin() + row * n_columns);
  }
  return columns;
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

std::span<const BasisMethod> BasisMethods() { return kMethods; }

const BasisMethod* FindBasisMethod(std::string_view name) {
  for (const BasisMethod& method : kMethods) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

ModelBasis CutBasis(const BasisAnalysis& analysis, const std::vector<HeadRanks>& ranks) {
  KVL_CHECK_EQ(ranks.size(), analysis.heads.size());
  const int head_dim = analysis.shape.head_dim;
  ModelBasis basis;
  basis.n_layers = analysis.shape.n_layers;
  basis.n_kv_heads = analysis.shape.n_kv_heads;
  basis.head_dim = head_dim;
  basis.heads.reserve(ranks.size());
  for (size_t h = 0; h < ranks.size(); ++h) {
    const HeadAnalysis& full = analysis.heads[h];
    const auto [rank_k, rank_v, k_bits, v_bits] = ranks[h];
    KVL_CHECK(rank_k >= 1 && rank_k <= head_dim && rank_v >= 1 && rank_v <= head_dim);
    HeadBasis head;
    head.rank_k = rank_k;
    head.rank_v = rank_v;
    if (full.key_way_back.empty()) {
      head.query_basis = Columns(full.query_basis, head_dim, 0, rank_k);
      const int n_cut = head_dim - rank_k;
      head.cut = {Columns(full.query_basis, head_dim, rank_k, n_cut),
                  Columns(full.key_basis, head_dim, rank_k, n_cut)};
    } else {
      const auto rows_k = full.key_way_back.begin();
      head.key_way_back.assign(rows_k, rows_k + int64_t{rank_k} * head_dim);
    }
    head.key_basis = Columns(full.key_basis, head_dim, 0, rank_k);
    head.value_basis = Columns(full.value_basis, head_dim, 0, rank_v);
    const auto rows = full.output_basis.begin();
    head.output_basis.assign(rows, rows + int64_t{rank_v} * head_dim);
    head.key_offset = full.key_offset;
    head.value_offset = full.value_offset;
    if (k_bits != BitSplit{}) {
      KVL_CHECK(k_bits.n_channels() == rank_k && v_bits.n_channels() == rank_v);
      head.k_bits = k_bits;
      head.v_bits = v_bits;
      DivideByDeviations(full, head_dim, &head);
    }
    basis.heads.push_back(std::move(head));
  }
  return basis;
}

}  // namespace kvlathe
