#include "cpu/kernels/testing/split_bits_problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/threads.h"
#include "cpu/kernels/attend/coded_rows.h"

namespace kvlathe {
namespace {

// Of SplitHead's lists of channels.
constexpr int kBits[] = {8, 5, 4, 3, 2, 1};

// Positive centroids by bits; 8 bits: steps of 1/16 around code 128.
const std::vector<double> kOfChannels[] = {
    {},
    {0.765625},
    {0.45703125, 1.625},
    {0.2578125, 0.8125, 1.5078125, 2.671875},
    {0.138671875, 0.421875, 0.72265625, 1.0625, 1.453125, 1.9609375, 2.6875, 4.03125},
    {0.072265625, 0.216796875, 0.365234375, 0.515625, 0.671875, 0.83984375, 1.015625, 1.2109375,
     1.421875, 1.6640625, 1.9453125, 2.28125, 2.703125, 3.28125, 4.15625, 5.84375}};
const std::vector<double> kOfTokens[] = {
    {},
    {0.78515625},
    {0.455078125, 1.546875},
    {0.25, 0.77734375, 1.3984375, 2.3125},
    {0.134765625, 0.40625, 0.6875, 0.9921875, 1.3359375, 1.734375, 2.265625, 3.09375},
    {0.072265625, 0.21875, 0.365234375, 0.51171875, 0.6640625, 0.81640625, 0.98046875, 1.1484375,
     1.328125, 1.5234375, 1.7421875, 1.984375, 2.28125, 2.640625, 3.125, 3.9375}};

// Of paths, by bits and window.
const std::vector<double> kOfPaths[] = {
    {},
    {-0.69140625,  0.470703125, 0.9921875,   -0.296875,   0.041015625, -0.119140625, 0.65625,
     -1.0703125,   -2.125,      -0.56640625, -0.04296875, 1.328125,    0.361328125,  0.7109375,
     0.271484375,  -1.2578125,  -0.68359375, 0.7734375,   0.9765625,   -0.34765625,  -0.10546875,
     -0.259765625, -0.91015625, 0.70703125,  0.6953125,   2.125,       -1.265625,    -0.203125,
     -0.416015625, 0.04296875,  -0.6171875,  1.1015625},
    {0.462890625,  -0.310546875, 1.34375,     -1.34375,    -1.0546875, 1.203125,  0.1328125,
     -0.376953125, 2.5,          0.91015625,  0.185546875, -0.6171875, 0.09375,   -0.6328125,
     -1.640625,    0.69140625,   -0.59765625, 0.04296875,  -1.8046875, 0.9296875, 0.5390625,
     -0.173828125, 1.578125,     -1.1796875,  -2.53125,    0.71875,    -0.71875,  -0.00390625,
     -0.9765625,   -0.111328125, 0.5078125,   1.71875},
    {2.0,        -1.2890625,  -0.06640625, -0.8125,     -2.296875,  0.4296875,  -0.470703125,
     -1.5703125, 0.306640625, -1.890625,   2.796875,    -1.1015625, 1.921875,   0.609375,
     -1.3203125, -0.765625,   0.56640625,  0.224609375, 1.0546875,  -0.3671875, -0.029296875,
     1.4453125,  -0.93359375, 0.83984375,  0.8359375,   -0.09375,   1.4296875,  -0.51953125,
     1.1328125,  -0.3359375,  0.142578125, -3.03125},
    {2.078125,     0.15234375, 3.328125,    -0.4765625, -0.06640625, -1.71875,   -0.94921875,
     -0.244140625, 1.1171875,  -0.71484375, -2.546875,  1.4921875,   0.6015625,  0.8359375,
     0.35546875,   -1.2578125, -0.5390625,  -1.09375,   -0.80859375, 0.98828125, 0.25,
     0.45703125,   -1.453125,  0.048828125, -2.046875,  -3.34375,    2.546875,   1.7578125,
     -0.14453125,  -0.34375,   1.296875,    0.70703125}};

// Of the bytes of split bits.
double ScaleAt(const std::byte* byte) {
  const int scale = static_cast<int>(*byte);
  return std::ldexp(1 + scale % 16 / 16.0, scale / 16 - 11);
}

BitSplit SplitOf(const std::vector<int>& channels) {
  BitSplit split;
  std::ranges::copy(channels, split.channels.begin());
  return split;
}

// Bit `bit` of the bytes.
int BitAt(const std::byte* bytes, int64_t bit) {
  return static_cast<int>(bytes[bit / 8] >> (bit % 8)) & 1;
}

}  // namespace

int SumOfChannels(const std::vector<int>& x) {
  int sum = 0;
  for (const int i : x) sum += i;
  return sum;
}

double ValueOfSplitWindow(int bits, int window, bool has_token_scales) {
  const double sought = SoughtOfSplitWindow(bits, window, has_token_scales);
  if (bits == 8) return sought;
  constexpr double kLosses[2][6] = {{1, 0.414063, 0.150466, 0.0484252, 0.0141481, 0.00386733},
                                    {1, 0.32162, 0.09918, 0.02916, 0.00881, 0.00292413}};
  const double loss = kLosses[has_token_scales ? 1 : 0][bits];
  const double value = sought * 4 / (loss + 4 * (1 - loss));
  // Seven bits behind the first, and nothing below 1/512.
  const double step = std::max(std::ldexp(1.0, std::ilogb(value) - 7), 1 / 512.0);
  return std::copysign(std::floor(std::abs(value) / step + 0.5) * step, value);
}

double SoughtOfSplitWindow(int bits, int window, bool has_token_scales) {
  if (bits == 8) return (window - 128) / 16.0;
  if (has_token_scales && bits <= 4) return kOfPaths[bits][window];
  const int low_bits = bits == 3 ? 2 : bits == 5 ? 4 : bits;
  int code = window % (1 << low_bits);
  if (low_bits < bits) code += window / 16 << low_bits;
  const int half = 1 << (bits - 1);
  const std::vector<double>& positive = (has_token_scales ? kOfTokens : kOfChannels)[bits];
  return code >= half ? positive[code - half] : -positive[half - 1 - code];
}

SplitPlace SplitPlaceOf(int bits, int n_channels, bool is_key, int t, int c) {
  const int low_bits = bits == 3 ? 2 : bits == 5 ? 4 : bits;
  const int lines_per_group = 16 / low_bits;
  if (is_key) {
    const int line = 4 * (c / 2) + t / 16;
    return {line / lines_per_group, line % lines_per_group, t % 16 * 2 + c % 2};
  }
  const int pair = t / 2;
  return {int64_t{pair / lines_per_group} * (n_channels / 16) + c / 16, pair % lines_per_group,
          c % 16 * 2 + t % 2};
}

int SplitWindowAt(const std::byte* segment, int bits, const SplitPlace& place) {
  const auto [group, line, word] = place;
  const int low_bits = bits == 3 ? 2 : bits == 5 ? 4 : bits;
  const int group_bytes = bits == 3 ? 96 : bits == 5 ? 80 : 64;
  const std::byte* bytes = segment + group * group_bytes;
  if (bits == 8) return static_cast<int>(bytes[word / 8 * 16 + line * 8 + word % 8]);
  const int n = low_bits < bits ? 4 : 5;  // bits of the word
  int window = 0;
  for (int i = 0; i < n; ++i) {
    window |= BitAt(bytes, 16 * word + (low_bits * line + i) % 16) << i;
  }
  if (low_bits < bits) window |= BitAt(bytes + 64 + 4 * line, word) << 4;
  return window;
}

SplitProblem::SplitProblem(const SplitHead& h, DType type, uint64_t seed)
    : head(h),
      shape{SumOfChannels(h.k_channels), SumOfChannels(h.v_channels), type},
      bits{.middle = {SplitOf(h.k_channels), SplitOf(h.v_channels)}},
      random_(seed) {
  if (h.has_one_side) {
    shape.rank_v = shape.rank_k;
    shape.has_one_side = true;
    bits.middle.v = {};
    head.v_channels = h.k_channels;
  }
  format.codec =
      SplitBitsCodec{.unit = h.has_token_scales ? StoredUnit::kToken : StoredUnit::kChannel,
                     .codes_open_rows = h.has_coded_rows,
                     .has_one_side = h.has_one_side};
  format.prompt_rank = h.lowrank;
  const int n = h.n_blocks * kBlockSize + h.n_plain;
  given_k_ = Rows(n, shape.rank_k), given_v_ = Rows(n, shape.rank_v);
  k = head.has_coded_rows ? Coded(given_k_, shape.rank_k) : given_k_;
  v = head.has_coded_rows ? Coded(given_v_, shape.rank_v) : given_v_;
  if (h.has_one_side) v = k;
  packed_shape =
      MakePackedShape(format, shape, bits, {.layer_rank_v = shape.rank_v, .n_blocks = h.n_blocks});
  const int n_blocks = (n + kBlockSize - 1) / kBlockSize;
  for (int b = 0; b < n_blocks; ++b) plain_.push_back(PlainBlock(b, n));
  for (const Buffer& block : plain_) blocks.push_back(block.data());
  record_ = Buffer::Allocate(RunRecordBytes(packed_shape) + 64, "test").value();
  for (int b = 0; b < h.n_blocks; ++b) {
    packed_.push_back(Buffer::Allocate(PackedBlockBytes(packed_shape) + 64, "test").value());
    std::memset(packed_[b].data(), 0xff, packed_[b].n_bytes());
  }
}

Status SplitProblem::Seal(Isa isa) {
  ThreadPool pool(1);
  std::vector<std::byte*> to;
  for (Buffer& p : packed_) to.push_back(p.data());
  const SealHead seal_head = {.rank_k = shape.rank_k,
                              .rank_v = shape.rank_v,
                              .blocks = blocks.data(),
                              .packed = to.data(),
                              .record = head.lowrank > 0 ? record_.data() : nullptr,
                              .storage = bits};
  const SealJob job = {.heads = {&seal_head, 1}, .n_blocks = head.n_blocks, .seed = 3};
  Sealer sealer(format, shape.row_type, 3, &pool, isa);
  return sealer.Run({&job, 1});
}

void SplitProblem::UsePacked() {
  run = {.n_blocks = head.n_blocks, .record = record_.data()};
  packed_head = {
      .format = format, .storage = bits, .layer_rank_v = shape.rank_v, .runs = &run, .n_runs = 1};
  for (int b = 0; b < head.n_blocks; ++b) blocks[b] = packed_[b].data();
  if (!head.has_coded_rows) return;
  packed_head.open = {.first_block = head.n_blocks,
                      .n_blocks = static_cast<int>(blocks.size()) - head.n_blocks,
                      .is_open = true};
}

double SplitProblem::Decoded(bool is_key, int token, int channel) const {
  return Read(is_key, token, channel, ValueOfSplitWindow);
}

double SplitProblem::Sought(bool is_key, int token, int channel) const {
  return Read(is_key, token, channel, SoughtOfSplitWindow);
}

template <typename F>
double SplitProblem::Read(bool is_key, int token, int channel, const F& value_of) const {
  is_key |= head.has_one_side;
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
  const SplitPlace place =
      SplitPlaceOf(kBits[i], channels[i], is_key, token % kBlockSize, channel - first);
  const int window = SplitWindowAt(segment, kBits[i], place);
  return value_of(kBits[i], window, head.has_token_scales) * TokenScaleOf(is_key, token);
}

double SplitProblem::TokenScaleOf(bool is_key, int token) const {
  if (!head.has_token_scales) return 1;
  int n_bits = 0;  // of a token's codes, K and V
  is_key |= head.has_one_side;
  for (int i = 0; i < 6; ++i) {
    n_bits += kBits[i] * (head.k_channels[i] + (head.has_one_side ? 0 : head.v_channels[i]));
  }
  const std::byte* const scales = packed_[token / kBlockSize].data() + 8 * n_bits;
  return ScaleAt(scales + (is_key ? 0 : 64) + token % 64);
}

int SplitProblem::BitsOf(bool is_key, int channel) const {
  const std::vector<int>& channels = is_key ? head.k_channels : head.v_channels;
  int i = 0;
  for (int first = 0; channel >= first + channels[i]; ++i) first += channels[i];
  return kBits[i];
}

float SplitProblem::Rounded(double x) const {
  const auto f = static_cast<float>(x);
  return shape.row_type == DType::kBf16 ? ToFloat(ToBf16(f)) : f;
}

std::vector<float> SplitProblem::Coded(const std::vector<float>& rows, int rank) const {
  std::vector<float> coded;
  for (size_t first = 0; first < rows.size(); first += rank) {
    double most = 0, scale = 0;
    for (int r = 0; r < rank; ++r) most = std::max(most, std::abs(double{rows[first + r]}));
    for (int byte = 0; byte < 256 && (byte == 0 || scale * 127 / 16 < most); ++byte) {
      scale = std::ldexp(1 + byte % 16 / 16.0, byte / 16 - 11);
    }
    for (int r = 0; r < rank; ++r) {
      const double step = std::nearbyint(rows[first + r] / scale * 16);
      coded.push_back(static_cast<float>(std::clamp(step, -128.0, 127.0) / 16 * scale));
    }
  }
  return coded;
}

std::vector<float> SplitProblem::Rows(int n, int rank) {
  std::vector<float> rows(static_cast<size_t>(n) * rank);
  for (int i = 0; i < n * rank; ++i) {
    const double size = head.has_token_scales ? std::exp2(i / rank % 5 - 2) : 1;
    const double x = size * random_.Normal() * (random_.Below(50) == 0 ? 4 : 1);
    rows[i] = Rounded(x);
  }
  return rows;
}

void SplitProblem::PutCodedRows(int token, int n_rows, std::byte* block) {
  const int64_t element = SizeOf(shape.row_type);
  std::vector<std::byte> rows[2];
  for (const bool is_key : {true, false}) {
    const int rank = is_key ? shape.rank_k : shape.rank_v;
    std::vector<std::byte>& to = rows[is_key ? 0 : 1];
    to.resize(n_rows * rank * element);
    for (int i = 0; i < n_rows * rank; ++i) {
      const float x = (is_key ? given_k_ : given_v_)[token * rank + i];
      const Bf16 rounded = ToBf16(x);
      std::memcpy(&to[i * element],
                  shape.row_type == DType::kF32 ? static_cast<const void*>(&x) : &rounded, element);
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

Buffer SplitProblem::PlainBlock(int b, int n) {
  Buffer block = Buffer::Allocate(OpenBlockBytes(format.codec, shape), "test").value();
  std::memset(block.data(), 0, block.n_bytes());
  if (head.has_coded_rows) {
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

}  // namespace kvlathe
