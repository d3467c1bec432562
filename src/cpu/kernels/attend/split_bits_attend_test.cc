// Attention over sealed blocks whose channels have bits of their own, against sums in double over
// what the codes stand for; keys that are stored as latents, against the literal ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/attend/byte_tiles.h"
#include "cpu/kernels/latent/latent_keys.h"
#include "cpu/kernels/testing/attend_emulated.h"
#include "cpu/kernels/testing/attend_ref.h"
#include "cpu/kernels/testing/split_bits_problem.h"
#include "format/split_bits/unit_codes.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

// How kernels multiply codes as bytes: those of channels of up to most_bits bits, with queries of
// up to `query`. Numbers are multiples of SmallStep, or of ByteStep where the machine has dots of
// bytes.
struct Bytes {
  int most_bits;
  int query;
  bool has_dots;
};
constexpr Bytes kNoBytes = {0, 0, false};
constexpr Bytes kBytesOfSevenBits = {kSmallBits, 63, false};
constexpr Bytes kBytesOfDots = {4, 127, true};

struct Kernels {
  const AttendKernels& kernels;
  DType type;
  Bytes bytes = kNoBytes;
  bool is_exact() const { return bytes.most_bits == 0; }
  double tolerance() const {
    if (type == DType::kF32) return 1e-5;
    return is_exact() ? 6e-3 : 1.5e-2;
  }
};

// What rounding to bytes makes of a problem: queries of channels of bytes, times what a byte counts
// there, become as many steps as `query` says of the largest of a row.
class ByteProblem {
 public:
  ByteProblem(const SplitProblem& p, const Bytes& bytes)
      : p_(p), bytes_(bytes), n_sealed_(p.head.n_blocks * kBlockSize) {}

  void RoundRows(bool is_key, std::vector<double>* rows) const {
    const int rank = is_key ? p_.shape.rank_k : p_.shape.rank_v;
    for (int t = 0; t < n_sealed_; ++t) {
      for (int c = 0; c < rank; ++c) {
        if (IsSmall(is_key, c)) {
          (*rows)[t * rank + c] += Rounded(is_key, t, c) - p_.Decoded(is_key, t, c);
        }
      }
    }
  }
  // What rounding the queries of a row adds to its score of a token, of each sealed one.
  std::vector<double> AddedScores(const float* q) const {
    const int rank = p_.shape.rank_k;
    double largest = 0;
    for (int c = 0; c < rank; ++c) {
      if (IsSmall(true, c)) largest = std::max(largest, std::abs(q[c] * StepOf(true, c)));
    }
    std::vector<double> added(n_sealed_);
    for (int c = 0; c < rank && largest > 0; ++c) {
      if (!IsSmall(true, c)) continue;
      const double unit = largest / bytes_.query / StepOf(true, c);
      const double rounded = std::nearbyint(q[c] / unit) * unit;
      for (int t = 0; t < n_sealed_; ++t) added[t] += (rounded - q[c]) * Rounded(true, t, c);
    }
    return added;
  }

 private:
  bool IsSmall(bool is_key, int c) const { return p_.BitsOf(is_key, c) <= bytes_.most_bits; }
  double StepOf(bool is_key, int c) const {
    const StoredUnit unit = p_.head.has_token_scales ? StoredUnit::kToken : StoredUnit::kChannel;
    return bytes_.has_dots ? ByteStep(ByteStepOf(p_.BitsOf(is_key, c)), unit) : SmallStep(unit);
  }
  double Rounded(bool is_key, int t, int c) const {
    const double unit = StepOf(is_key, c) * p_.TokenScaleOf(is_key, t);
    return std::nearbyint(p_.Decoded(is_key, t, c) / unit) * unit;
  }

  const SplitProblem& p_;
  Bytes bytes_;
  int n_sealed_;
};

struct SeenRows {
  int n_tokens;
  int group;
  int window = kNoWindow;
  float cap = 0;
};

// Attention over the run and the plain entries behind it: the literal one of the decoded values.
void CheckAttention(const SplitHead& head, const Kernels& of, const SeenRows& rows,
                    const std::string& what) {
  const int n_tokens = rows.n_tokens, group = rows.group;
  const DType type = of.type;
  SplitProblem p(head, type, 11);
  ASSERT_TRUE(p.Seal(AvailableIsas().back()).ok());
  p.UsePacked();
  const int n = static_cast<int>(p.k.size()) / p.shape.rank_k, n_rows = n_tokens * group;
  Random random(5);
  std::vector<float> q(static_cast<size_t>(n_rows) * p.shape.rank_k);
  for (float& x : q) x = ToFloat(ToBf16(static_cast<float>(random.Normal())));
  std::vector<Bf16> q_bf16;
  for (const float x : q) q_bf16.push_back(ToBf16(x));
  std::vector<float> o(static_cast<size_t>(n_rows) * p.shape.rank_v), row_max(n_rows),
      row_sum(n_rows);
  Buffer scratch = Buffer::Allocate(kAttendScratchBytes, "test").value();
  AttendParams params;
  params.shape = p.shape;
  params.gqa_group = group;
  params.n_rows = n_rows;
  params.q = type == DType::kBf16 ? static_cast<const void*>(q_bf16.data()) : q.data();
  params.q_stride = p.shape.rank_k;
  params.blocks = p.blocks.data();
  params.packed = &p.packed_head;
  params.kv_end = n;
  params.first_visible = n - n_tokens + 1;
  params.sm_scale = 1 / std::sqrt(static_cast<float>(p.shape.rank_k));
  params.score_cap = rows.cap;
  params.o = o.data();
  params.o_stride = p.shape.rank_v;
  params.row_max = row_max.data();
  params.row_sum = row_sum.data();
  params.is_exact = of.is_exact();
  params.window = rows.window;
  of.kernels.attend(params, scratch.data());

  std::vector<double> k(p.k.begin(), p.k.end()), v(p.v.begin(), p.v.end());
  if (head.lowrank == 0) {
    for (int t = 0; t < head.n_blocks * kBlockSize; ++t) {
      for (int c = 0; c < p.shape.rank_k; ++c) k[t * p.shape.rank_k + c] = p.Decoded(true, t, c);
      for (int c = 0; c < p.shape.rank_v; ++c) v[t * p.shape.rank_v + c] = p.Decoded(false, t, c);
    }
  } else {  // what the portable code reads, which other tests hold against the layout
    std::vector<float> block(kBlockSize * (p.shape.rank_k + p.shape.rank_v));
    const PackedRunView view = ViewRun(params, p.run);
    for (int t = 0; t < head.n_blocks * kBlockSize; ++t) {
      const int b = t / kBlockSize, i = t % kBlockSize;
      if (i == 0) ExpandPackedBlock(view, p.blocks[b], b, block.data());
      for (int c = 0; c < p.shape.rank_k; ++c) k[t * p.shape.rank_k + c] = block[KeyOffset(i, c)];
      for (int c = 0; c < p.shape.rank_v; ++c) {
        v[t * p.shape.rank_v + c] = block[kBlockSize * p.shape.rank_k + ValueOffset(p.shape, i, c)];
      }
    }
  }
  const ByteProblem bytes(p, of.bytes);
  if (!of.is_exact()) {
    bytes.RoundRows(true, &k);
    bytes.RoundRows(false, &v);
  }
  double error = 0, square = 0;
  for (int row = 0; row < n_rows; ++row) {
    const int n_seen = params.first_visible + row / group;
    std::vector<double> out(p.shape.rank_v), squares(p.shape.rank_v);
    double sum = 0;
    std::vector<double> added;
    if (!of.is_exact()) added = bytes.AddedScores(&q[row * p.shape.rank_k]);
    added.resize(n);
    for (int t = std::max(0, n_seen - rows.window); t < n_seen; ++t) {
      double score = added[t];
      for (int c = 0; c < p.shape.rank_k; ++c) {
        score += q[row * p.shape.rank_k + c] * k[t * p.shape.rank_k + c];
      }
      const double weight = std::exp(CapScoreRef(score * params.sm_scale, rows.cap) - row_max[row]);
      sum += weight;
      for (int c = 0; c < p.shape.rank_v; ++c) {
        const double value = v[t * p.shape.rank_v + c];
        out[c] += weight * value;
        squares[c] += weight * value * value;
      }
    }
    for (int c = 0; c < p.shape.rank_v; ++c) {
      const double want = out[c] / sum, got = o[row * p.shape.rank_v + c] / row_sum[row];
      error += (want - got) * (want - got);
      // Probabilities are rounded against the largest of a block, and a mean of values may be near
      // zero where they cancel.
      square += of.is_exact() ? want * want : squares[c] / sum;
    }
  }
  EXPECT_LT(std::sqrt(error / square), of.tolerance()) << what;
}

Bytes BytesOf(Isa isa) {
  return HasBf16Dots(isa) || HasAvxVnni() ? kBytesOfDots : kBytesOfSevenBits;
}

TEST(SplitBits, AttentionIsThatOfTheDecodedValues) {
  for (SplitHead head : kSplitHeads) {
    for (const int kind : {0, 1, 2, 3}) {
      const int lowrank = kind == 1 ? 2 : 0;
      head.lowrank = lowrank;
      head.has_coded_rows = kind >= 2;
      head.has_one_side = kind == 3;
      for (const int n_tokens : {1, 2, 9, 33}) {
        for (const int group : {1, 3, 4}) {
          const auto check = [&](const Kernels& of, std::string name) {
            CheckAttention(
                head, of, {n_tokens, group, kNoWindow, group == 3 ? 1.5f : 0},
                fmt::format("{} {} exact {} tokens {} group {} rank {} lowrank {} kind {}", name,
                            DTypeName(of.type), of.is_exact(), n_tokens, group,
                            SumOfChannels(head.k_channels), lowrank, kind));
          };
          // With fewer rows AVX-512 multiplies Bf16 numbers, but where rows have one side.
          const bool has_rows = n_tokens * group >= 4 || head.has_one_side;
          for (const Isa isa : AvailableIsas()) {
            for (const DType type : {DType::kBf16, DType::kF32}) {
              check({GetAttendKernels(isa, type), type}, std::string(IsaName(isa)));
            }
            const Kernels of_bytes = {GetAttendKernels(isa, DType::kBf16), DType::kBf16,
                                      BytesOf(isa)};
            if (isa == Isa::kAvx2 || (HasBf16Dots(isa) && has_rows)) {
              check(of_bytes, std::string(IsaName(isa)) + " bytes");
            }
          }
          if (HasBf16Dots(AvailableIsas().back())) {
            check({kAttendEmulatedTiles, DType::kBf16}, "emulated AMX");
            // From 64 rows on, those that need not be bytes are products of Bf16 tiles.
            const int n_rows = n_tokens * group;
            if (n_rows >= kMinByteTileRows && (n_rows < 64 || head.has_one_side)) {
              check({kAttendEmulatedTiles, DType::kBf16, kBytesOfDots}, "emulated AMX bytes");
            }
            check({kAttendNarrowVnni, DType::kBf16, kBytesOfDots}, "dots of narrow vectors");
          }
        }
      }
    }
  }
}

// Windows that begin within a block, before the last one and in it.
TEST(SplitBits, AttentionWithinWindowsIsThatOfTheDecodedValues) {
  if (!HasBf16Dots(AvailableIsas().back())) GTEST_SKIP() << "needs AVX-512 BF16";
  for (SplitHead head : kSplitHeads) {
    for (const bool has_one_side : {false, true}) {
      head.has_coded_rows = head.has_one_side = has_one_side;
      for (const int window : {40, 100}) {
        for (const SeenRows& rows :
             {SeenRows{1, 8, window}, SeenRows{3, 4, window, 2}, SeenRows{8, 4, window, 2}}) {
          CheckAttention(head, {kAttendEmulatedTiles, DType::kBf16, kBytesOfDots}, rows,
                         fmt::format("{} tokens {} group, one side {}, window {}", rows.n_tokens,
                                     rows.group, has_one_side, window));
        }
      }
    }
  }
}

constexpr int kKeyDim = 96, kTurned = 40;  // the last 16 channels do not turn

// The way from latents to keys, and angles for each token of a block.
struct KeyMap {
  KeyMap(int rank_k, uint64_t seed)
      : rank(rank_k), way_back(rank_k * kKeyDim), offset(kKeyDim), cos(kBlockSize * kTurned) {
    Random random(seed);
    const double deviation = 1 / std::sqrt(rank_k);
    for (float& x : way_back) x = ToFloat(ToBf16(static_cast<float>(deviation * random.Normal())));
    for (float& x : offset) x = static_cast<float>(random.Normal());
    for (float& x : cos) {
      const double angle = 100 * random.Normal();
      x = static_cast<float>(std::cos(angle));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  int rank;
  std::vector<float> way_back, offset, cos, sin;  // angles as K lies in a block
};

struct ExpectedKey {
  std::vector<double> key = std::vector<double>(kKeyDim), slack = key;
};

// The variance that rounding latents and weights to bytes adds to channel d of the key of a token,
// by the text of LatentBytes: the weights of channels of 8, of 5 and 4, and of fewer bits are
// rounded to a 127th of the largest of them, and codes of 5 and 4 and of fewer bits to a 127th of
// the largest value that they stand for.
double VarianceOfBytes(const SplitProblem& p, const KeyMap& map, const std::vector<double>& latents,
                       int token, int d) {
  const bool has_scales = p.head.has_token_scales;
  const auto step_of = [&](int r) {
    return p.BitsOf(true, r) == 8 ? 0 : p.BitsOf(true, r) > 3 ? 1 : 2;
  };
  double code_steps[3] = {};
  for (int bits = 1; bits <= 5; ++bits) {
    for (int window = 0; window < 32; ++window) {
      double& step = code_steps[bits > 3 ? 1 : 2];
      step = std::max(step, ValueOfSplitWindow(bits, window, has_scales) / 127);
    }
  }
  double tops[3] = {}, variance = 0;
  for (int r = 0; r < map.rank; ++r) {
    tops[step_of(r)] = std::max<double>(tops[step_of(r)], std::abs(map.way_back[r * kKeyDim + d]));
  }
  for (int r = 0; r < map.rank; ++r) {
    const double of_weight = tops[step_of(r)] / 127 * latents[r];
    const double of_code =
        code_steps[step_of(r)] * p.TokenScaleOf(true, token) * map.way_back[r * kKeyDim + d];
    variance += (of_weight * of_weight + of_code * of_code) / 12;
  }
  return variance;
}

// The key of a token of a sealed block by the definition.
ExpectedKey KeyOf(const SplitProblem& p, const KeyMap& map, int token, DType type) {
  ExpectedKey e;
  std::vector<double> latents(map.rank);
  for (int r = 0; r < map.rank; ++r) latents[r] = p.Decoded(true, token, r);
  const int t = token % kBlockSize;
  for (int d = 0; d < kKeyDim; ++d) {
    double square = 0, size = 0;
    e.key[d] = map.offset[d];
    for (int r = 0; r < map.rank; ++r) {
      const double weight = map.way_back[r * kKeyDim + d];
      e.key[d] += latents[r] * weight;
      square += latents[r] * latents[r];
      size += std::abs(weight);
    }
    e.slack[d] = 1e-5;
    if (type == DType::kF32) continue;
    // Weights of 16 bits are rounded to the step that sums of 31 bits allow.
    const double step = size * kLargestUnitNumber / 2.145e9;
    const double of_bytes = VarianceOfBytes(p, map, latents, token, d);
    e.slack[d] += 5 * std::sqrt(step * step * square / 12 + of_bytes);
  }
  for (int d = 0; d < kTurned; ++d) {
    const double c = map.cos[KeyOffset(t, d)], s = map.sin[KeyOffset(t, d)];
    const double first = e.key[d], second = e.key[d + kTurned];
    e.key[d] = first * c - second * s;
    e.key[d + kTurned] = second * c + first * s;
    e.slack[d] = e.slack[d + kTurned] = e.slack[d] + e.slack[d + kTurned];
  }
  if (type == DType::kBf16) {
    for (int d = 0; d < kKeyDim; ++d) e.slack[d] += std::abs(e.key[d]) / 256;
  }
  return e;
}

// Blocks of latents: the keys that the literal latents give, and the values as they are.
void CheckLatents(const SplitHead& head, Isa isa, DType type) {
  SplitProblem p(head, type, 13);
  ASSERT_TRUE(p.Seal(isa).ok());
  p.UsePacked();
  const int rank_k = p.shape.rank_k, rank_v = p.shape.rank_v;
  const KeyMap key_map(rank_k, 6);
  const LatentMap map(key_map.way_back, key_map.offset, kKeyDim, kKeyDim, type,
                      {&p.bits.middle.k, 1});
  const BlockShape plain = {kKeyDim, rank_v, type};
  Buffer tile = Buffer::Allocate(BlockBytes(plain), "test").value();
  Buffer scratch = Buffer::Allocate(kLatentScratchBytes, "test").value();
  AttendParams params;
  params.shape = p.shape;
  params.packed = &p.packed_head;
  const PackedRunView view = ViewRun(params, p.run);
  std::vector<float> found(kBlockSize * (kKeyDim + rank_v));
  for (int b = 0; b < head.n_blocks; ++b) {
    GetLatentReader(isa, type)({.shape = p.shape,
                                .map = map.view(),
                                .rotation = {key_map.cos.data(), key_map.sin.data(), kTurned, 1.0f},
                                .block = p.blocks[b],
                                .run = &view,
                                .block_idx = b,
                                .tile = tile.data()},
                               scratch.data());
    ConvertToFloat(type, tile.data(), std::ssize(found), found.data());
    for (int t = 0; t < kBlockSize; ++t) {
      const ExpectedKey want = KeyOf(p, key_map, b * kBlockSize + t, type);
      for (int d = 0; d < kKeyDim; ++d) {
        ASSERT_NEAR(found[KeyOffset(t, d)], want.key[d], want.slack[d])
            << "token " << t << " channel " << d;
      }
      for (int r = 0; r < rank_v; ++r) {
        const float value = found[kBlockSize * kKeyDim + ValueOffset(plain, t, r)];
        const auto want_value = static_cast<float>(p.Decoded(false, b * kBlockSize + t, r));
        ASSERT_EQ(value, type == DType::kBf16 ? ToFloat(ToBf16(want_value)) : want_value);
      }
    }
  }
}

TEST(SplitBits, LatentsAreThoseThatTheCodesStandFor) {
  for (const SplitHead& head : kSplitHeads) {
    for (const Isa isa : AvailableIsas()) {
      for (const DType type : {DType::kBf16, DType::kF32}) {
        SCOPED_TRACE(fmt::format("{} {} rank {}", IsaName(isa), DTypeName(type),
                                 SumOfChannels(head.k_channels)));
        CheckLatents(head, isa, type);
      }
    }
  }
}

}  // namespace
}  // namespace kvlathe
