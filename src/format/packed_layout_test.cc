// Sizes of sealed runs against sums made by hand, and where codes lie.
#include "format/packed_layout.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <iostream>
#include <string>
#include <vector>

namespace kvlathe {
namespace {

PackedSide Token(int bits, int group) { return {bits, ScaleSharing::kToken, group, false}; }
PackedSide Channel(int bits, int group) { return {bits, ScaleSharing::kChannel, group, false}; }
PackedSide LayerToken(int bits) { return {bits, ScaleSharing::kTokenLayer, 0, false}; }

PackedFormat Uniform(const PackedSide& k, const PackedSide& v, int prompt_rank = 0,
                     int decode_rank = 0, double share = 0) {
  return {UniformCodec{k, v}, prompt_rank, decode_rank, share};
}
PackedFormat Kivi(int bits, int group) { return Uniform(Channel(bits, group), Token(bits, group)); }
PackedFormat Kcvt(int bits) { return Uniform(Channel(bits, 0), LayerToken(bits)); }

// A run of a layer whose heads are equal.
PackedShape Shape(const PackedFormat& format, int n_heads, int rank, int n_blocks,
                  bool is_prompt = true) {
  return MakePackedShape(format, {.rank_k = rank, .rank_v = rank}, {},
                         {.n_kv_heads = n_heads,
                          .layer_rank_v = n_heads * rank,
                          .n_blocks = n_blocks,
                          .is_prompt = is_prompt});
}

int64_t LayerBytes(const PackedShape& s) {
  return s.n_kv_heads * (s.n_blocks * PackedBlockBytes(s) + RunRecordBytes(s)) +
         LayerRecordBytes(s);
}

// Bits for an element of K or V, on average.
double BitsPerElement(const PackedShape& s) {
  const double n = 2.0 * s.n_kv_heads * s.n_tokens() * s.rank_k;
  return 8 * static_cast<double>(LayerBytes(s)) / n;
}

TEST(PackedLayoutTest, BytesOfABlock) {
  // KIVI, 2 bits: codes of 64 x 128 elements twice, and 2 scales and minima per token of V.
  PackedShape s = Shape(Kivi(2, 64), 1, 128, 1);
  EXPECT_EQ(PackedBlockBytes(s), 2 * 2048 + 2 * 2 * 2 * 64);
  EXPECT_EQ(RunRecordBytes(s), 2 * 2 * 128);
  EXPECT_EQ(LayerRecordBytes(s), 0);

  // KVarN, 4 and 2 bits, 3 blocks: in a block what balances tokens of K, and scales and minima of V
  // per token; in the record, of two tiles, scales and minima of K and what balances channels of V.
  s = Shape({BalancedCodec{4, 2, 128}}, 1, 64, 3);
  EXPECT_EQ(PackedBlockBytes(s), 64 * 64 * (4 + 2) / 8 + 2 * 64 + 2 * 2 * 64);
  EXPECT_EQ(KeyBalanceOffset(s), 64 * 64 * (4 + 2) / 8);
  EXPECT_EQ(RunRecordBytes(s), 2 * (2 * 2 * 64) + 2 * (2 * 64));
  EXPECT_EQ(ValueBalanceOffset(s), 2 * (2 * 2 * 64));
  EXPECT_EQ(LayerRecordBytes(s), 0);
  // A whole tile takes what that of the publication takes.
  s = Shape({BalancedCodec{4, 2, 128}}, 1, 128, 2);
  EXPECT_EQ(LayerBytes(s), 128 * 128 * (4 + 2) / 8 + (2 * 128 + 128) * 2 + (128 + 2 * 128) * 2);

  // KCVT, 4 bits, 8 blocks of 4 heads: scales of K per channel and of V per token, once per layer.
  s = Shape(Kcvt(4), 4, 128, 8);
  EXPECT_EQ(PackedBlockBytes(s), 2 * 4096);
  EXPECT_EQ(RunRecordBytes(s), 2 * 2 * 128);
  EXPECT_EQ(LayerRecordBytes(s), 2 * 2 * 512);

  // int8 without minima, one scale per token and head.
  const PackedSide int8 = {8, ScaleSharing::kToken, 0, true};
  EXPECT_EQ(PackedBlockBytes(Shape(Uniform(int8, int8), 1, 80, 1)), 2 * 64 * 80 + 2 * 2 * 64);

  // 3 bits, groups of 48, 48 and 32 channels.
  EXPECT_EQ(PackedBlockBytes(Shape(Uniform(Token(3, 48), Token(3, 48)), 1, 128, 1)),
            2 * 64 * 128 * 3 / 8 + 2 * 3 * 2 * 2 * 64);

  // GEAR: factors of rank 4 in the prompt and 2 after it; 5 channel values at either end of 512
  // tokens, 5 of 512 channels at either end of a token.
  s = Shape(Uniform(Channel(2, 64), Token(2, 64), 4, 2, 0.02), 4, 128, 8);
  // A block counts the exact entries of its tokens of K and of its channels of V.
  EXPECT_EQ(PackedBlockBytes(s), 2 * 2048 + 512 + 2 * 4 * 64 * 2 + 64 + 128);
  EXPECT_EQ(RunRecordBytes(s), 8 * 512 + 2 * 4 * 128 * 2 + 4 * 8 + 10 * 128 * 3);
  EXPECT_EQ(LayerRecordBytes(s), 4 * 8 * 4 + 10 * 512 * 3);
  s.is_prompt = false;
  s.n_blocks = 1;  // no exact entries of K: floor(64 * 0.02 / 2) = 0
  EXPECT_EQ(PackedBlockBytes(s), 2 * 2048 + 512 + 2 * 2 * 64 * 2 + 128);
  EXPECT_EQ(RunRecordBytes(s), 512 + 2 * 2 * 128 * 2);
  EXPECT_EQ(LayerRecordBytes(s), 4 * 4 + 10 * 64 * 3);

  // 256 entries of one token do not fit a byte.
  s = Shape(Uniform(Channel(2, 64), Token(2, 64), 0, 0, 0.04), 2, 256, 1);
  EXPECT_EQ(PackedBlockBytes(s), 2 * 4096 + 1024 + 2 * 64 + 256);
}

// Bits per element (docs/quantization.md, Bytes).
TEST(PackedLayoutTest, BitsOfMethods) {
  constexpr double kGroup = 32.0;  // bits of a scale and a minimum
  EXPECT_EQ(BitsPerElement(Shape(Kivi(2, 64), 8, 128, 8)), 2 + kGroup / 64);
  EXPECT_EQ(BitsPerElement(Shape(Kivi(2, 32), 8, 128, 1)), 3);
  EXPECT_EQ(BitsPerElement(Shape(Kivi(4, 64), 2, 64, 3)), 4.5);
  EXPECT_EQ(BitsPerElement(Shape(Uniform(Token(4, 64), Token(4, 64)), 8, 128, 8)), 4.5);
  // K 4 + 32/n, V 4 + 32/(G d)
  EXPECT_EQ(BitsPerElement(Shape(Kcvt(4), 8, 128, 8)), 4 + (kGroup / 512 + kGroup / 1024) / 2);
  // 16 rho (1/d + 1/n)
  PackedFormat gear_l = Kivi(2, 64);
  gear_l.prompt_rank = 4, gear_l.decode_rank = 2;
  EXPECT_EQ(BitsPerElement(Shape(gear_l, 8, 128, 8)), 2.5 + 64 * (1.0 / 128 + 1.0 / 512));
  EXPECT_EQ(BitsPerElement(Shape(gear_l, 8, 128, 1, false)), 2.5 + 32 * (1.0 / 128 + 1.0 / 64));
  // 24 bits for an exact entry: 10 of 512 in a channel of K, 20 of 1024 in a token of V; and a byte
  // for a token of K and a channel of V, and where the lists of a block end.
  PackedFormat outliers = Kivi(2, 64);
  outliers.sparse_share = 0.02;
  EXPECT_EQ(BitsPerElement(Shape(outliers, 8, 128, 8)), 2.5 + 24 * (10.0 / 512 + 20.0 / 1024) / 2 +
                                                            8 * (1.0 / 64 + 1.0 / 128) / 2 +
                                                            kGroup / (64 * 128));
}

// A size in the tables of the GEAR paper, and what the format takes.
struct GearSize {
  std::string model;
  int n_heads;
  int bits;
  int n_prompt;
  double convention;  // computed by hand
  double printed;     // in the paper's Table 9
};

// 100 b / 16 + 200 / g + 100 n_b / N with g = n_b = 64 (KIVI and groups per token), and
// 100 b / 16 + 100 (1 / N + 1 / (G d)) + 100 * 20 / N (KCVT).
double KiviConvention(int bits, int n) { return 100.0 * bits / 16 + 200.0 / 64 + 6400.0 / n; }
double KcvtConvention(int bits, int n, int layer_rank) {
  return 100.0 * bits / 16 + 100 * (1.0 / n + 1.0 / layer_rank) + 2000.0 / n;
}

// Percent of F16 for n tokens: whole blocks sealed as one run, the rest in an open block of F16.
double ExactPercent(const PackedFormat& format, int n_heads, int n) {
  const double row_bytes = 2.0 * 2 * n_heads * 128;
  const double open = n % kBlockSize * row_bytes;
  const double sealed =
      static_cast<double>(LayerBytes(Shape(format, n_heads, 128, n / kBlockSize)));
  return 100 * (sealed + open) / (n * row_bytes);
}

TEST(PackedLayoutTest, SizesOfTheGearPaper) {
  const std::vector<GearSize> kivi = {
      {"13B GSM8k", 40, 2, 900, 22.74, 22.7}, {"13B AQuA", 40, 2, 1304, 20.53, 20.5},
      {"13B BBH", 40, 2, 1021, 21.89, 21.9},  {"13B GSM8k", 40, 4, 900, 35.24, 35.2},
      {"13B AQuA", 40, 4, 1304, 33.03, 33.0}, {"13B BBH", 40, 4, 1021, 34.39, 34.4}};
  const std::vector<GearSize> kcvt = {{"13B GSM8k", 40, 4, 900, 27.35, 27.5},
                                      {"13B AQuA", 40, 4, 1304, 26.63, 26.7},
                                      {"13B BBH", 40, 4, 1021, 27.08, 27.2}};
  std::cout << fmt::format("{:10} {:12} {:>8} {:>10} {:>8}\n", "format", "model, text", "printed",
                           "convention", "exact");
  const auto check = [](const std::string& name, const GearSize& size, double convention,
                        double tolerance, double exact) {
    EXPECT_NEAR(convention, size.convention, 0.01) << name << " " << size.model;
    EXPECT_NEAR(convention, size.printed, tolerance) << name << " " << size.model;
    std::cout << fmt::format("{:10} {:12} {:8.1f} {:10.2f} {:8.2f}\n", name, size.model,
                             size.printed, convention, exact);
  };
  for (const GearSize& size : kivi) {
    check(fmt::format("KIVI-{}", size.bits), size, KiviConvention(size.bits, size.n_prompt), 0.05,
          ExactPercent(Kivi(size.bits, 64), size.n_heads, size.n_prompt));
  }
  for (const GearSize& size : kcvt) {
    check(fmt::format("KCVT-{}", size.bits), size,
          KcvtConvention(size.bits, size.n_prompt, size.n_heads * 128), 0.16,
          ExactPercent(Kcvt(size.bits), size.n_heads, size.n_prompt));
  }
}

// The same tables in exact bytes, N = 900: 896 tokens sealed, 4 open.
TEST(PackedLayoutTest, ExactSizesBesideThem) {
  const auto percent = [](double bits) { return (896 * bits / 16 * 100 + 400) / 900; };
  const double factors = 64 * (1.0 / 128 + 1.0 / 896);
  // 8 of 896 and 51 of 5120 at either end.
  const double entries =
      24 * (16.0 / 896 + 102.0 / 5120) / 2 + 8 * (1.0 / 64 + 1.0 / 128) / 2 + 32.0 / (64 * 128);
  const double kcvt_scales = (32.0 / 896 + 32.0 / 5120) / 2;
  const auto with = [](PackedFormat format, int prompt_rank, double share) {
    format.prompt_rank = prompt_rank;
    format.sparse_share = share;
    return format;
  };
  struct Row {
    std::string name;
    PackedFormat format;
    double bits;
    double percent;  // by hand
  };
  const std::vector<Row> rows = {
      {"KIVI-2", Kivi(2, 64), 2.5, 16.00},
      {"GEAR-L(KIVI)-2", with(Kivi(2, 64), 4, 0), 2.5 + factors, 19.56},
      {"outliers KIVI-2", with(Kivi(2, 64), 0, 0.02), 2.5 + entries, 19.43},
      {"GEAR(KIVI)-2", with(Kivi(2, 64), 4, 0.02), 2.5 + factors + entries, 22.98},
      {"KIVI-4", Kivi(4, 64), 4.5, 28.44},
      {"KCVT-4", Kcvt(4), 4 + kcvt_scales, 25.46},
      {"GEAR-L(KCVT)-4", with(Kcvt(4), 4, 0), 4 + kcvt_scales + factors, 29.02},
      {"GEAR(KCVT)-4", with(Kcvt(4), 4, 0.02), 4 + kcvt_scales + factors + entries, 32.45}};
  for (const Row& row : rows) {
    const double exact = ExactPercent(row.format, 40, 900);
    EXPECT_NEAR(exact, percent(row.bits), 1e-9) << row.name;
    EXPECT_NEAR(exact, row.percent, 0.01) << row.name;
    std::cout << fmt::format("{:16} {:6.2f} %\n", row.name, exact);
  }
}

// Every code has a place of its own, within the bytes there are, and is read back.
TEST(PackedLayoutTest, CodesAreReadBack) {
  for (int bits : {2, 3, 4, 8}) {
    for (int rank : {16, 48, 80, 128, 256}) {
      for (bool is_key : {true, false}) {
        const int64_t n_bytes = CodeBytes(bits, rank);
        std::vector<std::byte> codes(n_bytes, std::byte{0xa5});  // what was there goes
        const auto place = [&](int t, int c) {
          return is_key ? KeyCodePlace(bits, t, c) : ValueCodePlace(bits, rank, t, c);
        };
        const auto code = [&](int t, int c) {
          return static_cast<uint8_t>((t * 7 + c * 13 + t * c) % (1 << bits));
        };
        for (int t = 0; t < kBlockSize; ++t) {
          for (int c = 0; c < rank; ++c) {
            ASSERT_LE(place(t, c).group_offset + GroupBytes(bits), n_bytes);
            WriteCode(codes.data(), bits, place(t, c), code(t, c));
          }
        }
        for (int t = 0; t < kBlockSize; ++t) {
          for (int c = 0; c < rank; ++c) {
            ASSERT_EQ(ReadCode(codes.data(), bits, place(t, c)), code(t, c))
                << "bits " << bits << " rank " << rank << " token " << t << " channel " << c;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvlathe
