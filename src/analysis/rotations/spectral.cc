#include "analysis/rotations/spectral.h"

#include <bit>
#include <utility>

#include "analysis/bases/hadamard.h"
#include "analysis/bases/rotation.h"
#include "analysis/statistics/gram.h"
#include "analysis/statistics/spectrum.h"

namespace kvlathe {
namespace {

// The numbers below n in the order of their reversed bits.
std::vector<int> ReversedBits(int n) {
  const int n_bits = std::bit_width(static_cast<unsigned>(n - 1));
  std::vector<int> order;
  for (int i = 0; i < 1 << n_bits; ++i) {
    int reversed = 0;
    for (int b = 0; b < n_bits; ++b) reversed |= (i >> b & 1) << (n_bits - 1 - b);
    if (reversed < n) order.push_back(reversed);
  }
  return order;
}

// Where directions 0, 1, ... stand for H, whose blocks are the powers of two of n, the largest
// first: each goes to the block that is filled least, so that blocks have like shares of all.
std::vector<int> DealtToBlocks(int n) {
  struct Block {
    int first, size, n_filled;
  };
  std::vector<Block> blocks;
  for (int first = 0; first < n; first += blocks.back().size) {
    blocks.push_back(
        {first, static_cast<int>(std::bit_floor(static_cast<unsigned>(n - first))), 0});
  }
  std::vector<int> places;
  for (int i = 0; i < n; ++i) {
    Block* emptiest = blocks.data();
    for (Block& block : blocks) {
      // (2 n_filled + 1) / size of one against the other
      if ((2 * block.n_filled + 1) * emptiest->size < (2 * emptiest->n_filled + 1) * block.size) {
        emptiest = &block;
      }
    }
    places.push_back(emptiest->first + emptiest->n_filled++);
  }
  return places;
}

// U H P, [dim, dim].
std::vector<float> SpreadDirections(const Spectrum& spectrum, int dim) {
  const std::vector<int> places = DealtToBlocks(dim), order = ReversedBits(dim);
  std::vector<float> mixed(int64_t{dim} * dim), rotation(mixed.size());
  for (int row = 0; row < dim; ++row) {
    for (int i = 0; i < dim; ++i) {
      mixed[row * dim + places[i]] = static_cast<float>(spectrum.vectors[row * dim + dim - 1 - i]);
    }
  }
  MixColumns(dim, &mixed);
  for (int row = 0; row < dim; ++row) {
    for (int j = 0; j < dim; ++j) rotation[row * dim + j] = mixed[row * dim + dim - 1 - order[j]];
  }
  return rotation;
}

std::span<const float> MeanOf(const HeadMoments& rows, int64_t head_idx, int dim) {
  return std::span(rows.mean).subspan(head_idx * dim, dim);
}

bool LosesMeans(const BasisInputs& inputs) {
  const bool has_biases = !inputs.key_biases.empty() || !inputs.value_biases.empty();
  return inputs.options.is_centred && (has_biases || !inputs.options.centres_biases_alone);
}

// Attention weights sum to 1, so outputs lose the mean that values lose.
PairGrams GramsOf(const BasisInputs& inputs, int64_t head_idx) {
  const CalibrationStatistics& s = *inputs.statistics;
  const int dim = s.shape.head_dim, group = s.shape.gqa_group();
  HeadMoments outputs = {{}, {}};
  const std::span<const float> mean = MeanOf(s.outputs, head_idx, dim);
  outputs.mean.assign(mean.begin(), mean.end());
  const auto first = s.outputs.covariance.begin() + head_idx * dim * dim;
  outputs.covariance.assign(first, first + int64_t{dim} * dim);
  if (LosesMeans(inputs) && inputs.options.has_value_offsets) {
    const std::span<const float> lost = MeanOf(s.v, head_idx, dim);
    for (int i = 0; i < dim; ++i) outputs.mean[i] -= lost[i];
  }
  return {GramOfRows(inputs, RowKind::kQueries, head_idx), GramOf(outputs, 0, dim, group)};
}

HeadAnalysis MapsOf(const Spectrum& qk, const Spectrum& v, int dim) {
  HeadAnalysis head;
  head.query_basis = SpreadDirections(qk, dim);
  head.key_basis = head.query_basis;
  head.value_basis = SpreadDirections(v, dim);
  head.output_basis = TransposedSquare(head.value_basis, dim);
  return head;
}

}  // namespace

StatusOr<BasisAnalysis> AnalyseSpectral(const BasisInputs& inputs) {
  const CalibrationStatistics& s = *inputs.statistics;
  if (s.outputs.covariance.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "the statistics have no moments of what attention makes of values, which spectral "
                 "needs; write new ones with kvlathe calibrate --outputs");
  }
  const int dim = s.shape.head_dim, n_heads = s.shape.n_kv_heads;
  const int n_shared = inputs.options.shares_heads ? n_heads : 1;
  BasisAnalysis analysis;
  analysis.shape = s.shape;
  for (int64_t first = 0; first < int64_t{s.shape.n_layers} * n_heads; first += n_shared) {
    PairGrams mean = {std::vector<double>(int64_t{dim} * dim), std::vector<double>(dim * dim)};
    for (int64_t h = first; h < first + n_shared; ++h) {
      const PairGrams grams = GramsOf(inputs, h);
      KVL_RETURN_IF_ERROR(CheckFinite(s.shape, h, grams));
      mean.qk = WeightedSum(1, mean.qk, 1.0 / n_shared, grams.qk);
      mean.v = WeightedSum(1, mean.v, 1.0 / n_shared, grams.v);
    }
    const Spectrum qk = DecomposeGram(mean.qk, dim), v = DecomposeGram(mean.v, dim);
    for (int64_t h = first; h < first + n_shared; ++h) {
      HeadAnalysis& head = analysis.heads.emplace_back(MapsOf(qk, v, dim));
      if (!LosesMeans(inputs)) continue;
      const auto k_mean = MeanOf(s.k_post, h, dim), v_mean = MeanOf(s.v, h, dim);
      head.key_offset.assign(k_mean.begin(), k_mean.end());
      if (inputs.options.has_value_offsets) head.value_offset.assign(v_mean.begin(), v_mean.end());
    }
    analysis.spectra.insert(analysis.spectra.end(), n_shared,
                            HeadSpectra{qk.singular_values, v.singular_values});
  }
  return analysis;
}

StatusOr<RankAllocation> AllocateSpectral(const BasisAnalysis& analysis,
                                          const RankRequest& /*request*/) {
  const int dim = analysis.shape.head_dim;
  return RankAllocation{
      .ranks = std::vector<HeadRanks>(analysis.heads.size(), {.rank_k = dim, .rank_v = dim})};
}

}  // namespace kvlathe
