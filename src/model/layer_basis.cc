#include "model/layer_basis.h"

#include <Eigen/Dense>
#include <utility>

#include "base/threads.h"
#include "format/latent_map.h"

namespace kvlathe {
namespace {

// Rows of one matrix transposed: [n_rows, n_columns] -> [n_columns, n_rows].
std::vector<float> Transposed(const std::vector<float>& m, int n_rows, int n_columns) {
  std::vector<float> t(m.size());
  for (int i = 0; i < n_rows; ++i) {
    for (int j = 0; j < n_columns; ++j) t[j * n_rows + i] = m[i * n_columns + j];
  }
  return t;
}

// As weights for rows of x_type.
StatusOr<Weight> PackTransposed(const std::vector<float>& m, int n_rows, int n_columns,
                                DType x_type, Residents* residents) {
  KVL_ASSIGN_OR_RETURN(Weight packed,
                       Weight::Create(residents, n_columns, n_rows, DenseWeights(x_type)));
  const std::vector<float> t = Transposed(m, n_rows, n_columns);
  packed.WriteRows(0, n_columns, DType::kF32, t.data(), n_rows);
  return packed;
}

// The pseudo-inverse of B [rank, head_dim] in Bf16, as weights for rows of outputs [head_dim].
// Directions in which B is 10^4 times smaller than in others carry nothing that its rounding
// leaves.
StatusOr<Weight> PackInverse(const std::vector<float>& b, int64_t rank, int64_t head_dim,
                             Residents* residents) {
  Eigen::MatrixXd rounded(rank, head_dim);
  for (int64_t i = 0; i < rank * head_dim; ++i) {
    rounded(i / head_dim, i % head_dim) = ToFloat(ToBf16(b[i]));
  }
  Eigen::CompleteOrthogonalDecomposition<Eigen::MatrixXd> decomposition;
  decomposition.setThreshold(1e-4);
  decomposition.compute(rounded);
  // [rank, head_dim] row-major, which is the transposed inverse.
  const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> inverse =
      decomposition.pseudoInverse().transpose().cast<float>();
  KVL_ASSIGN_OR_RETURN(Weight packed, Weight::Create(residents, rank, head_dim, WeightType::kF32));
  packed.WriteRows(0, rank, DType::kF32, inverse.data(), head_dim);
  return packed;
}

// [n_rows, n_columns] -> the columns of it.
std::vector<float> Columns(const std::vector<float>& m, int n_columns, Range columns) {
  std::vector<float> part;
  for (auto row = m.begin(); row != m.end(); row += n_columns) {
    part.insert(part.end(), row + columns.begin, row + columns.end);
  }
  return part;
}

// Those of each class of entries, and that of blocks that wait to be sealed in codes of 8 bits.
std::vector<BitSplit> SealedKeySplits(const HeadBasis& head) {
  if (head.bits.middle.k.n_channels() == 0) return {};
  static_assert(kSplitBits[0] == 8);
  return {head.bits.middle.k, head.bits.most.k, head.bits.least.k, {.channels = {head.rank_k}}};
}

// Whether the blocks of all heads of a layer hold values in all columns of their maps, as rows that
// are rebuilt from a joint map take them.
bool HoldsAllValues(const ModelBasis& basis, int layer_idx) {
  for (int g = 0; g < basis.n_kv_heads; ++g) {
    const HeadBasis& head = basis.head(layer_idx, g);
    if (head.stored_rank_v > 0 && head.stored_rank_v < head.rank_v) return false;
  }
  return true;
}

bool IsIdentity(const std::vector<float>& m, int dim) {
  for (int i = 0; i < dim * dim; ++i) {
    if (m[i] != (i % (dim + 1) == 0 ? 1.0f : 0.0f)) return false;
  }
  return true;
}

}  // namespace

bool MapsValues(const ModelBasis& basis, int layer_idx) {
  if (KeysPerMap(basis.keys) > 1 || JoinsValues(basis.keys)) return true;
  for (int g = 0; g < basis.n_kv_heads; ++g) {
    const HeadBasis& head = basis.head(layer_idx, g);
    if (!head.value_offset.empty() || head.rank_v != basis.head_dim ||
        !IsIdentity(head.value_basis, basis.head_dim) ||
        !IsIdentity(head.output_basis, basis.head_dim)) {
      return true;
    }
  }
  return false;
}

StatusOr<LayerBasis> PackLayerBasis(const ModelBasis& basis, int layer_idx,
                                    const NumberTypes& types, Machine* machine, bool has_weights) {
  Residents* const residents = &machine->residents();
  LayerBasis layer;
  const int d = basis.head_dim, n_sharing = HeadsPerLatent(basis.keys),
            n_joined = HeadsPerMap(basis.keys);
  const int of_model = d / n_joined;  // head_dim there
  const bool is_rebuilt = CanBeRebuilt(basis.keys) && types.rows == DType::kBf16 &&
                          types.activations == DType::kBf16 &&
                          (n_joined == 1 || HoldsAllValues(basis, layer_idx));
  const bool maps_values = !has_weights && MapsValues(basis, layer_idx);
  for (int g = 0; g < basis.n_kv_heads; ++g) {
    const HeadBasis& head = basis.head(layer_idx, g);
    if (maps_values) {
      KVL_ASSIGN_OR_RETURN(Weight value, PackTransposed(head.value_basis, n_sharing * d,
                                                        head.rank_v, types.rows, residents));
      layer.value.push_back(std::move(value));
    }
    if (TurnWhenRead(basis.keys)) {
      LatentMap map(head.key_way_back, head.key_offset, d, of_model, types.rows,
                    SealedKeySplits(head));
      const int64_t n_bytes = map.n_bytes();
      layer.latents.push_back({{residents, residents->AddLatentMap(std::move(map))}, d, n_bytes});
    }
    for (int i = 0; i < n_joined; ++i) {
      if (FactsOf(basis.keys).maps_queries) {
        const auto first = head.query_basis.begin() + int64_t{i} * of_model * head.rank_k;
        const std::vector<float> rows(first, first + int64_t{of_model} * head.rank_k);
        KVL_ASSIGN_OR_RETURN(Weight query,
                             PackTransposed(rows, of_model, head.rank_k, types.rows, residents));
        layer.query.push_back(std::move(query));
        if (is_rebuilt) {
          KVL_ASSIGN_OR_RETURN(Weight key, Weight::Create(residents, of_model, head.rank_k,
                                                          DenseWeights(types.rows)));
          key.WriteRows(0, of_model, DType::kF32, rows.data(), head.rank_k);
          layer.rebuilt_key.push_back(std::move(key));
        }
      }
      if (n_sharing == 1 && n_joined == 1 && !JoinsValues(basis.keys) && !maps_values) continue;
      const std::vector<float> columns =
          Columns(head.output_basis, d, {int64_t{i} * of_model, int64_t{i + 1} * of_model});
      KVL_ASSIGN_OR_RETURN(Weight output, PackTransposed(columns, n_sharing * head.rank_v, of_model,
                                                         types.activations, residents));
      layer.output.push_back(std::move(output));
      if (!is_rebuilt || n_joined == 1) continue;
      KVL_ASSIGN_OR_RETURN(Weight inverse, PackInverse(columns, head.rank_v, of_model, residents));
      layer.rebuilt_output.push_back(std::move(inverse));
    }
    Weight key;  // one copy serves both where the method uses one rotation
    if (n_joined > 1 || head.key_basis != head.query_basis) {
      KVL_ASSIGN_OR_RETURN(
          key, PackTransposed(head.key_basis, n_sharing * d, head.rank_k, types.rows, residents));
    }
    layer.key.push_back(std::move(key));
    KVL_ASSIGN_OR_RETURN(FloatTable offset,
                         FloatTable::Make(&machine->memory(), head.key_offset, "offsets of keys"));
    layer.key_offset.push_back(std::move(offset));
    if (TurningPairs(basis.keys) == 0) continue;
    KVL_ASSIGN_OR_RETURN(FloatTable mean,
                         FloatTable::Make(&machine->memory(), head.turning_mean, "means of keys"));
    layer.turning_mean.push_back(std::move(mean));
  }
  return layer;
}

int64_t LayerBasis::n_bytes() const {
  int64_t n_bytes = 0;
  for (const Weight& m : query) n_bytes += m.n_bytes();
  for (const Weight& m : key) n_bytes += m.n_bytes();
  for (const FloatTable& o : key_offset) n_bytes += o.n_bytes();
  for (const FloatTable& m : turning_mean) n_bytes += m.n_bytes();
  for (const LatentsOfHead& head : latents) n_bytes += head.n_bytes;
  for (const Weight& m : output) n_bytes += m.n_bytes();
  for (const Weight& m : value) n_bytes += m.n_bytes();
  for (const Weight& m : rebuilt_key) n_bytes += m.n_bytes();
  for (const Weight& m : rebuilt_output) n_bytes += m.n_bytes();
  return n_bytes;
}

}  // namespace kvlathe
