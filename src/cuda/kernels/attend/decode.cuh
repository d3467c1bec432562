// The kernel of decode.h. The warps of a block of threads take the blocks of an item in turn, each
// with partial results of its own, which are merged in shared memory in the end, in the order of
// the warps. Outputs lie there all the time: a tile of 16 channels by 8 rows is added to by 64
// entries at once, so reading and writing it costs little beside decoding, and loops over tiles
// need no registers for all of them.
#pragma once

#include "cuda/kernels/attend/decode.h"
#include "cuda/kernels/attend/decode_block.cuh"
#include "cuda/kernels/attend/decode_shared.cuh"
#include "cuda/kernels/attend/score_cap.cuh"
#include "cuda/simt/simt.h"
#include "format/mean_angles.h"

namespace kvlathe::cuda {

template <int kN>
class DecodeItemRunner {
 public:
  static constexpr int kRows = 8 * kN;

  KVL_DEVICE DecodeItemRunner(const DecodeParams& params, const DecodeItem& of_item)
      : p_(params),
        item_(of_item),
        job_(params.jobs[of_item.job_idx]),
        at_(DecodeSharedOf(params)),
        shared_(simt::Shared()),
        // The compiler then knows that what depends on it is the same in all lanes.
        warp_(simt::Shuffle(simt::WarpIdx(), 0)) {
    std::byte* const mine = shared_ + at_.warps + warp_ * at_.warp_bytes;
    rows_ = {.q_f16 = shared_ + at_.q_f16,
             .q_bf16 = shared_ + at_.q_bf16,
             .q_stride = at_.q_stride,
             .probs = mine + at_.probs,
             .o = reinterpret_cast<Floats4*>(mine + at_.o),
             .v_tiles = job_.rank_v / 16,
             .tables = params.tables};
    first_seen_ = SeenBegin(0);
    last_first_seen_ = SeenBegin(item_.n_rows - 1);
    first_end_ = SeenEnd(0);
    const int last_end = SeenEnd(item_.n_rows - 1);
    end_ = item_.entry_end < last_end ? item_.entry_end : last_end;
  }

  KVL_DEVICE void Run() {
    if (const int b = FirstBlock(); b * kBlockSize < end_) {
      int run_idx = item_.first_run;
      PrefetchBlock(b, p_.layouts[FindRun(b, &run_idx).layout_idx].n_bytes);
    }
    LoadRows();
    if (p_.score_cap > 0 || job_.sink_logits != nullptr) {
      LoadLost();
      simt::SyncBlock();
    }
    if (job_.mean.n_pairs > 0) {
      LoadAngles();
      LoadWeights();
    }
    if (HasSinks()) ScoreSinks();
    for (int i = simt::Lane(); i < kN * rows_.v_tiles * simt::kWarp; i += simt::kWarp) {
      rows_.o[i] = Floats4{};
    }
    simt::SyncBlock();
    AttendBlocks();
    simt::SyncBlock();
    MergeWarps();
    simt::SyncBlock();
    WriteRows();
  }

 private:
  KVL_DEVICE float* FloatsAt(int offset) const {
    return reinterpret_cast<float*>(shared_ + offset);
  }
  KVL_DEVICE bool HasSinks() const { return item_.entry_begin == 0 && job_.n_sinks > 0; }
  KVL_DEVICE int TokenOf(int row) const {
    const int known = row < item_.n_rows ? row : item_.n_rows - 1;
    return (item_.row_begin + known) / job_.gqa_group;
  }
  // Row `row` of the item sees entries [SeenBegin, SeenEnd).
  KVL_DEVICE int SeenEnd(int row) const { return job_.first_visible + TokenOf(row); }
  KVL_DEVICE int SeenBegin(int row) const {
    const int begin = job_.window > 0 ? SeenEnd(row) - job_.window : 0;
    return begin > 0 ? begin : 0;
  }

  // Queries as they are, and in F16 times a power of two that leaves their largest number between
  // 16 and 32, where scales of channels find room as well.
  KVL_DEVICE void LoadRows() {
    const int n_words = job_.rank_k / 2;
    for (int row = warp_; row < kRows; row += simt::WarpCount()) {
      const auto* const from =
          reinterpret_cast<const uint32_t*>(job_.q + 2 * job_.q_stride * (item_.row_begin + row));
      auto* const f16 = reinterpret_cast<uint32_t*>(shared_ + at_.q_f16 + row * at_.q_stride);
      auto* const bf16 = reinterpret_cast<uint32_t*>(shared_ + at_.q_bf16 + row * at_.q_stride);
      const bool is_there = row < item_.n_rows;
      float most = 0;
      for (int w = simt::Lane(); w < n_words; w += simt::kWarp) {
        const uint32_t pair = is_there ? from[w] : 0;
        bf16[w] = pair;
        most = fmaxf(most, fmaxf(fabsf(simt::FloatOfBf16(pair)), fabsf(simt::UpperBf16(pair))));
      }
      most = simt::MaxOfWarp(most);
      const uint32_t exponent = std::bit_cast<uint32_t>(most) >> 23;
      const uint32_t wanted = exponent == 0 ? 127 : 258 - exponent;  // 254 at most: of 2^127
      const float factor = std::bit_cast<float>((wanted > 254 ? 254 : wanted) << 23);
      for (int w = simt::Lane(); w < n_words; w += simt::kWarp) {
        const uint32_t pair = is_there ? from[w] : 0;
        f16[w] = simt::PackF16(simt::FloatOfBf16(pair) * factor, simt::UpperBf16(pair) * factor);
      }
      if (simt::Lane() == 0) {
        FloatsAt(at_.row_factor)[row] = p_.sm_scale * kLog2E / factor;
      }
    }
  }

  // What all products of a row have lost.
  KVL_DEVICE void LoadLost() {
    const int n_words = job_.head_dim / 2;
    for (int row = warp_; row < kRows; row += simt::WarpCount()) {
      float sum = 0;
      if (job_.lost_keys != nullptr && row < item_.n_rows) {
        const auto* const q = reinterpret_cast<const uint32_t*>(
            job_.q_full + 2 * job_.q_full_stride * (item_.row_begin + row));
        for (int w = simt::Lane(); w < n_words; w += simt::kWarp) {
          sum += simt::FloatOfBf16(q[w]) * job_.lost_keys[2 * w];
          sum += simt::UpperBf16(q[w]) * job_.lost_keys[2 * w + 1];
        }
      }
      sum = simt::SumOfWarp(sum);
      if (simt::Lane() == 0) FloatsAt(at_.lost)[row] = sum;
    }
  }

  // What the cosines and sines of all pairs are at the entries of a block, as A of products with
  // weights: in F16, and what that leaves in F16.
  KVL_DEVICE void LoadAngles() {
    const int n_pairs = job_.mean.n_pairs, n_tiles = n_pairs / 8;
    const auto of = [&](int entry, int channel) {
      const bool is_behind = entry >= kHalfBlock;
      const int d = is_behind ? entry - kHalfBlock : kHalfBlock - 1 - entry;
      const bool is_sin = channel < n_pairs;
      const int pair = is_sin ? channel : channel - n_pairs;
      const float x = job_.mean.angles[((is_sin ? n_pairs : 0) + pair) * kHalfBlock + d];
      return is_sin && !is_behind ? -x : x;
    };
    auto* const words = reinterpret_cast<uint32_t*>(shared_ + at_.angles);
    const int n_words = n_tiles * 4 * simt::kWarp * 4;
    for (int w = simt::ThreadIdx(); w < n_words; w += simt::BlockDim()) {
      const int r = w % 4, lane = w / 4 % 32, n = w / 128 % 4, tile = w / 512;
      const int entry = 16 * n + 2 * (lane / 4) + r % 2;
      const int channel = 16 * tile + 4 * (lane % 4) + r / 2 * 2;
      const float low = of(entry, channel), high = of(entry, channel + 1);
      const uint32_t pair = simt::PackF16(low, high);
      words[w] = pair;
      words[n_words + w] = simt::PackF16(low - LowF16(pair), high - HighF16(pair));
    }
  }

  // What queries add for the mean (cpu/attention/turning_mean.h), at the middle of a block that
  // begins at position 0.
  KVL_DEVICE void LoadWeights() {
    const DecodeMean& mean = job_.mean;
    const int n_pairs = mean.n_pairs;
    const float* const middle_cos = mean.angles + 2 * n_pairs * kHalfBlock;
    const float* const middle_sin = middle_cos + n_pairs;
    const float unit = sqrtf(mean.way_back) * p_.sm_scale * kLog2E;
    for (int j = simt::ThreadIdx(); j < kRows * n_pairs; j += simt::BlockDim()) {
      const int row = j / n_pairs, i = j % n_pairs;
      float* const to = FloatsAt(at_.weights) + row * 2 * n_pairs;
      to[i] = to[n_pairs + i] = 0;
      if (row >= item_.n_rows) continue;
      const int64_t of_job = item_.row_begin + row;
      const int joined =
          static_cast<int>(of_job % job_.gqa_group) / (job_.gqa_group / mean.n_joined);
      const auto* const q = reinterpret_cast<const uint16_t*>(job_.q_full) +
                            of_job * job_.q_full_stride + joined * mean.head_dim;
      const float* const m = mean.mean + joined * mean.head_dim;
      const float q0 = simt::FloatOfBf16(q[i]), q1 = simt::FloatOfBf16(q[i + mean.half]);
      const float c = unit * (q0 * m[i] + q1 * m[i + mean.half]);
      const float s = unit * (q1 * m[i] - q0 * m[i + mean.half]);
      to[i] = s * middle_cos[i] - c * middle_sin[i];
      to[n_pairs + i] = c * middle_cos[i] + s * middle_sin[i];
    }
  }

  KVL_DEVICE void ScoreSinks() {
    const int n_words = job_.head_dim / 2;
    float* const scores = FloatsAt(at_.sinks);
    for (int j = warp_; j < kRows * job_.n_sinks; j += simt::WarpCount()) {
      const int row = j / job_.n_sinks, sink = j % job_.n_sinks;
      const int end = job_.first_sinks_visible + TokenOf(row);
      const bool sees = row < item_.n_rows && sink < end &&
                        (job_.sink_window == 0 || sink >= end - job_.sink_window);
      float sum = 0;
      if (sees) {
        const auto* const q = reinterpret_cast<const uint32_t*>(
            job_.q_full + 2 * job_.q_full_stride * (item_.row_begin + row));
        const auto* const k =
            reinterpret_cast<const uint32_t*>(job_.sink_k + int64_t{4} * n_words * sink);
        for (int w = simt::Lane(); w < n_words; w += simt::kWarp) {
          sum += simt::FloatOfBf16(q[w]) * simt::FloatOfBf16(k[w]);
          sum += simt::UpperBf16(q[w]) * simt::UpperBf16(k[w]);
        }
      }
      sum = simt::SumOfWarp(sum);
      const float unit = p_.sm_scale * kLog2E;
      sum *= unit;
      if (p_.score_cap > 0) {
        sum = TanhCap(p_.score_cap * kLog2E).Of(sum + unit * FloatsAt(at_.lost)[row]);
      }
      if (simt::Lane() == 0) scores[j] = sees ? sum : kMinusInf;
    }
  }

  // A block goes to the same warp whatever rows are beside, for their bits.
  KVL_DEVICE int FirstBlock() const {
    const int begin = item_.entry_begin > first_seen_ ? item_.entry_begin : first_seen_;
    const int first = begin / kBlockSize, n_warps = simt::WarpCount();
    return first + (warp_ + n_warps - first % n_warps) % n_warps;
  }

  // The run of block b is that of run_idx or a later one.
  KVL_DEVICE const DecodeRun& FindRun(int b, int* run_idx) const {
    const DecodeRun* run = p_.runs + job_.first_run + *run_idx;
    for (; b >= run->first_block + run->n_blocks; ++run) ++*run_idx;
    return *run;
  }

  KVL_DEVICE const std::byte* BlockAt(int b) const {
    return job_.base + int64_t{p_.places[job_.first_place + b]} * kBlockPlace;
  }

  KVL_DEVICE void PrefetchBlock(int b, int n_bytes) const {
    const std::byte* const block = BlockAt(b);
    constexpr int kLine = 128;
#pragma unroll 1
    for (int at = simt::Lane() * kLine; at < n_bytes; at += simt::kWarp * kLine) {
      simt::Prefetch(block + at);
    }
  }

  KVL_DEVICE void AttendBlocks() {
    float maxima[kN][2], sums[kN][2];
#pragma unroll
    for (int row8 = 0; row8 < kN; ++row8) {
      maxima[row8][0] = maxima[row8][1] = kMinusInf;
      sums[row8][0] = sums[row8][1] = 0;
    }
    int run_idx = item_.first_run;
    for (int b = FirstBlock(); b * kBlockSize < end_; b += simt::WarpCount()) {
      AttendBlock(b, FindRun(b, &run_idx), maxima, sums);
    }
    const int lane = simt::Lane();
    if (lane >= 4) return;
#pragma unroll
    for (int row8 = 0; row8 < kN; ++row8) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = warp_ * kRows + 8 * row8 + 2 * lane + j;
        FloatsAt(at_.maxima)[row] = maxima[row8][j];
        FloatsAt(at_.sums)[row] = sums[row8][j];
      }
    }
  }

  KVL_DEVICE void AttendBlock(int b, const DecodeRun& run, float (&maxima)[kN][2],
                              float (&sums)[kN][2]) {
    const std::byte* const block = BlockAt(b);
    const AttendLayout& layout = p_.layouts[run.layout_idx];
    const bool is_plain = layout.k.reading == Reading::kRows;
    const int first = b * kBlockSize, in_run = b - run.first_block;
    RowScores x[kN] = {};
    if (is_plain) {
      AddRowScores<kN>(rows_, block, layout.k, x);
    } else {
      AddCodeScores<kN>(rows_, block, layout.k, KeyScales(layout.k, block, run, in_run), x);
    }
    ToLog2(is_plain, x);
    // The next block comes nearer; where its run is another one, the size of this one's serves.
    const int next = b + simt::WarpCount();
    if (next * kBlockSize < end_) PrefetchBlock(next, layout.n_bytes);
    if (job_.mean.n_pairs > 0) AddMeanScores(first, x);
    if (p_.score_cap > 0) CapScores(x);
    if (job_.scores != nullptr) StoreScores(first, x);
    const bool are_all_seen =
        first + kBlockSize <= first_end_ && first + kBlockSize <= end_ && first >= last_first_seen_;
    if (!are_all_seen) HideUnseen(first, x);
    float alpha[kN][2];
    Softmax(is_plain, maxima, alpha, x);
    simt::SyncWarp();
    RowProbs probs[kN];
    LoadProbs<kN>(rows_, probs);
#pragma unroll
    for (int row8 = 0; row8 < kN; ++row8) {
      float added[2];
      if (is_plain) {
        SumProbs<true>(probs[row8], added);
      } else {
        SumProbs<false>(probs[row8], added);
      }
      sums[row8][0] = sums[row8][0] * alpha[row8][0] + added[0];
      sums[row8][1] = sums[row8][1] * alpha[row8][1] + added[1];
    }
    if (is_plain) {
      AddRowValues<kN>(rows_, block, layout.v, {first_seen_ - first, end_ - first, are_all_seen},
                       probs, alpha);
    } else {
      const std::byte* const scales = layout.v.in_layer != 0
                                          ? run.layer_record + int64_t{in_run} * 4 * kBlockSize
                                          : block + layout.v.scales_at;
      AddCodeValues<kN>(rows_, block, layout.v, scales, probs, alpha);
    }
    simt::SyncWarp();  // before the next block's probabilities
  }

  KVL_DEVICE const std::byte* KeyScales(const SideLayout& side, const std::byte* block,
                                        const DecodeRun& run, int in_run) const {
    if (side.scales != Scales::kChannel) return block + side.scales_at;
    const int64_t group = int64_t{in_run} * kBlockSize / side.group_tokens;
    return run.record + group * side.n_tiles * 64;
  }

  KVL_DEVICE void ToLog2(bool is_plain, RowScores (&x)[kN]) const {
    const float* const factors = FloatsAt(at_.row_factor);
#pragma unroll
    for (int row8 = 0; row8 < kN; ++row8) {
      float factor[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        factor[j] =
            is_plain ? p_.sm_scale * kLog2E : factors[8 * row8 + 2 * (simt::Lane() % 4) + j];
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) x[row8][n][c] *= factor[c % 2];
      }
    }
  }

  // The weights are turned to the block, whose entries follow each other by position.
  KVL_DEVICE void AddMeanScores(int first, RowScores (&x)[kN]) {
    const DecodeMean& mean = job_.mean;
    const int n_pairs = mean.n_pairs, lane = simt::Lane();
    std::byte* const turned = shared_ + at_.warps + warp_ * at_.warp_bytes + at_.turned;
    const int rest = kRows * at_.mean_stride;  // where what F16 leaves lies
    const int64_t angles = int64_t{mean.first_position + first} * mean.half;
#pragma unroll 1
    for (int i = lane; i < n_pairs; i += simt::kWarp) {
      const float cos = mean.cos[angles + i], sin = mean.sin[angles + i];
      // Rows that are not there have columns of their own, which nobody reads.
#pragma unroll 1
      for (int row = 0; row < item_.n_rows; ++row) {
        const float* const w = FloatsAt(at_.weights) + row * 2 * n_pairs;
        const float both[2] = {w[i] * cos - w[n_pairs + i] * sin,
                               w[n_pairs + i] * cos + w[i] * sin};
        auto* const to = reinterpret_cast<uint16_t*>(turned + row * at_.mean_stride);
        auto* const left = reinterpret_cast<uint16_t*>(turned + rest + row * at_.mean_stride);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t near = simt::PackF16(both[j], 0);
          to[j * n_pairs + i] = static_cast<uint16_t>(near);
          left[j * n_pairs + i] = static_cast<uint16_t>(simt::PackF16(both[j] - LowF16(near), 0));
        }
      }
    }
    simt::SyncWarp();
    const auto* const near = reinterpret_cast<const Words4*>(shared_ + at_.angles);
    const Words4* const far = near + n_pairs / 8 * 4 * simt::kWarp;
#pragma unroll 1
    for (int tile = 0; tile < n_pairs / 8; ++tile) {
#pragma unroll
      for (int row8 = 0; row8 < kN; ++row8) {
        uint32_t b[2], b_left[2];
        LoadQueries(turned, at_.mean_stride, row8, tile, b);
        LoadQueries(turned + rest, at_.mean_stride, row8, tile, b_left);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const Words4 a = near[(tile * 4 + n) * simt::kWarp + lane];
          const Words4 a_left = far[(tile * 4 + n) * simt::kWarp + lane];
          simt::MmaF16(x[row8][n], a_left.x, b);
          simt::MmaF16(x[row8][n], a.x, b_left);
          simt::MmaF16(x[row8][n], a.x, b);
        }
      }
    }
    simt::SyncWarp();
  }

  KVL_DEVICE void CapScores(RowScores (&x)[kN]) const {
    const float* const lost = FloatsAt(at_.lost);
    const float unit = p_.sm_scale * kLog2E;
    const TanhCap cap(p_.score_cap * kLog2E);
#pragma unroll
    for (int row8 = 0; row8 < kN; ++row8) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float added = unit * lost[8 * row8 + 2 * (simt::Lane() % 4) + j];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          x[row8][n][j] = cap.Of(x[row8][n][j] + added);
          x[row8][n][j + 2] = cap.Of(x[row8][n][j + 2] + added);
        }
      }
    }
  }

  KVL_DEVICE void StoreScores(int first, const RowScores (&x)[kN]) const {
    const int lane = simt::Lane();
    const float unscaled = 1.0f / (p_.sm_scale * kLog2E);
#pragma unroll
    for (int row8 = 0; row8 < kN; ++row8) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = 8 * row8 + 2 * (lane % 4) + j;
        if (row >= item_.n_rows) continue;
        float* const to =
            job_.scores + (item_.row_begin + row) * job_.scores_stride + first + 2 * (lane / 4);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          to[16 * n] = x[row8][n][j] * unscaled;
          to[16 * n + 1] = x[row8][n][j + 2] * unscaled;
        }
      }
    }
  }

  KVL_DEVICE void HideUnseen(int first, RowScores (&x)[kN]) const {
    const int lane = simt::Lane();
#pragma unroll
    for (int row8 = 0; row8 < kN; ++row8) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int row = 8 * row8 + 2 * (lane % 4) + c % 2;
        const int row_end = SeenEnd(row) < end_ ? SeenEnd(row) : end_;
        const int row_begin = SeenBegin(row);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const int entry = first + 16 * n + 2 * (lane / 4) + c / 2;
          if (entry < row_begin || entry >= row_end) x[row8][n][c] = kMinusInf;
        }
      }
    }
  }

  // Raises the maxima, and writes probabilities; alpha is what moves what was summed before.
  KVL_DEVICE void Softmax(bool is_bf16, float (&maxima)[kN][2], float (&alpha)[kN][2],
                          RowScores (&x)[kN]) {
    const int lane = simt::Lane();
#pragma unroll
    for (int row8 = 0; row8 < kN; ++row8) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float most = maxima[row8][j];
#pragma unroll
        for (int n = 0; n < 4; ++n) most = fmaxf(most, fmaxf(x[row8][n][j], x[row8][n][j + 2]));
#pragma unroll
        for (int step = 4; step < simt::kWarp; step *= 2) {
          most = fmaxf(most, simt::ShuffleXor(most, step));
        }
        // Of rows that have seen nothing yet everything becomes 0.
        const float base = most <= 0.5f * kMinusInf ? 0 : most;
        alpha[row8][j] = simt::Exp2(maxima[row8][j] - base);
        maxima[row8][j] = most;
        std::byte* const row =
            rows_.probs + (8 * row8 + 2 * (lane % 4) + j) * kProbStride + lane / 4 * 4;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float first = simt::Exp2(x[row8][n][j] - base);
          const float second = simt::Exp2(x[row8][n][j + 2] - base);
          *reinterpret_cast<uint32_t*>(row + 32 * n) =
              is_bf16 ? simt::PackBf16(first, second) : simt::PackF16(first, second);
        }
      }
    }
  }

  // What a row's sink logit is as a score, times log2(e). It is less by what all scores have lost,
  // unless the cap has given it back to them.
  KVL_DEVICE float SinkLogit(int row) const {
    if (job_.sink_logits == nullptr || item_.entry_begin > 0) return kMinusInf;
    const float logit = job_.sink_logits[(item_.row_begin + row) % job_.gqa_group];
    const float lost = p_.score_cap > 0 ? 0 : p_.sm_scale * FloatsAt(at_.lost)[row];
    return (logit - lost) * kLog2E;
  }

  // Finds what the outputs of each warp count, and what the sinks do; leaves the sum and the
  // maximum of each row in the place of the first warp's sum and behind those of the warps.
  KVL_DEVICE void MergeWarps() {
    for (int row = simt::ThreadIdx(); row < kRows; row += simt::BlockDim()) {
      float* const maxima = FloatsAt(at_.maxima) + row;
      float* const sums = FloatsAt(at_.sums) + row;
      float* const sinks = FloatsAt(at_.sinks) + row * job_.n_sinks;
      const int n_sinks = HasSinks() ? job_.n_sinks : 0;
      const float logit = SinkLogit(row);
      float most = logit;
      for (int w = 0; w < simt::WarpCount(); ++w) most = fmaxf(most, maxima[w * kRows]);
      for (int i = 0; i < n_sinks; ++i) most = fmaxf(most, sinks[i]);
      const float base = most <= 0.5f * kMinusInf ? 0 : most;
      float sum = simt::Exp2(logit - base);
      for (int w = 0; w < simt::WarpCount(); ++w) {
        maxima[w * kRows] = simt::Exp2(maxima[w * kRows] - base);
        sum += sums[w * kRows] * maxima[w * kRows];
      }
      for (int i = 0; i < n_sinks; ++i) {
        sinks[i] = simt::Exp2(sinks[i] - base);
        sum += sinks[i];
      }
      sums[0] = sum;
      FloatsAt(at_.row_factor)[row] = most;
    }
  }

  KVL_DEVICE void WriteRows() {
    const int lane_count = kN * (job_.width / 16) * simt::kWarp;
    for (int at = simt::ThreadIdx(); at < lane_count; at += simt::BlockDim()) {
      const int lane = at % simt::kWarp, tile = at / simt::kWarp % (job_.width / 16);
      const int row8 = at / simt::kWarp / (job_.width / 16);
      WriteFour(8 * row8 + 2 * (lane % 4), 16 * tile + 2 * (lane / 4),
                (row8 * rows_.v_tiles + tile) * simt::kWarp + lane);
    }
    if (item_.partial_offset >= 0) return WriteSums();
    const int64_t head_stride = job_.out_head_stride > 0 ? job_.out_head_stride : job_.width;
    const int n_behind = static_cast<int>(head_stride) - job_.width;
    for (int at = simt::ThreadIdx(); at < n_behind * item_.n_rows; at += simt::BlockDim()) {
      Store(at / n_behind, job_.width + at % n_behind, 0);
    }
    if (job_.scores == nullptr) return;
    for (int row = simt::ThreadIdx(); row < item_.n_rows; row += simt::BlockDim()) {
      StoreSums(job_, item_.row_begin + row, FloatsAt(at_.row_factor)[row],
                FloatsAt(at_.sums)[row]);
    }
  }

  // Rows `row` and the next one, channels `channel` and the next one.
  KVL_DEVICE void WriteFour(int row, int channel, int place) {
    float sum[4] = {};
    if (channel < job_.rank_v) {
      for (int w = 0; w < simt::WarpCount(); ++w) {
        const Floats4 o = *reinterpret_cast<const Floats4*>(
            shared_ + at_.warps + w * at_.warp_bytes + at_.o + place * 16);
        const float* const counts = FloatsAt(at_.maxima) + w * kRows + row;
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[j] += counts[j % 2] * o.x[j];
      }
    }
    if (HasSinks()) {
      const float* const sinks = FloatsAt(at_.sinks) + row * job_.n_sinks;
      for (int i = 0; i < job_.n_sinks; ++i) {
        const uint32_t pair = *reinterpret_cast<const uint32_t*>(
            job_.sink_v + (int64_t{i} * job_.width + channel) * 2);
        const float v[2] = {simt::FloatOfBf16(pair), simt::UpperBf16(pair)};
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[j] += sinks[j % 2 * job_.n_sinks + i] * v[j / 2];
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (row + j % 2 < item_.n_rows) StoreSum(row + j % 2, channel + j / 2, sum[j]);
    }
  }

  KVL_DEVICE void StoreSum(int row, int channel, float sum) {
    if (item_.partial_offset >= 0) {
      p_.partials[item_.partial_offset + int64_t{row} * job_.width + channel] = sum;
      return;
    }
    const float of_row = FloatsAt(at_.sums)[row];
    Store(row, channel, of_row == 0 ? 0 : sum / of_row);
  }
  KVL_DEVICE void Store(int row, int channel, float x) {
    StoreOutput(job_, item_.row_begin + row, channel, x);
  }

  KVL_DEVICE void WriteSums() {
    float* const to = p_.partials + item_.partial_offset + int64_t{item_.n_rows} * job_.width;
    const int step = (item_.n_rows + 15) / 16 * 16;
    for (int row = simt::ThreadIdx(); row < item_.n_rows; row += simt::BlockDim()) {
      to[row] = FloatsAt(at_.row_factor)[row];
      to[step + row] = FloatsAt(at_.sums)[row];
    }
  }

 public:
  KVL_DEVICE static void StoreOutput(const DecodeJob& job, int64_t row, int channel, float x) {
    const int64_t head_stride = job.out_head_stride > 0 ? job.out_head_stride : job.width;
    const int64_t to =
        row / job.gqa_group * job.out_stride + row % job.gqa_group * head_stride + channel;
    if (job.out_type == DType::kBf16) {
      reinterpret_cast<uint16_t*>(job.out)[to] = static_cast<uint16_t>(simt::Bf16OfFloat(x));
    } else {
      reinterpret_cast<float*>(job.out)[to] = x;
    }
  }
  KVL_DEVICE static void StoreSums(const DecodeJob& job, int64_t row, float max, float sum) {
    job.row_max[row] = max / kLog2E;
    job.row_sum[row] = sum;
  }

 private:
  static constexpr int kBlockPlace = 64;  // kDeviceAlignment (machine/object_id.h)

  const DecodeParams& p_;
  const DecodeItem& item_;
  const DecodeJob& job_;
  DecodeShared at_;
  std::byte* shared_;
  int warp_;
  WarpRows rows_;
  // Of the item: the first entry that its first row sees, and its last row; where what the first
  // row sees ends, and what any row does.
  int first_seen_ = 0, last_first_seen_ = 0, first_end_ = 0, end_ = 0;
};

}  // namespace kvlathe::cuda
