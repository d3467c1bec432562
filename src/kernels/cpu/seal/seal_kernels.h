// The inner loops of sealing, for one block or one column at a time.
//
// A block of rows is taken as pairs of lines (block_layout.h): K as rank / 2 pairs of channels with
// 4 lines of 16 tokens each, V as kBlockSize / 2 pairs of tokens with rank / 16 lines of 16
// channels each. A line has 32 words: word 2 i + j is element i of member j of the pair. So "by
// pairs" is by channel of K and by token of V; all kernels know is the grid.
//
// Every set gives the same bits: arithmetic is in a fixed order and no product is fused with a sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/rows/block_layout.h"
#include "format/table_codes/code_table.h"
#include "tensor/dtype.h"

namespace kvlathe {

enum class Isa;

inline constexpr int kLineWords = 32;

// Pairs of a block and lines of each pair.
struct PairGrid {
  int n_pairs;
  int n_lines;
};
constexpr PairGrid KeyGrid(int rank) { return {rank / 2, kBlockSize / 16}; }
constexpr PairGrid ValueGrid(int rank) { return {kBlockSize / 2, rank / 16}; }

// The ends of a column: elements above `high` and below `low` belong to them, and the first
// `high_ties` and `low_ties` of those that equal them.
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
  const TableSteps* steps;  // of codes of a table; null: even steps
  // Scales and minima [groups][2 * n_pairs] by pairs, the lines of a pair in groups of `group`; or,
  // where they do not go by pairs (K per token), [groups][4 lines][32 words], pairs in groups of
  // `group`.
  bool by_pairs;
  int group;
  const float* scales;
  const float* minima;
  std::byte* codes;  // as packed_layout.h has them
  float* residual;   // x less the values of the codes, by lines; or null
};

// R, of n_blocks blocks by lines, times a few columns; everything [column][...].
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
  // n rows' elements, a multiple of 16, to F32. False when one is NaN or infinite.
  bool (*expand)(DType row_type, const std::byte* from, int64_t n, float* to);

  // Keys (integers in the order of the values; int16 for Bf16, int32 for F32) of n_pairs pairs of
  // elements, a multiple of 16: a column of the even and one of the odd elements.
  void (*gather_columns)(DType row_type, const std::byte* from, int64_t n_pairs, void* even,
                         void* odd);
  // The ends of a column of n keys with n_outliers elements each, 1 <= n_outliers <= n / 2.
  Tails (*find_tails)(DType row_type, const void* column, int64_t n, int64_t n_outliers);
  // Words of a block that are at least `high` or at most `low` of their member of the pair: a bit
  // each, masks [n_pairs][n_lines].
  void (*find_candidates)(const float* x, PairGrid grid, const float* high, const float* low,
                          uint32_t* masks);

  // Extends low and high [groups][2 * n_pairs] to a block, the lines of a pair in groups of
  // `group_lines`. NaN counts nothing.
  void (*extend_ranges)(const float* x, PairGrid grid, int group_lines, float* low, float* high);
  // The same per token of K: [groups][kBlockSize], pairs in groups of `group_pairs`.
  void (*extend_token_ranges)(const float* x, PairGrid grid, int group_pairs, float* low,
                              float* high);
  // n scales and minima, a multiple of 16, of the ranges: as F16 and what those are in F32. No
  // minima when is_symmetric (min_bits is not used; minima are what code 0 stands for at 4 bits,
  // else 0).
  void (*round_scales)(const float* low, const float* high, int n, int bits, bool is_symmetric,
                       std::byte* scale_bits, std::byte* min_bits, float* scales, float* minima);
  void (*quantise)(const QuantiseParams& params);
  // n elements, a multiple of 16, to codes of unit_codes.h as numbers, in place. What the codes
  // lose goes to `residual` if that is not null.
  void (*encode_units)(int bits, int64_t n, float* x, float* residual);

  // F16 with the largest one for what is beyond, and back; n is a multiple of 16.
  void (*to_f16)(const float* from, int64_t n, std::byte* to);
  void (*from_f16)(const std::byte* from, int64_t n, float* to);

  void (*multiply)(const ResidualParams& params);             // q = R p
  void (*multiply_transposed)(const ResidualParams& params);  // p = R^T q
  // Of n elements, a multiple of 16; dot sums in F64.
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
