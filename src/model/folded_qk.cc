// The basis of keys in W_Q and W_K.
#include <Eigen/Core>

#include "model/stored/block_types.h"
#include "model/weights.h"

namespace kvlathe {
namespace {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const RowMatrix>;

// [head_dim, columns]: the map, and behind it what was cut off, if that is wanted.
RowMatrix Joined(const std::vector<float>& map, const std::vector<float>* cut, int head_dim) {
  const auto n_columns = [&](const std::vector<float>& m) { return std::ssize(m) / head_dim; };
  const int64_t n_first = n_columns(map), n_cut = cut == nullptr ? 0 : n_columns(*cut);
  RowMatrix joined(head_dim, n_first + n_cut);
  joined.leftCols(n_first) = ConstMap(map.data(), head_dim, n_first);
  if (n_cut > 0) joined.rightCols(n_cut) = ConstMap(cut->data(), head_dim, n_cut);
  return joined;
}

}  // namespace

StatusOr<QkProjection> ModelWeights::FoldQueriesAndKeys(int layer_idx, const ModelBasis& basis,
                                                        bool keeps_width, ThreadPool* pool) {
  const ModelConfig& c = config_;
  const int64_t d = c.head_dim, hidden = c.hidden_dim, n_all = c.n_heads + c.n_kv_heads;
  std::vector<RowMatrix> maps;           // of all query heads, then of all KV heads
  std::vector<int64_t> first_row = {0};  // of each in the product
  for (int64_t h = 0; h < n_all; ++h) {
    const bool is_key = h >= c.n_heads;
    const auto g = static_cast<int>(is_key ? h - c.n_heads : h / c.gqa_group());
    const HeadBasis& head = basis.head(layer_idx, g);
    const std::vector<float>* cut = nullptr;
    if (keeps_width) cut = is_key ? &head.cut->key : &head.cut->query;
    maps.push_back(Joined(is_key ? head.key_basis : head.query_basis, cut, c.head_dim));
    first_row.push_back(first_row.back() + maps.back().cols());
  }
  KVL_ASSIGN_OR_RETURN(const std::vector<float> w, Stacked(held_names_.qk(layer_idx)));
  std::vector<float> bias = layers_[layer_idx].qk_bias.values();
  if (bias.empty()) bias.resize(n_all * d);
  const int64_t n_rows = first_row.back();
  std::vector<float> folded(n_rows * hidden);
  QkProjection p;
  std::vector<float> folded_bias(n_rows);
  const WeightType type = FoldedType(held_names_.qk(layer_idx).front());
  KVL_ASSIGN_OR_RETURN(p.qk, Weight::Create(residents(), n_rows, hidden, type));
  pool->Run([&](int worker_id) {
    const Range heads = ShareOf(n_all, 1, worker_id, pool->n_workers());
    for (int64_t h = heads.begin; h < heads.end; ++h) {
      const RowMatrix& map = maps[h];
      Eigen::Map<RowMatrix>(&folded[first_row[h] * hidden], map.cols(), hidden).noalias() =
          map.transpose() * ConstMap(&w[h * d * hidden], d, hidden);
      RowMatrix row = ConstMap(&bias[h * d], 1, d);
      if (h >= c.n_heads) {
        const auto g = static_cast<int>(h - c.n_heads);
        const std::vector<float>& offset = basis.head(layer_idx, g).key_offset;
        if (!offset.empty()) row -= ConstMap(offset.data(), 1, d);
      }
      Eigen::Map<RowMatrix>(&folded_bias[first_row[h]], 1, map.cols()) = row * map;
    }
  });
  pool->Run([&](int worker_id) {
    const Range rows = ShareOf(n_rows, 64, worker_id, pool->n_workers());
    if (rows.begin == rows.end) return;
    WriteFloats(rows.begin, rows.end - rows.begin, &folded[rows.begin * hidden], &p.qk);
  });
  KVL_ASSIGN_OR_RETURN(p.bias, Upload(std::move(folded_bias)));
  return p;
}

}  // namespace kvlathe
