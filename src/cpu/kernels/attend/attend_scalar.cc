// Portable attention: float accumulation, online softmax per block, probabilities kept in float.
// The loops over the tokens of a block and over rank_v are plain so that a compiler vectorises
// them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "cpu/kernels/attend/attend_isa.h"
#include "cpu/kernels/attend/attend_packed.h"

namespace kvlathe {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Moves a row's partial result to the maximum `row_max_new` >= *row_max.
void RaiseMax(float row_max_new, int rank_v, float* row_max, float* row_sum, float* o) {
  if (row_max_new <= *row_max) return;
  const float shrink = std::exp(*row_max - row_max_new);  // 0 for the first entries: -inf
  *row_max = row_max_new;
  *row_sum *= shrink;
  for (int r = 0; r < rank_v; ++r) o[r] *= shrink;
}

template <typename Q, typename T>
void ScoreBlock(const Q* q, const T* k, int rank_k, int n_valid, float* scores) {
  std::fill_n(scores, n_valid, 0.0f);
  for (int pair = 0; pair < rank_k / 2; ++pair) {
    const float even = ToFloat(q[2 * pair]), odd = ToFloat(q[2 * pair + 1]);
    const T* line = k + pair * kBlockSize * 2;
    for (int t = 0; t < n_valid; ++t) {
      scores[t] += even * ToFloat(line[2 * t]) + odd * ToFloat(line[2 * t + 1]);
    }
  }
}

// Adds what the mean of turned keys adds to the scores of a row and a block, whose weights these
// are.
void AddTurningMean(const TurningMean& mean, const float* weights, int n_valid, float* scores) {
  float even[kHalfBlock] = {}, odd[kHalfBlock] = {};
  for (int i = 0; i < mean.n_pairs; ++i) {
    const float of_sin = weights[i], of_cos = weights[mean.n_pairs + i];
    for (int d = 0; d < kHalfBlock; ++d) {
      even[d] += of_cos * mean.cos[i * kHalfBlock + d];
      odd[d] += of_sin * mean.sin[i * kHalfBlock + d];
    }
  }
  for (int t = 0; t < n_valid; ++t) {
    const int d = t < kHalfBlock ? kHalfBlock - 1 - t : t - kHalfBlock;
    scores[t] += t < kHalfBlock ? even[d] - odd[d] : even[d] + odd[d];
  }
}

// q k, capped (AttendParams::score_cap) and not scaled yet.
template <typename Params>
float CappedScore(const Params& p, int row, float score) {
  const float offset = p.score_offsets == nullptr ? 0 : p.score_offsets[row];
  return p.score_cap / p.sm_scale * std::tanh((score + offset) * (p.sm_scale / p.score_cap));
}

struct Tokens {  // of a block
  int begin, end;
};

template <typename T>
void AddValues(const float* probs, const T* v, int rank_v, Tokens tokens, float* o) {
  for (int t = tokens.begin; t < tokens.end; ++t) {
    const T* line = v + (t / 2) * rank_v * 2 + t % 2;
    for (int r = 0; r < rank_v; ++r) o[r] += probs[t] * ToFloat(line[2 * r]);
  }
}

// All rows (of Q) against the block that begins with entry `begin` and holds K and V in T.
template <typename Q, typename T>
void AttendBlock(const AttendParams& p, int begin, const T* k) {
  const int rank_k = p.shape.rank_k, rank_v = p.shape.rank_v;
  const T* v = k + kBlockSize * rank_k;
  for (int row = 0; row < p.n_rows; ++row) {
    const int end = p.first_visible + row / p.gqa_group;
    const int n_valid = std::min({kBlockSize, p.kv_end - begin, end - begin});
    const int first = std::max(0, end - p.window - begin);  // earlier ones left the window
    if (first >= n_valid) continue;
    float scores[kBlockSize];
    const Q* const q = static_cast<const Q*>(p.q) + row * p.q_stride;
    ScoreBlock(q, k, rank_k, n_valid, scores);
    if (p.mean.n_pairs > 0) {
      const int64_t block = (begin - p.kv_begin) / kBlockSize;
      AddTurningMean(p.mean, p.mean.weights + (block * p.n_rows + row) * kMeanWeights, n_valid,
                     scores);
    }
    for (int t = 0; p.score_cap > 0 && t < n_valid; ++t) {
      scores[t] = CappedScore(p, row, scores[t]);
    }
    if (p.scores != nullptr) {
      std::copy_n(scores, n_valid, p.scores + row * p.scores_stride + begin - p.kv_begin);
    }
    for (int t = 0; t < n_valid; ++t) scores[t] *= p.sm_scale;
    float* o = p.o + row * p.o_stride;
    RaiseMax(*std::max_element(scores + first, scores + n_valid), rank_v, &p.row_max[row],
             &p.row_sum[row], o);
    for (int t = first; t < n_valid; ++t) {
      scores[t] = std::exp(scores[t] - p.row_max[row]);
      p.row_sum[row] += scores[t];
    }
    AddValues(scores, v, rank_v, {first, n_valid}, o);
  }
}

template <typename T>
void Attend(const AttendParams& p, std::byte* scratch) {
  const int rank_v = p.shape.rank_v;
  KVL_DCHECK(p.shape.rank_k % 16 == 0 && rank_v % 16 == 0 && p.kv_begin % kBlockSize == 0);
  KVL_DCHECK(p.shape.row_type == kDTypeOf<T>);
  for (int row = 0; row < p.n_rows && !p.continues; ++row) {
    float* o = p.o + row * p.o_stride;
    std::fill_n(o, rank_v, 0.0f);
    p.row_max[row] = kMinusInf;
    p.row_sum[row] = 0;
  }
  if (p.n_rows == 0) return;
  // Windows of rows in turn overlap, so every block from the first to the last is seen by one.
  const int seen_begin = std::max(0, p.first_visible - p.window) / kBlockSize * kBlockSize;
  const int seen_end = p.first_visible + (p.n_rows - 1) / p.gqa_group;
  int run_idx = 0;
  const PackedRun* run = nullptr;
  PackedRunView view;
  for (int begin = std::max(p.kv_begin, seen_begin); begin < std::min(p.kv_end, seen_end);
       begin += kBlockSize) {
    const int block = begin / kBlockSize;
    const PackedRun* before = run;
    if (p.packed != nullptr) run = FindRun(*p.packed, block, &run_idx);
    if (run == nullptr) {
      AttendBlock<T>(p, begin, reinterpret_cast<const T*>(p.blocks[block]));
      continue;
    }
    if (run != before) view = ViewRun(p, *run);
    float* values = reinterpret_cast<float*>(scratch);
    ExpandPackedBlock(view, p.blocks[block], block - run->first_block, values);
    AttendBlock<T>(p, begin, static_cast<const float*>(values));
  }
}

template <typename T>
void AttendRows(const AttendRowsParams& p) {
  KVL_DCHECK(p.row_type == kDTypeOf<T>);
  const T* k = static_cast<const T*>(p.k);
  const T* v = static_cast<const T*>(p.v);
  for (int row = 0; row < p.n_rows; ++row) {
    const T* q = static_cast<const T*>(p.q) + row * p.q_stride;
    float* o = p.o + row * p.o_stride;
    std::fill_n(o, p.rank_v, 0.0f);
    float row_max = kMinusInf, row_sum = 0;
    const int end = p.first_visible + row / p.gqa_group;
    for (int t = std::max(0, end - p.window); t < std::min(p.n_entries, end); ++t) {
      float score = 0;
      for (int d = 0; d < p.head_dim; ++d) score += ToFloat(q[d]) * ToFloat(k[t * p.head_dim + d]);
      if (p.score_cap > 0) score = CappedScore(p, row, score);
      score *= p.sm_scale;
      RaiseMax(score, p.rank_v, &row_max, &row_sum, o);
      const float prob = std::exp(score - row_max);
      row_sum += prob;
      for (int r = 0; r < p.rank_v; ++r) o[r] += prob * ToFloat(v[t * p.rank_v + r]);
    }
    p.row_max[row] = row_max;
    p.row_sum[row] = row_sum;
  }
}

template <typename T>
void Append(const AppendParams& p) {
  KVL_DCHECK(p.shape.row_type == kDTypeOf<T>);
  KVL_DCHECK(p.first_slot >= 0 && p.first_slot + p.n_rows <= kBlockSize);
  T* k_block = reinterpret_cast<T*>(p.block);
  T* v_block = k_block + kBlockSize * p.shape.rank_k;
  for (int row = 0; row < p.n_rows; ++row) {
    const int slot = p.first_slot + row;
    const T* k = static_cast<const T*>(p.k) + row * p.k_stride;
    const T* v = static_cast<const T*>(p.v) + row * p.v_stride;
    for (int r = 0; r < p.shape.rank_k; ++r) k_block[KeyOffset(slot, r)] = k[r];
    for (int r = 0; r < p.shape.rank_v; ++r) v_block[ValueOffset(p.shape, slot, r)] = v[r];
  }
}

}  // namespace

void AppendF32(const AppendParams& params) { Append<float>(params); }
void AppendBf16(const AppendParams& params) { Append<Bf16>(params); }

const AttendKernels kAttendScalarF32 = {Attend<float>, AttendRows<float>, AppendF32};
const AttendKernels kAttendScalarBf16 = {Attend<Bf16>, AttendRows<Bf16>, AppendBf16};

}  // namespace kvlathe
