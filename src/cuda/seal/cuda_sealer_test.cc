// Runs that are sealed on a GPU against those of the CPU, byte for byte.
#include "cuda/seal/cuda_sealer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cpu/kernels/testing/seal_test_layer.h"
#include "cuda/testing/seal_on_device.h"

namespace kvlathe {
namespace {

// The layer's run as a device gets it. What is sealed goes into the layer.
RunOnDevice OnDevice(Layer* layer, int sequence) {
  RunOnDevice run;
  for (int h = 0; h < layer->n_heads(); ++h) {
    RunOnDevice::Head head = {
        .shape = {layer->heads[h].rank_k, layer->heads[h].rank_v, layer->row_type},
        .storage = {},
        .blocks = {},
        .packed = {},
        .record = layer->records[h].empty() ? nullptr : &layer->records[h]};
    for (int b = 0; b < layer->n_blocks; ++b) {
      head.blocks.push_back(layer->plain[h * layer->n_blocks + b]);
      head.packed.push_back(&layer->packed[h * layer->n_blocks + b]);
    }
    run.heads.push_back(std::move(head));
  }
  run.layer_record = layer->layer_record.empty() ? nullptr : &layer->layer_record;
  run.plan.sequence = sequence;
  run.plan.n_blocks = layer->n_blocks;
  run.plan.is_prompt = layer->is_prompt;
  run.plan.seed = 7;
  return run;
}

// `rotation` is that of all runs, and may be none.
std::vector<StepReport::Failure> SealLayers(SealDevice* device, const std::vector<Layer*>& layers,
                                            const KeyRotationId& rotation = {}) {
  std::vector<RunOnDevice> runs;
  std::vector<Resident<CodebooksId>> codebooks;
  for (size_t i = 0; i < layers.size(); ++i) {
    runs.push_back(OnDevice(layers[i], static_cast<int>(i)));
    codebooks.emplace_back(device->residents(),
                           device->residents()->AddCodebooks(layers[i]->codebooks));
    runs.back().plan.codebooks = codebooks.back().id();
    runs.back().plan.rotation = rotation;
  }
  std::vector<RunOnDevice*> pointers;
  for (RunOnDevice& run : runs) pointers.push_back(&run);
  return SealOnDevice(device,
                      {.layer_idx = 3,
                       .format = layers[0]->format,
                       .row_type = layers[0]->row_type,
                       .power_loops = 3},
                      pointers);
}

Status SealOnCpu(Layer* layer) {
  ThreadPool pool(1);
  Sealer sealer(layer->format, layer->row_type, 3, &pool, AvailableIsas().back());
  const SealJob job = layer->Job(7);
  return sealer.Run({&job, 1});
}

// Says where the first byte differs.
std::string DifferenceOf(const std::vector<std::byte>& want, const std::vector<std::byte>& got) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] != got[i]) return fmt::format("byte {} of {}", i, want.size());
  }
  return "";
}
void ExpectSame(const Layer& want, const Layer& got) {
  for (size_t i = 0; i < want.packed.size(); ++i) {
    ASSERT_EQ(DifferenceOf(want.packed[i], got.packed[i]), "") << "packed block " << i;
  }
  for (size_t h = 0; h < want.records.size(); ++h) {
    ASSERT_EQ(DifferenceOf(want.records[h], got.records[h]), "") << "record of head " << h;
  }
  ASSERT_EQ(DifferenceOf(want.layer_record, got.layer_record), "") << "layer record";
}

// What is repaired takes longer under emulation.
bool IsRepaired(const PackedFormat& format) {
  return format.sparse_share > 0 || format.prompt_rank > 0;
}

TEST(CudaSealerTest, ClippedRowsAreSealedOnTheCpu) {
  SealDevice device;
  CudaSealer sealer(device.stream(), device.memory(), device.residents());
  PackedSide clipped = Token(2, 64);
  clipped.clip = 0.9;
  EXPECT_TRUE(sealer.Takes({.format = Uniform(Token(2, 64), Token(2, 64))}));
  EXPECT_FALSE(sealer.Takes({.format = Uniform(clipped, Token(2, 64))}));
  EXPECT_FALSE(sealer.Takes({.format = Uniform(Token(2, 64), clipped)}));
}

// Whether there are kernels; what balances tiles, the CPU computes.
bool IsOfKernels(const PackedFormat& format) {
  return !std::holds_alternative<BalancedCodec>(format.codec);
}

TEST(CudaSealerTest, LeavesToTheHostWhatItHasNoKernelFor) {
  SealDevice device;
  const CudaSealer sealer(device.stream(), device.memory(), device.residents());
  for (const Named& named : Formats()) {
    SealBatch batch;
    batch.format = named.format;
    EXPECT_EQ(sealer.Takes(batch), IsOfKernels(named.format)) << named.name;
  }
}

TEST(CudaSealerTest, BytesAreThoseOfTheCpu) {
  SealDevice device;
  Random random(1);
  int first_data = 0;
  for (const Named& named : Formats()) {
    if (!IsOfKernels(named.format)) continue;
    const bool is_repaired = IsRepaired(named.format);
    const int step = is_repaired ? 4 : 2;
    first_data = (first_data + 1) % step;
    for (int data = first_data; data < static_cast<int>(Data::kLast); data += step) {
      const DType row_type = random.Below(2) == 0 ? DType::kBf16 : DType::kF32;
      const auto& ranks = Heads()[is_repaired ? 3 : 1 + random.Below(Heads().size() - 1)];
      const int n_blocks = 1 + static_cast<int>(random.Below(data == 0 ? 5 : 2));
      SCOPED_TRACE(fmt::format("{} {} data {} blocks {} heads {}", named.name, DTypeName(row_type),
                               data, n_blocks, ranks.size()));
      Layer want(named.format, row_type,
                 DrawHeads(static_cast<Data>(data), ranks, n_blocks, row_type, random.Next()),
                 n_blocks, random.Below(2) == 0);
      Layer got = want;
      ASSERT_TRUE(SealOnCpu(&want).ok());
      EXPECT_TRUE(SealLayers(&device, {&got}).empty());
      ExpectSame(want, got);
      if (HasFatalFailure()) return;
    }
  }
}

// Up to 256 entries of one token, 64 of one channel, and heads of several ranks.
TEST(CudaSealerTest, ExactEntriesOfOneLane) {
  SealDevice device;
  for (const PackedFormat& format :
       {Uniform(Channel(2, 64), Token(2, 64), 5, 5, 0.05), Codebooks(3, 0.04, 1)}) {
    for (const std::vector<Ranks>& ranks :
         {std::vector<Ranks>{{256, 256}}, std::vector<Ranks>{{16, 96}, {80, 16}}}) {
      const DType row_type = ranks.size() == 2 ? DType::kF32 : DType::kBf16;
      Layer want(format, row_type, DrawHeads(Data::kOneLane, ranks, 2, row_type, 5), 2, true);
      Layer got = want;
      ASSERT_TRUE(SealOnCpu(&want).ok());
      EXPECT_TRUE(SealLayers(&device, {&got}).empty());
      ExpectSame(want, got);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CudaSealerTest, CodebooksOfUnusualRows) {
  SealDevice device;
  for (const Data data : {Data::kConstant, Data::kZero, Data::kTies, Data::kHuge}) {
    for (const DType row_type : {DType::kBf16, DType::kF32}) {
      Layer want(Codebooks(4, 0.05), row_type, DrawHeads(data, Heads()[3], 2, row_type, 5), 2,
                 true);
      for (auto& scales : want.codebooks.key_scales) {  // channels have ties with each other
        const auto offsets = scales.begin() + std::ssize(scales) / 2;
        std::fill(scales.begin(), offsets, 1.0f);
        std::fill(offsets, scales.end(), 0.0f);
      }
      Layer got = want;
      ASSERT_TRUE(SealOnCpu(&want).ok());
      EXPECT_TRUE(SealLayers(&device, {&got}).empty());
      ExpectSame(want, got);
      if (HasFatalFailure()) return;
    }
  }
}

// Rows whose channels from the first on turn with those from kHalf on. Of every third token one of
// the two becomes 0 where they turn by 45 degrees, unless a product is fused with a sum.
std::vector<RefHead> HeadsThatTurn(int half, int n_blocks, DType row_type) {
  auto heads = DrawHeads(Data::kTypical, {{48, 16}, {32, 32}}, n_blocks, row_type, 5);
  for (RefHead& head : heads) {
    for (int t = 0; t < n_blocks * kBlockSize; t += 3) {
      for (int c = 0; c < half; ++c) {
        float* const row = &head.k[t * head.rank_k];
        row[c + half] = t % 2 == 0 ? row[c] : -row[c];
      }
    }
  }
  return heads;
}

// Keys that are sealed as they were before RoPE, of which some channels do not turn.
TEST(CudaSealerTest, KeysThatTurnBack) {
  constexpr int kBlocks = 2, kHalf = 16;
  SealDevice device;
  Random random(3);
  std::vector<float> angles[2];  // cosines, sines
  for (int i = 0; i < kBlocks * kBlockSize * kHalf; ++i) {
    const double angle = 6 * random.Uniform();
    const bool is_even = i / 2 % kBlockSize % 3 == 0;
    angles[0].push_back(static_cast<float>(1.5 * std::cos(angle)));
    angles[1].push_back(is_even ? angles[0].back() : static_cast<float>(1.5 * std::sin(angle)));
  }
  PackedFormat format = Codebooks(4, 0.01);
  std::get<CodebookCodec>(format.codec).keys_before_rope = true;
  for (const DType row_type : {DType::kBf16, DType::kF32}) {
    Layer want(format, row_type, HeadsThatTurn(kHalf, kBlocks, row_type), kBlocks, true);
    for (auto& scales : want.codebooks.key_scales) {  // 0 lies on a boundary
      std::fill(scales.begin() + std::ssize(scales) / 2, scales.end(), 0.0f);
    }
    Layer got = want;
    ThreadPool pool(1);
    Sealer sealer(format, row_type, 3, &pool, Isa::kScalar);
    SealJob job = want.Job(7);
    job.rotation = {
        .cos = angles[0].data(), .sin = angles[1].data(), .half = kHalf, .way_back = 1 / 2.25f};
    ASSERT_TRUE(sealer.Run({&job, 1}).ok());
    const auto put = [&](const std::vector<float>& x) {
      const auto bytes = std::as_bytes(std::span(x));
      return ObjectPlace{device.Put(std::vector(bytes.begin(), bytes.end()))};
    };
    const KeyRotationId rotation = {put(angles[0]), put(angles[1]), kHalf, 1 / 2.25f};
    EXPECT_TRUE(SealLayers(&device, {&got}, rotation).empty());
    ExpectSame(want, got);
  }
}

// Runs of several lengths and sequences in one batch.
TEST(CudaSealerTest, RunsDoNotDependOnEachOther) {
  SealDevice device;
  const PackedFormat format = Uniform(Channel(3, 128), LayerToken(4));
  std::vector<Layer> want, got;
  for (int i = 0; i < 4; ++i) {
    const int n_blocks = i == 1 ? 6 : 1 + i;
    want.emplace_back(format, DType::kBf16,
                      DrawHeads(Data::kTypical, Heads()[3 - i], n_blocks, DType::kBf16, 100 + i),
                      n_blocks, i != 2);
    got.push_back(want.back());
  }
  EXPECT_TRUE(SealLayers(&device, {&got[0], &got[1], &got[2], &got[3]}).empty());
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(SealOnCpu(&want[i]).ok());
    ExpectSame(want[i], got[i]);
  }
}

TEST(CudaSealerTest, SaysWhichSequenceIsNotFinite) {
  SealDevice device;
  const float inf = std::numeric_limits<float>::infinity();
  for (const char* name : {"kivi2_g64", "kcvt4", "gear_kivi2", "kvquant4"}) {
    for (const Named& named : Formats()) {
      if (named.name != name) continue;
      for (DType row_type : {DType::kBf16, DType::kF32}) {
        for (const float bad : {-inf, std::nanf("")}) {
          if (IsRepaired(named.format) && (row_type == DType::kF32 || bad == -inf)) continue;
          const auto good =
              DrawHeads(Data::kTypical, {{16, 16}, {32, 16}, {16, 48}}, 2, row_type, 3);
          auto with_bad = good;
          with_bad[1].k[with_bad[1].k.size() * 2 / 3] = bad;
          with_bad[2].v[with_bad[2].v.size() * 2 / 3] = bad;
          Layer first(named.format, row_type, good, 2, true);
          Layer second(named.format, row_type, with_bad, 2, true);
          Layer third = first, want = first, want_bad = second;
          const auto failures = SealLayers(&device, {&first, &second, &third});
          const Status status = SealOnCpu(&want_bad);
          ASSERT_EQ(failures.size(), 1);
          EXPECT_EQ(failures[0].sequence, 1);
          EXPECT_EQ(failures[0].layer_idx, 3);
          EXPECT_EQ(failures[0].status.code(), StatusCode::kDataLoss);
          EXPECT_EQ(MessageOf(failures[0].status), MessageOf(status));
          ASSERT_TRUE(SealOnCpu(&want).ok());
          ExpectSame(want, first);
          ExpectSame(want, third);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvlathe
