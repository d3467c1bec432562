// The inner loops of sealing, for one block or one column at a time.
//
// The kernels take a block of rows as pairs of lines (block_layout.h). K has rank / 2 pairs of
// channels with 4 lines of 16 tokens each, and V has kBlockSize / 2 pairs of tokens with rank / 16
// lines of 16 channels each. A line has 32 words, of which word 2 i + j is element i of member j of
// the pair. So "by pairs" means by channel in K and by token in V, and kernels need to know nothing
// but the grid.
//
// Every set gives the same bits: arithmetic is in a fixed order, and no product is fused with a
// sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/rows/block_layout.h"
#include "format/split_bits/unit_codes.h"
#include "format/table_codes/code_table.h"
#include "tensor/dtype.h"

namespace kvlathe {

enum class Isa;

// A group of LinesPerGroup(bits) lines that gets trellis codes of 1 to 4 bits (unit_codes.h).
struct TrellisGroup {
  float* x;  // [lines][kLineWords], line_step from line to line; replaced by codes as numbers
  int64_t line_step;
  const float* weights;  // [lines][kLineWords], of squares of errors
  float* residual;       // gets what the codes lose, unless it is null
  int64_t residual_step;
};

inline constexpr int kLineWords = 32;
inline constexpr int kLossFactors = 6;

// How many pairs a block has, and how many lines each pair has.
struct PairGrid {
  int n_pairs;
  int n_lines;
};
constexpr PairGrid KeyGrid(int rank) { return {rank / 2, kBlockSize / 16}; }
constexpr PairGrid ValueGrid(int rank) { return {kBlockSize / 2, rank / 16}; }

// The ends of a column. They are the elements above `high` and the first `high_ties` of those that
// equal it, and likewise those below `low` and the first `low_ties` that equal it.
struct Tails {
  float high, low;
  int64_t high_ties, low_ties;
};

struct QuantiseParams {
  const float* x;  // a block, by lines
  PairGrid grid;
  bool is_key;
  int bits;
  bool is_symmetric;
  const TableSteps* steps;  // set for codes of a table, of 2 to 4 bits; null: even steps
  // Whether scales and minima go by pairs. Then they are [groups][2 * n_pairs], where a group is
  // `group` lines of a pair. Otherwise (K per token) they are [groups][4 lines][32 words], where a
  // group is `group` pairs.
  bool by_pairs;
  int group;
  const float* scales;
  const float* minima;
  std::byte* codes;  // as packed_layout.h has them
  float* residual;   // gets x less the values of the codes, by lines, unless it is null
};

// Products of R, which is n_blocks blocks by lines, with a few columns. All arrays of columns are
// [column][...].
struct ResidualParams {
  const float* r;
  PairGrid grid;
  bool is_key;
  int n_blocks;
  int n_columns;
  float* q;        // [n_columns][tokens]
  float* p;        // [n_columns][rank]
  float* doubled;  // scratch, [n_columns][2 * max(tokens, rank)]
};

struct SealKernels {
  // Converts n elements of rows, a multiple of 16, to F32. False when one is NaN or infinite.
  bool (*expand)(DType row_type, const std::byte* from, int64_t n, float* to);

  // Makes sorting keys of n_pairs pairs of elements, a multiple of 16: a column of those of the
  // even elements and one of those of the odd. Keys are integers in the order of the values, int16
  // for Bf16 and int32 for F32.
  void (*gather_columns)(DType row_type, const std::byte* from, int64_t n_pairs, void* even,
                         void* odd);
  // Finds the ends of a column of n keys, with n_outliers elements each,
  // 1 <= n_outliers <= n / 2.
  Tails (*find_tails)(DType row_type, const void* column, int64_t n, int64_t n_outliers);
  // Marks the words of a block that are at least `high` or at most `low` of their member of the
  // pair, with a bit each in masks [n_pairs][n_lines].
  void (*find_candidates)(const float* x, PairGrid grid, const float* high, const float* low,
                          uint32_t* masks);

  // Extends the ranges low and high [groups][2 * n_pairs] to the values of a block, where a group
  // is `group_lines` lines of a pair. NaN is passed over.
  void (*extend_ranges)(const float* x, PairGrid grid, int group_lines, float* low, float* high);
  // Does the same per token of K: ranges are [groups][kBlockSize], and a group is `group_pairs`
  // pairs.
  void (*extend_token_ranges)(const float* x, PairGrid grid, int group_pairs, float* low,
                              float* high);
  // Makes n scales and minima, a multiple of 16, of the ranges: as F16, and what those are in F32.
  // When is_symmetric there are no minima: min_bits is not used, and `minima` is what code 0 stands
  // for at 4 bits, and 0 at 8 bits.
  void (*round_scales)(const float* low, const float* high, int n, int bits, bool is_symmetric,
                       std::byte* scale_bits, std::byte* min_bits, float* scales, float* minima);
  void (*quantise)(const QuantiseParams& params);
  // Replaces n elements, a multiple of 16, by their codes of unit_codes.h as numbers. What the
  // codes lose is written to `residual` unless that is null.
  void (*encode_units)(int bits, StoredUnit unit, int64_t n, float* x, float* residual);
  // Makes codes of units of tokens, where HasTrellis(bits, StoredUnit::kToken).
  void (*encode_trellis)(int bits, const TrellisGroup& group);
  // Sets losses[i] to the sum of the squares of what these codes, in units of tokens, lose of n
  // elements times factors[i] > 0, for kLossFactors factors. n is a multiple of 16.
  void (*unit_losses)(int bits, int64_t n, const float* x, const float* factors, float* losses);

  // The variances, by n - 1, of a tile [n_pairs][n_words], where n_words is a multiple of 32: of
  // its n_words / 2 elements over the members of all pairs, each times its factor [2 * n_pairs],
  // and of its 2 * n_pairs members over the elements, each times its factor, which `twice`
  // [n_words] has twice.
  void (*element_variances)(const float* tile, int n_pairs, int n_words, const float* factors,
                            float* variances);
  void (*member_variances)(const float* tile, int n_pairs, int n_words, const float* twice,
                           float* variances);
  // Divides the elements of a block by numbers, which `twice` has twice.
  void (*divide_elements)(const float* twice, PairGrid grid, float* x);

  // Convert to F16, where numbers beyond F16 become its largest one, and back. n is a multiple of
  // 16.
  void (*to_f16)(const float* from, int64_t n, std::byte* to);
  void (*from_f16)(const std::byte* from, int64_t n, float* to);

  void (*multiply)(const ResidualParams& params);             // q = R p
  void (*multiply_transposed)(const ResidualParams& params);  // p = R^T q
  // These take n elements, a multiple of 16. The dot is summed in F64.
  double (*dot)(const float* a, const float* b, int64_t n);
  void (*add_scaled)(float factor, const float* x, int64_t n, float* y);  // y += factor x
  void (*scale)(float factor, int64_t n, float* y);
  float (*max_abs)(const float* x, int64_t n);
};

extern const SealKernels kSealScalar;
extern const SealKernels kSealAvx2;
extern const SealKernels kSealAvx512;

const SealKernels& GetSealKernels(Isa isa);

}  // namespace kvlathe
