// Sealed blocks whose channels have bits of their own: codes against a literal reading of the
// layout (packed_layout.h) and the nearest of the literal centroids, attention against sums in
// double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/threads.h"
#include "kernels/cpu/attend.h"
#include "kernels/cpu/attend_emulated.h"
#include "kernels/cpu/attend_packed.h"
#include "kernels/cpu/coded_rows.h"
#include "kernels/cpu/latent_keys.h"
#include "kernels/cpu/seal.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

constexpr int kBits[] = {8, 5, 4, 3, 2, 1};
// Positive centroids by bits; 8 bits: steps of 1/16 around code 128.
const std::vector<double> kPositive[] = {
    {},
    {0.765625},
    {0.45703125, 1.625},
    {0.2578125, 0.8125, 1.5078125, 2.671875},
    {0.138671875, 0.421875, 0.72265625, 1.0625, 1.453125, 1.9609375, 2.6875, 4.03125},
    {0.072265625, 0.216796875, 0.365234375, 0.515625, 0.671875, 0.83984375, 1.015625, 1.2109375,
     1.421875, 1.6640625, 1.9453125, 2.28125, 2.703125, 3.28125, 4.15625, 5.84375}};

double ValueOf(int bits, int code) {
  if (bits == 8) return (code - 128) / 16.0;
  const int half = 1 << (bits - 1);
  return code >= half ? kPositive[bits][code - half] : -kPositive[bits][half - 1 - code];
}

struct Head {
  std::vector<int> k_channels, v_channels;  // by kBits
  int n_blocks;
  int n_plain;  // entries behind the run
  int lowrank = 0;
  bool has_coded_rows = false;
  int scaled = 0;  // channels of K
};

int Sum(const std::vector<int>& x) {
  int sum = 0;
  for (const int i : x) sum += i;
  return sum;
}

BitSplit SplitOf(const std::vector<int>& channels, int scaled = 0) {
  BitSplit split{.scaled = scaled};
  std::ranges::copy(channels, split.channels.begin());
  return split;
}

// Bit `bit` of the bytes.
int BitAt(const std::byte* bytes, int64_t bit) {
  return static_cast<int>(bytes[bit / 8] >> (bit % 8)) & 1;
}

// The code of (token, channel of the segment) by the text of the layout.
int CodeAt(const std::byte* segment, int bits, int n_channels, bool is_key, int t, int c) {
  const int low_bits = bits == 3 ? 2 : bits == 5 ? 4 : bits;
  const int lines_per_group = 16 / low_bits;
  const int group_bytes = bits == 3 ? 96 : bits == 5 ? 80 : 64;
  int64_t group;
  int line, word;
  if (is_key) {
    const int l = 4 * (c / 2) + t / 16;
    group = l / lines_per_group, line = l % lines_per_group, word = t % 16 * 2 + c % 2;
  } else {
    const int pair = t / 2;
    group = int64_t{pair / lines_per_group} * (n_channels / 16) + c / 16;
    line = pair % lines_per_group, word = c % 16 * 2 + t % 2;
  }
  const std::byte* bytes = segment + group * group_bytes;
  if (bits == 8) return static_cast<int>(bytes[word / 8 * 16 + line * 8 + word % 8]);
  int code = 0;
  for (int i = 0; i < low_bits; ++i) code |= BitAt(bytes, 16 * word + low_bits * line + i) << i;
  if (low_bits < bits) code |= BitAt(bytes + 64 + 4 * line, word) << low_bits;
  return code;
}

// One head: rows, sealed and plain, and what sealed ones stand for.
class Problem {
 public:
  Problem(const Head& h, DType type, uint64_t seed)
      : head(h),
        shape{Sum(h.k_channels),     Sum(h.v_channels), type, SplitOf(h.k_channels, h.scaled),
              SplitOf(h.v_channels), h.has_coded_rows},
        random_(seed) {
    format.splits_bits = true;
    format.prompt_rank = h.lowrank;
    const int n = h.n_blocks * kBlockSize + h.n_plain;
    k = Rows(n, shape.rank_k, h.scaled), v = Rows(n, shape.rank_v);
    packed_shape = {.format = format,
                    .rank_k = shape.rank_k,
                    .rank_v = shape.rank_v,
                    .k_bits = shape.k_bits,
                    .v_bits = shape.v_bits,
                    .n_kv_heads = 1,
                    .layer_rank_v = shape.rank_v,
                    .n_blocks = h.n_blocks};
    const int n_blocks = (n + kBlockSize - 1) / kBlockSize;
    for (int b = 0; b < n_blocks; ++b) plain_.push_back(PlainBlock(b, n));
    for (const Buffer& block : plain_) blocks.push_back(block.data());
    record_ = Buffer::Allocate(RunRecordBytes(packed_shape) + 64, "test").value();
    for (int b = 0; b < h.n_blocks; ++b) {
      packed_.push_back(Buffer::Allocate(PackedBlockBytes(packed_shape) + 64, "test").value());
      std::memset(packed_[b].data(), 0xff, packed_[b].n_bytes());
    }
  }

  Status Seal(Isa isa) {
    ThreadPool pool(1);
    std::vector<std::byte*> to;
    for (Buffer& p : packed_) to.push_back(p.data());
    const SealHead seal_head = {.rank_k = shape.rank_k,
                                .rank_v = shape.rank_v,
                                .blocks = blocks.data(),
                                .packed = to.data(),
                                .record = head.lowrank > 0 ? record_.data() : nullptr,
                                .k_bits = shape.k_bits,
                                .v_bits = shape.v_bits,
                                .has_coded_rows = shape.has_coded_rows};
    const SealJob job = {.heads = {&seal_head, 1}, .n_blocks = head.n_blocks, .seed = 3};
    Sealer sealer(format, shape.row_type, 3, &pool, isa);
    return sealer.Run({&job, 1});
  }

  void UsePacked() {
    run = {.n_blocks = head.n_blocks, .record = record_.data()};
    packed_head = {.format = format, .layer_rank_v = shape.rank_v, .runs = &run, .n_runs = 1};
    for (int b = 0; b < head.n_blocks; ++b) blocks[b] = packed_[b].data();
    if (!shape.has_coded_rows) return;
    packed_head.open = {.first_block = head.n_blocks,
                        .n_blocks = static_cast<int>(blocks.size()) - head.n_blocks,
                        .is_open = true};
  }

  // Reads what the codes of (token, channel) stand for.
  double Decoded(bool is_key, int token, int channel) const {
    const std::vector<int>& channels = is_key ? head.k_channels : head.v_channels;
    const std::byte* segment = packed_[token / kBlockSize].data();
    if (!is_key) {
      for (int i = 0; i < 6; ++i) segment += 8 * head.k_channels[i] * kBits[i];
    }
    int first = 0, i = 0;
    while (channel >= first + channels[i]) {
      segment += 8 * channels[i] * kBits[i];
      first += channels[i++];
    }
    const int code =
        CodeAt(segment, kBits[i], channels[i], is_key, token % kBlockSize, channel - first);
    const double value = ValueOf(kBits[i], code);
    if (!is_key || channel >= head.scaled) return value;
    const BlockScale scale = ScaleOf(token / kBlockSize, channel);
    return value * scale.scale + scale.offset;
  }
  // By the text of the layout: bytes at the end of a block.
  struct BlockScale {
    double offset, scale;
  };
  BlockScale ScaleOf(int b, int channel) const {
    const std::byte* bytes =
        packed_[b].data() + PackedBlockBytes(packed_shape) - 2 * head.scaled + channel;
    const int offset = static_cast<int>(bytes[0]), scale = static_cast<int>(bytes[head.scaled]);
    return {(offset - 128) / 32.0, std::ldexp(1 + scale % 16 / 16.0, scale / 16 - 11)};
  }
  int BitsOf(bool is_key, int channel) const {
    const std::vector<int>& channels = is_key ? head.k_channels : head.v_channels;
    int i = 0;
    for (int first = 0; channel >= first + channels[i]; ++i) first += channels[i];
    return kBits[i];
  }
  const std::byte* packed_block(int b) const { return packed_[b].data(); }
  float& At(bool is_key, int token, int channel) {
    return is_key ? k[token * shape.rank_k + channel] : v[token * shape.rank_v + channel];
  }

  Head head;
  BlockShape shape;
  PackedFormat format;
  PackedShape packed_shape;
  std::vector<float> k, v;  // as rounded to the row type
  std::vector<const std::byte*> blocks;
  PackedRun run;
  PackedHead packed_head;

 private:
  float Stored(double x) const {
    if (shape.has_coded_rows) {
      return static_cast<float>(std::clamp(std::nearbyint(x * 16), -128.0, 127.0) / 16);
    }
    const auto f = static_cast<float>(x);
    return shape.row_type == DType::kBf16 ? ToFloat(ToBf16(f)) : f;
  }
  // Mostly normal, a few far out; the first channels about a mean that moves from block to block.
  std::vector<float> Rows(int n, int rank, int scaled = 0) {
    std::vector<float> rows(static_cast<size_t>(n) * rank);
    for (int i = 0; i < n * rank; ++i) {
      const double x = random_.Normal() * (random_.Below(50) == 0 ? 4 : 1);
      const int block = i / rank / kBlockSize, channel = i % rank;
      rows[i] = Stored(channel < scaled ? 0.2 * x + 2 * std::sin(3.0 * block + channel) : x);
    }
    return rows;
  }
  void PutCodedRows(int token, int n_rows, std::byte* block) {
    const int64_t element = SizeOf(shape.row_type);
    std::vector<std::byte> rows[2];
    for (const bool is_key : {true, false}) {
      const int rank = is_key ? shape.rank_k : shape.rank_v;
      std::vector<std::byte>& to = rows[is_key ? 0 : 1];
      to.resize(n_rows * rank * element);
      for (int i = 0; i < n_rows * rank; ++i) {
        const float x = (is_key ? k : v)[token * rank + i];
        const Bf16 rounded = ToBf16(x);
        std::memcpy(&to[i * element],
                    shape.row_type == DType::kF32 ? static_cast<const void*>(&x) : &rounded,
                    element);
      }
    }
    EXPECT_TRUE(AppendCodedRows({.shape = shape,
                                 .block = block,
                                 .n_rows = n_rows,
                                 .k = rows[0].data(),
                                 .k_stride = shape.rank_k,
                                 .v = rows[1].data(),
                                 .v_stride = shape.rank_v}));
  }
  Buffer PlainBlock(int b, int n) {
    Buffer block = Buffer::Allocate(BlockBytes(shape), "test").value();
    std::memset(block.data(), 0, block.n_bytes());
    if (shape.has_coded_rows) {
      PutCodedRows(b * kBlockSize, std::min(kBlockSize, n - b * kBlockSize), block.data());
      return block;
    }
    const auto put = [&](int64_t at, float x) {
      if (shape.row_type == DType::kBf16) {
        block.as<Bf16>()[at] = ToBf16(x);
      } else {
        block.as<float>()[at] = x;
      }
    };
    for (int t = 0; t < std::min(kBlockSize, n - b * kBlockSize); ++t) {
      const int token = b * kBlockSize + t;
      for (int r = 0; r < shape.rank_k; ++r) put(KeyOffset(t, r), k[token * shape.rank_k + r]);
      for (int r = 0; r < shape.rank_v; ++r) {
        put(kBlockSize * shape.rank_k + ValueOffset(shape, t, r), v[token * shape.rank_v + r]);
      }
    }
    return block;
  }

  Random random_;
  std::vector<Buffer> plain_, packed_;
  Buffer record_;
};

const Head kHeads[] = {
    {{16, 16, 16, 16, 16, 16}, {16, 16, 32, 16, 16, 48}, 2, 5, 0, false, 48},
    {{0, 0, 64, 0, 0, 0}, {0, 0, 0, 0, 64, 0}, 3, 0},
    {{0, 0, 0, 0, 0, 16}, {0, 0, 0, 16, 0, 0}, 1, 64, 0, false, 16},
    {{32, 64, 0, 48, 0, 0}, {0, 48, 16, 0, 0, 80}, 2, 1, 0, false, 80},
    {{48, 0, 80, 0, 64, 64}, {64, 80, 0, 112, 0, 0}, 1, 30},
};

TEST(SplitBits, CodesAreTheNearest) {
  for (const Isa isa : AvailableIsas()) {
    for (Head head : kHeads) {
      for (const int kind : {0, 1, 2}) {
        const DType type = kind == 0 ? DType::kF32 : DType::kBf16;
        head.has_coded_rows = kind == 2;
        Problem p(head, type, 7);
        ASSERT_TRUE(p.Seal(isa).ok());
        for (const bool is_key : {true, false}) {
          const int rank = is_key ? p.shape.rank_k : p.shape.rank_v;
          for (int t = 0; t < head.n_blocks * kBlockSize; ++t) {
            for (int c = 0; c < rank; ++c) {
              const int bits = p.BitsOf(is_key, c);
              const double x = p.At(is_key, t, c), got = p.Decoded(is_key, t, c);
              double nearest = std::numeric_limits<double>::infinity();
              for (int code = 0; code < 1 << bits; ++code) {
                double value = ValueOf(bits, code);
                if (is_key && c < head.scaled) {
                  const Problem::BlockScale scale = p.ScaleOf(t / kBlockSize, c);
                  value = value * scale.scale + scale.offset;
                }
                nearest = std::min(nearest, std::abs(x - value));
              }
              ASSERT_LE(std::abs(x - got), nearest + 1e-6)
                  << IsaName(isa) << " key " << is_key << " token " << t << " channel " << c;
            }
          }
        }
      }
    }
  }
}

// Offsets are the steps nearest to a block's means, scales those nearest to the root of the mean
// square about them, wherever a channel lies.
TEST(SplitBits, ScalesAreThoseOfTheBlock) {
  Head head = kHeads[3];
  Problem p(head, DType::kF32, 7);
  for (int t = 0; t < kBlockSize; ++t) {  // of the first block: still, tiny, far out, huge
    const double sign = t % 2 == 0 ? 1 : -1, x[] = {0.7, 1 + sign * 1e-5, 30 + sign, sign * 1e30};
    for (int c = 0; c < 4; ++c) {
      const auto value = static_cast<float>(x[c]);
      p.At(true, t, c) = value;
      std::memcpy(const_cast<std::byte*>(p.blocks[0]) + 4 * KeyOffset(t, c), &value, 4);
    }
  }
  for (const Isa isa : AvailableIsas()) {
    ASSERT_TRUE(p.Seal(isa).ok());
    for (int b = 0; b < head.n_blocks; ++b) {
      for (int c = b == 0 ? 4 : 0; c < head.scaled; ++c) {
        double sum = 0, square = 0;
        const Problem::BlockScale found = p.ScaleOf(b, c);
        for (int t = 64 * b; t < 64 * b + 64; ++t) {
          sum += p.At(true, t, c);
          square += std::pow(p.At(true, t, c) - found.offset, 2);
        }
        EXPECT_NEAR(found.offset, sum / 64, 0.5 / 32 + 1e-6);
        EXPECT_NEAR(found.scale / std::sqrt(square / 64), 1, 0.5 / 16 + 1e-6);
      }
    }
    EXPECT_EQ(p.ScaleOf(0, 0).offset, 22 / 32.0);
    EXPECT_EQ(p.ScaleOf(0, 1).scale, std::ldexp(1, -11));
    EXPECT_EQ(p.ScaleOf(0, 2).offset, 127 / 32.0);
    EXPECT_EQ(p.ScaleOf(0, 3).scale, 31);
  }
}

TEST(SplitBits, BytesAreTheBitsAndScalesAndNothingElse) {
  const Problem p(kHeads[0], DType::kBf16, 1);
  EXPECT_EQ(
      PackedBlockBytes(p.packed_shape),
      64 * (16 * (8 + 5 + 4 + 3 + 2 + 1) + 16 * 8 + 16 * 5 + 32 * 4 + 16 * 3 + 16 * 2 + 48) / 8 +
          2 * 48);
  EXPECT_EQ(RunRecordBytes(p.packed_shape), 0);
  EXPECT_EQ(LayerRecordBytes(p.packed_shape), 0);
}

TEST(SplitBits, EveryInstructionSetGivesTheSameBytes) {
  for (Head head : kHeads) {
    head.lowrank = 3;
    head.has_coded_rows = !head.has_coded_rows && head.n_plain % 2 == 1;
    Problem want(head, DType::kBf16, 9);
    ASSERT_TRUE(want.Seal(Isa::kScalar).ok());
    for (const Isa isa : AvailableIsas()) {
      Problem got(head, DType::kBf16, 9);
      ASSERT_TRUE(got.Seal(isa).ok());
      for (int b = 0; b < head.n_blocks; ++b) {
        EXPECT_EQ(0, std::memcmp(want.packed_block(b), got.packed_block(b),
                                 PackedBlockBytes(want.packed_shape)));
      }
    }
  }
}

// What codes in units of their block lose is repaired in those of rows.
TEST(SplitBits, RepairsOfScaledChannelsLowerTheError) {
  const auto error_at = [](int lowrank) {
    Problem p({{0, 0, 0, 0, 32, 0}, {0, 0, 0, 0, 16, 0}, 1, 0, lowrank, false, 32}, DType::kF32, 5);
    EXPECT_TRUE(p.Seal(AvailableIsas().back()).ok());
    p.UsePacked();
    AttendParams params;
    params.shape = p.shape;
    params.packed = &p.packed_head;
    std::vector<float> block(kBlockSize * (32 + 16));
    ExpandPackedBlock(ViewRun(params, p.run), p.blocks[0], 0, block.data());
    double error = 0;
    for (int t = 0; t < kBlockSize; ++t) {
      for (int c = 0; c < 32; ++c) error += std::pow(block[KeyOffset(t, c)] - p.At(true, t, c), 2);
    }
    return error;
  };
  EXPECT_LT(error_at(8), 0.7 * error_at(0));
}

// Every code lies where a sealed block of 8-bit channels has it, and is the nearest there is.
TEST(CodedRows, AreTheNearestCodesInTheirPlaces) {
  constexpr int kRankK = 48, kRankV = 80, kFirst = 13, kRows = 37, kStride = 96;
  const BlockShape shape = {kRankK, kRankV, DType::kF32, {}, {}, true};
  EXPECT_EQ(BlockBytes(shape), 64 * (kRankK + kRankV));
  Buffer block = Buffer::Allocate(BlockBytes(shape), "test").value();
  std::memset(block.data(), 7, block.n_bytes());
  Random random(3);
  std::vector<float> rows(kRows * kStride);
  for (float& x : rows) x = static_cast<float>(3 * random.Normal());
  rows[0] = 1e30f, rows[1] = -9, rows[2] = 7.99f, rows[3] = 0.03124f, rows[4] = 0.03126f;
  AppendParams append = {shape,       block.data(), kFirst,      kRows,
                         rows.data(), kStride,      rows.data(), kStride};
  ASSERT_TRUE(AppendCodedRows(append));
  std::vector<float> k(64 * kRankK), v(64 * kRankV);
  ExpandCodedKeys(block.data(), kRankK, k.data());
  ExpandCodedValues(block.data() + 64 * kRankK, kRankV, v.data());
  for (int t = 0; t < 64; ++t) {
    const bool is_there = t >= kFirst && t < kFirst + kRows;
    const auto want = [&](int c) -> int {
      if (!is_there) return 7;
      const double x = rows[(t - kFirst) * kStride + c];
      return static_cast<int>(std::clamp(std::nearbyint(x * 16), -128.0, 127.0)) + 128;
    };
    for (int c = 0; c < kRankK; ++c) {
      ASSERT_EQ(CodeAt(block.data(), 8, kRankK, true, t, c), want(c)) << t << ' ' << c;
      ASSERT_NEAR(k[KeyOffset(t, c)], (want(c) - 128) / 16.0f, 1e-6);
      if (want(c) == 128) {
        ASSERT_EQ(k[KeyOffset(t, c)] > 0, t % 2 == 0);
      }
    }
    for (int c = 0; c < kRankV; ++c) {
      ASSERT_EQ(CodeAt(block.data() + 64 * kRankK, 8, kRankV, false, t, c), want(c));
      ASSERT_NEAR(v[ValueOffset(shape, t, c)], (want(c) - 128) / 16.0f, 1e-6);
      if (want(c) == 128) {
        ASSERT_EQ(v[ValueOffset(shape, t, c)] > 0, t % 2 == 0);
      }
    }
  }
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
    rows[(kRows - 1) * kStride + kRankV - 1] = bad;
    EXPECT_FALSE(AppendCodedRows(append));
  }
}

TEST(SplitBits, RefusesNan) {
  Problem p(kHeads[0], DType::kF32, 2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(const_cast<std::byte*>(p.blocks[1]) + BlockBytes(p.shape) - 4, &nan, 4);
  const Status status = p.Seal(AvailableIsas().back());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
}

// Attention over the run and the plain entries behind it: the literal one of the decoded values.
void CheckAttention(const Head& head, const AttendKernels& kernels, DType type, int n_tokens,
                    int group, const std::string& what) {
  Problem p(head, type, 11);
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
  params.o = o.data();
  params.o_stride = p.shape.rank_v;
  params.row_max = row_max.data();
  params.row_sum = row_sum.data();
  kernels.attend(params, scratch.data());

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
  double error = 0, square = 0;
  for (int row = 0; row < n_rows; ++row) {
    const int n_seen = params.first_visible + row / group;
    std::vector<double> out(p.shape.rank_v);
    double sum = 0;
    for (int t = 0; t < n_seen; ++t) {
      double score = 0;
      for (int c = 0; c < p.shape.rank_k; ++c) {
        score += q[row * p.shape.rank_k + c] * k[t * p.shape.rank_k + c];
      }
      const double weight = std::exp(score * params.sm_scale - row_max[row]);
      sum += weight;
      for (int c = 0; c < p.shape.rank_v; ++c) out[c] += weight * v[t * p.shape.rank_v + c];
    }
    for (int c = 0; c < p.shape.rank_v; ++c) {
      const double want = out[c] / sum, got = o[row * p.shape.rank_v + c] / row_sum[row];
      error += (want - got) * (want - got);
      square += want * want;
    }
  }
  EXPECT_LT(std::sqrt(error / square), type == DType::kF32 ? 1e-5 : 6e-3) << what;
}

TEST(SplitBits, AttentionIsThatOfTheDecodedValues) {
  for (Head head : kHeads) {
    for (const int kind : {0, 1, 2}) {
      const int lowrank = kind == 1 ? 2 : 0;
      head.lowrank = lowrank;
      head.has_coded_rows = kind == 2;
      for (const int n_tokens : {1, 2, 9, 33}) {
        for (const int group : {1, 3, 4}) {
          const auto check = [&](const AttendKernels& kernels, DType type, std::string name) {
            CheckAttention(head, kernels, type, n_tokens, group,
                           fmt::format("{} {} tokens {} group {} rank {} lowrank {} coded {}", name,
                                       DTypeName(type), n_tokens, group, Sum(head.k_channels),
                                       lowrank, head.has_coded_rows));
          };
          for (const Isa isa : AvailableIsas()) {
            for (const DType type : {DType::kBf16, DType::kF32}) {
              check(GetAttendKernels(isa, type), type, std::string(IsaName(isa)));
            }
          }
          if (HasBf16Dots(AvailableIsas().back())) {
            check(kAttendEmulatedTiles, DType::kBf16, "emulated AMX");
          }
        }
      }
    }
  }
}

// Blocks of latents: the keys that the literal latents give, and the values as they are.
void CheckLatents(const Head& head, Isa isa, DType type) {
  constexpr int kHeadDim = 96;
  Problem p(head, type, 13);
  ASSERT_TRUE(p.Seal(isa).ok());
  p.UsePacked();
  const int rank_k = p.shape.rank_k, rank_v = p.shape.rank_v;
  Random random(6);
  std::vector<float> way_back(static_cast<size_t>(rank_k) * kHeadDim);
  for (float& x : way_back) {
    x = ToFloat(ToBf16(static_cast<float>(random.Normal() / std::sqrt(rank_k))));
  }
  const LatentMap map(way_back, {}, kHeadDim, type);
  const BlockShape plain = {kHeadDim, rank_v, type};
  Buffer tile = Buffer::Allocate(BlockBytes(plain), "test").value();
  Buffer scratch = Buffer::Allocate(kLatentScratchBytes, "test").value();
  AttendParams params;
  params.shape = p.shape;
  params.packed = &p.packed_head;
  const PackedRunView view = ViewRun(params, p.run);
  std::vector<float> found(kBlockSize * (kHeadDim + rank_v));
  for (int b = 0; b < head.n_blocks; ++b) {
    GetLatentReader(isa, type)({.shape = p.shape,
                                .map = map.view(),
                                .block = p.blocks[b],
                                .run = &view,
                                .block_idx = b,
                                .tile = tile.data()},
                               scratch.data());
    ConvertToFloat(type, tile.data(), std::ssize(found), found.data());
    for (int i = 0; i < kBlockSize; ++i) {
      for (int d = 0; d < kHeadDim; ++d) {
        double key = 0, rounded = 0;
        for (int r = 0; r < rank_k; ++r) {
          const double part = p.Decoded(true, b * kBlockSize + i, r) * way_back[r * kHeadDim + d];
          key += part;
          if (r < head.scaled) rounded += std::abs(part);  // the others are exact in Bf16
        }
        const double slack = type == DType::kF32 ? 1e-5 : (std::abs(key) + rounded) / 256 + 1e-4;
        ASSERT_NEAR(found[KeyOffset(i, d)], key, slack) << "token " << i << " channel " << d;
      }
      for (int r = 0; r < rank_v; ++r) {
        const float value = found[kBlockSize * kHeadDim + ValueOffset(plain, i, r)];
        ASSERT_EQ(value, p.Decoded(false, b * kBlockSize + i, r));
      }
    }
  }
}

TEST(SplitBits, LatentsAreThoseThatTheCodesStandFor) {
  for (const Head& head : kHeads) {
    for (const Isa isa : AvailableIsas()) {
      for (const DType type : {DType::kBf16, DType::kF32}) {
        SCOPED_TRACE(
            fmt::format("{} {} rank {}", IsaName(isa), DTypeName(type), Sum(head.k_channels)));
        CheckLatents(head, isa, type);
      }
    }
  }
}

}  // namespace
}  // namespace kvlathe
