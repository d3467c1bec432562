// Every instruction set against SealRef, byte for byte; the low-rank factors are in
// seal_lowrank_test.cc.
#include "cpu/kernels/seal/seal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cpu/kernels/testing/seal_test_layer.h"

namespace kvlathe {
namespace {

void ExpectSameBytes(const RefObject& want, const std::vector<std::byte>& got,
                     const std::string& what) {
  ASSERT_EQ(want.bytes.size(), got.size()) << what;
  for (int64_t i = 0; i < static_cast<int64_t>(got.size()); ++i) {
    if (i >= want.factors_begin && i < want.factors_end) continue;
    ASSERT_EQ(static_cast<int>(want.bytes[i]), static_cast<int>(got[i]))
        << what << ", byte " << i << " of " << got.size();
  }
}

void ExpectSealed(const RefSealed& want, const Layer& layer) {
  for (int h = 0; h < layer.n_heads(); ++h) {
    const std::string head = fmt::format("head {}", h);
    for (int b = 0; b < layer.n_blocks; ++b) {
      ExpectSameBytes(want.heads[h].blocks[b], layer.packed[h * layer.n_blocks + b],
                      fmt::format("{}, block {}", head, b));
    }
    ExpectSameBytes(want.heads[h].record, layer.records[h], head + ", record");
  }
  ExpectSameBytes(want.layer_record, layer.layer_record, "layer record");
}

std::vector<Named> FormatsOfCpus() {
  std::vector<Named> formats = Formats();
  for (const Named& sphere : SphereFormats()) formats.push_back(sphere);
  return formats;
}

class SealTest : public testing::TestWithParam<Isa> {};

// The literal reference takes minutes under a sanitizer: every third of the data then, others for
// other formats.
#if defined(__SANITIZE_ADDRESS__)
constexpr int kDataStep = 3;
#else
constexpr int kDataStep = 1;
#endif

TEST_P(SealTest, BytesAreThoseOfTheDefinition) {
  ThreadPool pool(3);
  Random random(1);
  int first_data = 0;
  for (const Named& named : FormatsOfCpus()) {
    for (DType row_type : {DType::kBf16, DType::kF32}) {
      Sealer sealer(named.format, row_type, 3, &pool, GetParam());
      first_data = (first_data + 1) % kDataStep;
      for (int data = first_data; data < static_cast<int>(Data::kLast); data += kDataStep) {
        const auto& ranks = Heads()[random.Below(Heads().size())];
        const int n_blocks = 1 + static_cast<int>(random.Below(random.Below(3) == 0 ? 8 : 3));
        const bool is_prompt = random.Below(2) == 0;
        SCOPED_TRACE(fmt::format("{} {} data {} blocks {} heads {}", named.name,
                                 DTypeName(row_type), data, n_blocks, ranks.size()));
        Layer layer(named.format, row_type,
                    DrawHeads(static_cast<Data>(data), ranks, n_blocks, row_type, random.Next()),
                    n_blocks, is_prompt);
        const SealJob job = layer.Job(7);
        ASSERT_TRUE(sealer.Run({&job, 1}).ok());
        ExpectSealed(layer.Ref(), layer);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(SealTest, SharesOfExactEntries) {
  ThreadPool pool(2);
  for (double share : {0.01, 0.02, 0.05, 0.1, 0.9}) {
    for (Data data : {Data::kTypical, Data::kTies, Data::kConstant, Data::kZero}) {
      for (DType row_type : {DType::kBf16, DType::kF32}) {
        for (const PackedFormat& format :
             {Uniform(Channel(4, 64), LayerToken(4), 0, 0, share), Codebooks(3, share)}) {
          SCOPED_TRACE(fmt::format("share {} data {} codebook {}", share, static_cast<int>(data),
                                   KeySide(format.codec).has_codebook));
          Layer layer(format, row_type, DrawHeads(data, Heads()[1], 4, row_type, 5), 4, true);
          Sealer sealer(format, row_type, 1, &pool, GetParam());
          const SealJob job = layer.Job(7);
          ASSERT_TRUE(sealer.Run({&job, 1}).ok());
          ExpectSealed(layer.Ref(), layer);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Up to 256 entries of one token and 64 of one channel.
TEST_P(SealTest, ExactEntriesOfOneLane) {
  ThreadPool pool(2);
  const std::vector<std::vector<Ranks>> heads = {
      {{256, 256}}, {{16, 96}, {240, 16}}, {{80, 48}, {96, 128}}};
  for (const PackedFormat& format :
       {Uniform(Channel(2, 64), Token(2, 64), 2, 2, 0.05),
        Uniform(Token(8, 0, true), LayerToken(3), 0, 0, 0.04), Codebooks(3, 0.04, 1)}) {
    for (size_t i = 0; i < heads.size(); ++i) {
      for (int n_blocks : {1, 2, 3}) {
        SCOPED_TRACE(fmt::format("codebook {} heads {} blocks {}",
                                 KeySide(format.codec).has_codebook, i, n_blocks));
        const DType row_type = n_blocks == 2 ? DType::kF32 : DType::kBf16;
        Layer layer(format, row_type, DrawHeads(Data::kOneLane, heads[i], n_blocks, row_type, 5),
                    n_blocks, true);
        Sealer sealer(format, row_type, 1, &pool, GetParam());
        const SealJob job = layer.Job(7);
        ASSERT_TRUE(sealer.Run({&job, 1}).ok());
        ExpectSealed(layer.Ref(), layer);
        if (HasFatalFailure()) return;
        const PackedShape s = layer.ShapeOf(0);
        if (i > 0 || KeySide(format.codec).has_codebook || s.key_outliers() == 0) continue;
        uint16_t count;
        std::memcpy(&count, layer.packed[0].data() + KeyCountOffset(s) + 2 * 5, 2);
        EXPECT_EQ(count, 256);
      }
    }
  }
}

PackedSide Clipped(PackedSide side, double share) {
  side.clip = share;
  return side;
}

// Ranges of clipped rows, whose groups are the row or parts of it, beside exact entries, which do
// not count, and repairs.
TEST_P(SealTest, ClippedRows) {
  ThreadPool pool(2);
  for (const PackedFormat& format :
       {Uniform(Clipped(Token(2, 128), 0.96), Clipped(Token(2, 128), 0.92)),
        Uniform(Clipped(Token(3, 16), 0.5), Token(4, 48)),
        Uniform(Clipped(Token(2, 0), 0.999), Clipped(Token(8, 32), 0.01), 2, 2, 0.05)}) {
    for (int data = 0; data < static_cast<int>(Data::kLast); ++data) {
      for (DType row_type : {DType::kBf16, DType::kF32}) {
        SCOPED_TRACE(fmt::format("bits {} data {} rows {}", KeySide(format.codec).bits, data,
                                 DTypeName(row_type)));
        const auto& ranks = Heads()[data % Heads().size()];
        Layer layer(format, row_type, DrawHeads(static_cast<Data>(data), ranks, 2, row_type, 5), 2,
                    true);
        Sealer sealer(format, row_type, 1, &pool, GetParam());
        const SealJob job = layer.Job(7);
        ASSERT_TRUE(sealer.Run({&job, 1}).ok());
        ExpectSealed(layer.Ref(), layer);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Codes with signs: those of the levels are codes of fewer bits, and a sign is that of the residual
// under its rotation, unless the residual is so near 0 that rounding decides.
TEST_P(SealTest, SignsAreThoseOfResiduals) {
  ThreadPool pool(2);
  for (int bits = 2; bits <= 4; ++bits) {
    constexpr int kRank = 64;
    const PackedFormat format = {SphereCodec{.key_bits = bits, .keys_have_signs = true}};
    Layer layer(format, DType::kF32, DrawHeads(Data::kTypical, {{kRank, 32}}, 2, DType::kF32, 8), 2,
                true);
    Sealer sealer(format, DType::kF32, 1, &pool, GetParam());
    const SealJob job = layer.Job(7);
    ASSERT_TRUE(sealer.Run({&job, 1}).ok());
    const PackedShape s = layer.ShapeOf(0);
    const NormalTable& table = kNormalTables[bits - 2];
    int n_sure = 0;
    for (int token = 0; token < 2 * kBlockSize; ++token) {
      const std::byte* const block = layer.packed[token / kBlockSize].data();
      const int t = token % kBlockSize;
      const float* const key = &layer.heads[0].k[token * kRank];
      uint16_t stored[2];
      for (int part = 0; part < 2; ++part) {
        std::memcpy(&stored[part],
                    block + KeyTokenScaleOffset(s) + int64_t{2} * (part * kBlockSize + t), 2);
      }
      const double scale = F16ValueRef(stored[0]) * table.table.unit;
      double squares = 0, lost = 0;
      std::vector<double> residual(kRank);
      std::vector<int> codes(kRank);
      for (int c = 0; c < kRank; ++c) {
        codes[c] = ReadCode(block, bits, KeyCodePlace(bits, t, c));
        squares += static_cast<double>(key[c]) * key[c];
        residual[c] = key[c] - table.table.numbers[codes[c] % (1 << (bits - 1))] * scale;
        lost += residual[c] * residual[c];
      }
      EXPECT_NEAR(scale, std::sqrt(squares / kRank) * table.step, scale * 0x1p-10);
      EXPECT_NEAR(F16ValueRef(stored[1]), std::sqrt(lost * 1.5707963 / kRank),
                  std::sqrt(lost) * 0x1p-10);
      for (int i = 0; i < kRank; ++i) {
        double turned = 0;
        for (int j = 0; j < kRank; ++j) {
          const double x = residual[j] * SignOfChannel(SphereRotation::kOfResiduals, j);
          turned += __builtin_popcount(i & j) % 2 == 1 ? -x : x;
        }
        if (std::fabs(turned) < 1e-4 * std::sqrt(lost)) continue;
        ++n_sure;
        EXPECT_EQ(codes[i] >> (bits - 1), turned < 0 ? 1 : 0) << bits << " " << token << " " << i;
      }
    }
    EXPECT_GT(n_sure, 2 * kBlockSize * kRank * 9 / 10);
  }
}

struct ErrorStats {
  double max = 0, mean = 0, relative = 0;  // the last: Frobenius
};
ErrorStats Compare(const std::vector<float>& x, const std::vector<float>& y) {
  ErrorStats stats;
  double error_squares = 0, squares = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = std::fabs(static_cast<double>(x[i]) - y[i]);
    stats.max = std::max(stats.max, error);
    stats.mean += error / static_cast<double>(x.size());
    error_squares += error * error;
    squares += static_cast<double>(x[i]) * x[i];
  }
  stats.relative = std::sqrt(error_squares / squares);
  return stats;
}

// Codes reach to the range of the other elements: what is far beyond is there by its difference.
TEST_P(SealTest, ExactEntriesAreNear) {
  ThreadPool pool(2);
  for (const Named& named : Formats()) {
    if (named.format.sparse_share == 0) continue;
    for (DType row_type : {DType::kBf16, DType::kF32}) {
      SCOPED_TRACE(named.name);
      Layer layer(named.format, row_type, DrawHeads(Data::kOneLane, {{128, 128}}, 4, row_type, 5),
                  4, true);
      Sealer sealer(named.format, row_type, 1, &pool, GetParam());
      const SealJob job = layer.Job(7);
      ASSERT_TRUE(sealer.Run({&job, 1}).ok());
      EXPECT_LT(Compare(layer.heads[0].k, ReadKeysRef(layer.Objects(0))).max, 10);
      EXPECT_LT(Compare(layer.heads[0].v, ReadValuesRef(layer.Objects(0))).max, 10);
    }
  }
}

// Several layers at once, by a sealer that has sealed larger and smaller runs before.
TEST_P(SealTest, JobsDoNotDependOnEachOther) {
  const PackedFormat format = Formats().back().format;
  ThreadPool pool(3);
  Sealer sealer(format, DType::kBf16, 3, &pool, GetParam());
  std::vector<Layer> layers;
  for (int i = 0; i < 4; ++i) {
    const int n_blocks = i == 1 ? 6 : 1 + i;
    layers.emplace_back(format, DType::kBf16,
                        DrawHeads(Data::kTypical, Heads()[i], n_blocks, DType::kBf16, 100 + i),
                        n_blocks, i != 2);
  }
  std::vector<SealJob> jobs(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) jobs[i] = layers[i].Job(11);
  ASSERT_TRUE(sealer.Run(jobs).ok());
  for (Layer& layer : layers) {
    ExpectSealed(layer.Ref(), layer);
    Layer alone = layer;
    alone.Clear();
    const SealJob job = alone.Job(11);
    ASSERT_TRUE(sealer.Run({&job, 1}).ok());
    EXPECT_TRUE(alone == layer);
  }
}

TEST_P(SealTest, SameBytesForAnyWorkersAndInstructionSet) {
  for (const char* name :
       {"gear_kivi2", "gear_kcvt4", "gear_token3", "kvquant_gear", "sphere2_3"}) {
    for (const Named& named : FormatsOfCpus()) {
      if (named.name != name) continue;
      const auto heads = DrawHeads(Data::kTypical, Heads()[1], 5, DType::kF32, 3);
      std::optional<Layer> first;
      for (int n_workers : {1, 2, 5}) {
        for (Isa isa : {Isa::kScalar, GetParam()}) {
          ThreadPool pool(n_workers);
          Sealer sealer(named.format, DType::kF32, 3, &pool, isa);
          Layer layer(named.format, DType::kF32, heads, 5, true);
          const SealJob job = layer.Job(9);
          ASSERT_TRUE(sealer.Run({&job, 1}).ok());
          if (!first) first = layer;
          EXPECT_TRUE(layer == *first) << name << " " << n_workers << " " << IsaName(isa);
        }
      }
    }
  }
}

TEST_P(SealTest, RefusesWhatIsNotFinite) {
  ThreadPool pool(2);
  const float inf = std::numeric_limits<float>::infinity();
  for (const char* name :
       {"kivi2_g64", "kcvt4", "gear_kcvt4", "gear_token3", "kvquant2", "kvquant4", "sphere4"}) {
    for (const Named& named : FormatsOfCpus()) {
      if (named.name != name) continue;
      for (DType row_type : {DType::kBf16, DType::kF32}) {
        for (float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN(), -std::nanf("")}) {
          for (bool is_key : {true, false}) {
            auto heads = DrawHeads(Data::kTypical, Heads()[1], 3, row_type, 3);
            auto& rows = is_key ? heads[2].k : heads[1].v;
            rows[rows.size() * 2 / 3] = bad;
            Layer layer(named.format, row_type, heads, 3, true);
            Sealer sealer(named.format, row_type, 2, &pool, GetParam());
            SealJob job = layer.Job(9);
            const Status status = sealer.Run({&job, 1});
            EXPECT_EQ(status.code(), StatusCode::kDataLoss);
            EXPECT_NE(MessageOf(status).find(is_key ? "K of KV head 2" : "V of KV head 1"),
                      std::string::npos)
                << MessageOf(status);
            // It goes on with good rows.
            Layer good(named.format, row_type,
                       DrawHeads(Data::kTypical, Heads()[1], 3, row_type, 3), 3, true);
            job = good.Job(9);
            EXPECT_TRUE(sealer.Run({&job, 1}).ok());
          }
        }
      }
    }
  }
}

TEST_P(SealTest, ErrorsOfFormats) {
  ThreadPool pool(2);
  const auto heads = DrawHeads(Data::kTypical, {{128, 128}, {128, 128}}, 8, DType::kBf16, 2);
  std::cout << fmt::format("{:16} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n", "format", "bits",
                           "K max", "K mean", "K rel", "V max", "V mean", "V rel");
  for (const Named& named : Formats()) {
    if (KeySide(named.format.codec).has_codebook)
      continue;  // the drawn ranges are not those of the rows
    Layer layer(named.format, DType::kBf16, heads, 8, true);
    Sealer sealer(named.format, DType::kBf16, 3, &pool, GetParam());
    const SealJob job = layer.Job(5);
    ASSERT_TRUE(sealer.Run({&job, 1}).ok());
    const ErrorStats k = Compare(heads[1].k, ReadKeysRef(layer.Objects(1)));
    const ErrorStats v = Compare(heads[1].v, ReadValuesRef(layer.Objects(1)));
    const PackedShape s = layer.ShapeOf(0);
    const double bytes = static_cast<double>(2 * 8 * PackedBlockBytes(s) + 2 * RunRecordBytes(s) +
                                             LayerRecordBytes(s));
    std::cout << fmt::format("{:16} {:6.3f} {:8.4f} {:8.4f} {:8.4f} {:8.4f} {:8.4f} {:8.4f}\n",
                             named.name, bytes * 8 / (2 * 2 * 512 * 128), k.max, k.mean, k.relative,
                             v.max, v.mean, v.relative);
    // A uniform error within the steps of a range of 12 standard deviations: tokens of K have
    // outliers that wide.
    const auto bound = [](const PackedSide& side) { return 12 * 0.3 / ((1 << side.bits) - 1); };
    EXPECT_LT(k.relative, bound(KeySide(named.format.codec)));
    EXPECT_LT(v.relative, bound(ValueSide(named.format.codec)));
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, SealTest, testing::ValuesIn(AvailableIsas()),
                         [](const auto& suite) { return std::string(IsaName(suite.param)); });

}  // namespace
}  // namespace kvlathe
