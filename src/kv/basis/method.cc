#include "kv/basis/method.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/basis/fdc.h"
#include "kv/basis/lathe.h"
#include "kv/basis/zack.h"

namespace kvlathe {
namespace {

constexpr BasisMethod kMethods[] = {
    {"fdc", AnalyseFdc, AllocateFdc},
    {"zack", AnalyseZack, AllocateZack},
    {"lathe", AnalyseLathe, AllocateLathe},
};

std::vector<float> FirstColumns(const std::vector<float>& square, int dim, int n_columns) {
  std::vector<float> columns(int64_t{dim} * n_columns);
  for (int64_t row = 0; row < dim; ++row) {
    std::copy_n(&square[row * dim], n_columns, &columns[row * n_columns]);
  }
  return columns;
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
    const auto [rank_k, rank_v] = ranks[h];
    KVL_CHECK(rank_k >= 1 && rank_k <= head_dim && rank_v >= 1 && rank_v <= head_dim);
    HeadBasis head;
    head.rank_k = rank_k;
    head.rank_v = rank_v;
    head.query_basis = FirstColumns(full.query_basis, head_dim, rank_k);
    head.key_basis = FirstColumns(full.key_basis, head_dim, rank_k);
    head.value_basis = FirstColumns(full.value_basis, head_dim, rank_v);
    const auto rows = full.output_basis.begin();
    head.output_basis.assign(rows, rows + int64_t{rank_v} * head_dim);
    head.key_offset = full.key_offset;
    head.value_offset = full.value_offset;
    basis.heads.push_back(std::move(head));
  }
  return basis;
}

}  // namespace kvlathe
