// The forward on sealed blocks against the literal decoder with a literal quantiser.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>

#include "base/cpu_features.h"
#include "kv/blocks/block_pool.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "model/model.h"
#include "model/planned_model.h"
#include "random_model.h"
#include "reference_decoder.h"
#include "reference_quantizer.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using testing::Matrix;
using testing::ReferenceCodebooks;
using testing::ReferenceQuantizer;
using testing::RootMeanSquare;

constexpr int kTokens = 230, kPrompt = 150;

struct Case {
  const char* spec;
  ReferenceQuantizer literal;
  // Random maps, in place of those of the spec.
  enum class Basis { kNone, kRotation, kLatents, kSharedLatents } basis = Basis::kNone;
  int window = 0;               // with the sinks in sight
  int every = 0;                // positions that become one entry
  bool has_plain_rows = false;  // split: until they are sealed
  int n_kv_heads = 2;           // of 4 heads
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.spec; }

// What the codes of MXFP4 stand for.
const std::vector<double> kE2m1 = {0,    0.5,  1,  1.5,  2,  3,  4,  6,
                                   -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

// The levels of a normal number that lose least, in steps.
const testing::ReferenceLevels kSphere1 = {{64}, 0.797884561 / 64};
const testing::ReferenceLevels kSphere2 = {{24, 80}, 1.510417609 / 80};
const testing::ReferenceLevels kSphere3 = {{10, 31, 55, 88}, 2.151945705 / 88};
const testing::ReferenceLevels kSphere4 = {{5, 16, 27, 39, 52, 67, 86, 113}, 2.732589571 / 113};

const Case kCases[] = {
    {"turboquant(bits=4,run=64,sink=4)",
     {.name = "sphere", .run = 64, .n_sink = 4, .sphere = {kSphere4, kSphere4}}},
    {"turboquant(bits=3,value_bits=2,norms=plain,run=64,newest=20,sink=0)",
     {.name = "sphere",
      .run = 64,
      .newest = 20,
      .n_sink = 0,
      .sphere = {kSphere3, kSphere2, false, false}}},
    {"turboquant(bits=2,value_bits=3,run=prompt,buffer=128,sink=1)",
     {.name = "sphere", .run = 0, .buffer = 128, .n_sink = 1, .sphere = {kSphere2, kSphere3}}},
    {"turboquant(bits=4,value_bits=2,keys=product,run=64,sink=4)",
     {.name = "sphere", .run = 64, .n_sink = 4, .sphere = {kSphere3, kSphere2, true}}},
    {"turboquant(bits=2,value_bits=4,keys=product,norms=plain,run=128,sink=0)",
     {.name = "sphere", .run = 128, .n_sink = 0, .sphere = {kSphere1, kSphere4, true, false}}},
    {"palu+turboquant(bits=3,run=64,sink=4)",
     {.name = "sphere", .run = 64, .n_sink = 4, .sphere = {kSphere3, kSphere3}},
     Case::Basis::kLatents},
    {"pool(n=2)+turboquant(bits=4,keys=product,run=64,sink=0)",
     {.name = "sphere", .run = 64, .n_sink = 0, .sphere = {kSphere3, kSphere4, true}},
     Case::Basis::kNone,
     0,
     2},
    {"kivi(bits=2,group=32,run=64,sink=4)",
     {.name = "kivi", .bits = 2, .group = 32, .run = 64, .n_sink = 4}},
    {"kivi(bits=2,group=32,run=64,newest=20,sink=4)",
     {.name = "kivi", .bits = 2, .group = 32, .run = 64, .newest = 20, .n_sink = 4}},
    {"kcvt(bits=2,run=prompt,newest=64,sink=0)+sparse(share=0.1)",
     {.name = "kcvt", .bits = 2, .run = 0, .newest = 64, .n_sink = 0, .sparse_share = 0.1}},
    {"kivi(bits=4,group=64,run=prompt,sink=0)",
     {.name = "kivi", .bits = 4, .group = 64, .run = 0, .n_sink = 0}},
    {"kivi(bits=3,group=128,run=128,buffer=128,sink=0)",
     {.name = "kivi", .bits = 3, .group = 128, .run = 128, .buffer = 128, .n_sink = 0}},
    {"kivi(bits=8,group=64,run=64,sink=1)+sparse(share=0.04)",
     {.name = "kivi", .bits = 8, .group = 64, .run = 64, .n_sink = 1, .sparse_share = 0.04}},
    // Factors of full rank hold all that the codes lost.
    {"kivi(bits=2,group=32,run=64,sink=4)+lowrank(prefill=32,decode=0,recent=0.5)",
     {.name = "kivi", .bits = 2, .group = 32, .run = 64, .n_sink = 4, .whole_share = 0.5}},
    {"kcvt(bits=2,run=64,sink=0)+lowrank(prefill=32,decode=0,recent=0)",
     {.name = "kcvt", .bits = 2, .run = 64, .n_sink = 0, .whole_share = 0}},
    {"token(bits=2,group=16,run=64,sink=2)+lowrank(prefill=32,decode=0)",
     {.name = "token", .bits = 2, .group = 16, .run = 64, .n_sink = 2, .whole_share = 1}},
    {"kcvt(bits=4,run=64,sink=4)", {.name = "kcvt", .bits = 4, .run = 64, .n_sink = 4}},
    {"kcvt(bits=2,run=128,sink=0)+sparse(share=0.1)",
     {.name = "kcvt", .bits = 2, .run = 128, .n_sink = 0, .sparse_share = 0.1}},
    {"token(bits=3,group=16,run=64,sink=4)",
     {.name = "token", .bits = 3, .group = 16, .run = 64, .n_sink = 4}},
    {"token(bits=4,group=32,run=64,sink=0)+sparse(share=0.08)",
     {.name = "token", .bits = 4, .group = 32, .run = 64, .n_sink = 0, .sparse_share = 0.08}},
    {"token(bits=2,group=128,key_clip=0.9,value_clip=0.6,run=64,newest=20,sink=8)",
     {.name = "token",
      .bits = 2,
      .group = 128,
      .run = 64,
      .newest = 20,
      .n_sink = 8,
      .key_clip = 0.9,
      .value_clip = 0.6}},
    {"spectral+token(bits=3,group=16,value_clip=0.8,run=64,sink=4)",
     {.name = "token", .bits = 3, .group = 16, .run = 64, .n_sink = 4, .value_clip = 0.8},
     Case::Basis::kRotation},
    {"q8_0(run=64,sink=4)", {.name = "q8_0", .bits = 8, .run = 64, .n_sink = 4}},
    {"q4_0(run=64,sink=0)", {.name = "q4_0", .bits = 4, .run = 64, .n_sink = 0}},
    {"mxfp4(run=64,sink=0)",
     {.name = "table", .bits = 4, .group = 32, .run = 64, .n_sink = 0, .table = kE2m1}},
    {"palu+mxfp4(run=64,sink=4)",
     {.name = "table", .bits = 4, .group = 32, .run = 64, .n_sink = 4, .table = kE2m1},
     Case::Basis::kLatents},
    {"int8(run=64,sink=4)", {.name = "int8", .bits = 8, .run = 64, .n_sink = 4}},
    {"kivi(bits=4,run=64,buffer=128,sink=0)",
     {.name = "kivi", .bits = 4, .group = 32, .run = 64, .buffer = 128, .n_sink = 0}},
    {"kvarn(hadamard=off,run=128,sink=4)",
     {.name = "kvarn", .bits = 4, .group = 128, .run = 128, .buffer = 128, .n_sink = 4}},
    {"kvarn(key_bits=2,value_bits=5,group=64,hadamard=off,run=64,buffer=64,newest=20,sink=0)",
     {.name = "kvarn", .bits = 2, .bits_of_v = 5, .group = 64, .run = 64, .newest = 20}},
    {"fdc+kvarn(key_bits=5,value_bits=3,hadamard=off,run=prompt,sink=0)",
     {.name = "kvarn", .bits = 5, .bits_of_v = 3, .group = 128, .run = 0, .buffer = 128},
     Case::Basis::kRotation},
    {"palu+kvarn(key_bits=3,value_bits=8,group=64,hadamard=off,run=128,buffer=64,sink=4)",
     {.name = "kvarn", .bits = 3, .bits_of_v = 8, .group = 64, .run = 128, .n_sink = 4},
     Case::Basis::kLatents},
    {"window(size=90)+kvarn(hadamard=off,run=128,sink=2)",
     {.name = "kvarn", .bits = 4, .group = 128, .run = 128, .buffer = 128, .n_sink = 2},
     Case::Basis::kNone,
     90},
    {"pool(n=2)+kvarn(group=64,hadamard=off,run=64,buffer=64,sink=0)",
     {.name = "kvarn", .bits = 4, .group = 64, .run = 64},
     Case::Basis::kNone,
     0,
     2},
    {"kvquant(bits=4,run=64,sink=4)",
     {.name = "kvquant", .bits = 4, .run = 64, .n_sink = 4, .sparse_share = 0.01}},
    {"kvquant(bits=3,outliers=0,run=128,sink=0)",
     {.name = "kvquant", .bits = 3, .run = 128, .n_sink = 0}},
    {"kvquant(bits=2,outliers=0.05,run=prompt,buffer=128,sink=1)+sparse(share=0.03)",
     {.name = "kvquant", .bits = 2, .run = 0, .buffer = 128, .n_sink = 1, .sparse_share = 0.08}},
    {"fdc+kvquant(bits=4,run=64,sink=4)",
     {.name = "kvquant",
      .bits = 4,
      .run = 64,
      .n_sink = 4,
      .sparse_share = 0.01,
      .keys_before_rope = false},
     Case::Basis::kRotation},
    {"fdc+kvquant(bits=2,outliers=0,run=64,sink=0)",
     {.name = "kvquant", .bits = 2, .run = 64, .n_sink = 0, .keys_before_rope = false},
     Case::Basis::kRotation},
    {"lathe(ratio=4,scales=static,open=8,run=64,sink=4)",
     {.name = "split", .run = 64, .newest = 32, .n_sink = 4},
     Case::Basis::kRotation},
    {"lathe(ratio=4,scales=static,open=8,run=prompt,buffer=128,newest=0,sink=0)",
     {.name = "split", .run = 0, .buffer = 128, .n_sink = 0},
     Case::Basis::kRotation},
    {"lathe(ratio=4,scales=static,open=8,keys=before,run=64,newest=7,sink=4)",
     {.name = "split", .run = 64, .newest = 7, .n_sink = 4},
     Case::Basis::kLatents},
    {"lathe(ratio=4,scales=static,run=128,newest=0,open=16,sink=1)",
     {.name = "split", .run = 128, .n_sink = 1},
     Case::Basis::kRotation,
     0,
     0,
     true},
    {"lathe(ratio=4,scales=token,open=16,run=64,sink=4)",
     {.name = "split", .run = 64, .newest = 32, .n_sink = 4, .has_token_scales = true},
     Case::Basis::kRotation,
     0,
     0,
     true},
    {"lathe(ratio=4,scales=token,open=16,run=128,newest=7,sink=1)",
     {.name = "split", .run = 128, .newest = 7, .n_sink = 1, .has_token_scales = true},
     Case::Basis::kRotation,
     0,
     0,
     true,
     4},
    {"lathe(ratio=4,scales=token,open=8,run=prompt,buffer=128,newest=0,sink=0)",
     {.name = "split", .run = 0, .buffer = 128, .n_sink = 0, .has_token_scales = true},
     Case::Basis::kRotation},
    {"lathe(ratio=4,scales=token,keys=before,open=16,run=64,newest=7,sink=4)",
     {.name = "split", .run = 64, .newest = 7, .n_sink = 4, .has_token_scales = true},
     Case::Basis::kLatents,
     0,
     0,
     true},
    {"lathe(ratio=4,scales=token,keys=before,open=8,run=64,newest=7,sink=4)",
     {.name = "split", .run = 64, .newest = 7, .n_sink = 4, .has_token_scales = true},
     Case::Basis::kLatents,
     0,
     0,
     false,
     4},
    {"lathe(ratio=4,scales=static,open=8,run=64,sink=2)+window(size=90)",
     {.name = "split", .run = 64, .newest = 32, .n_sink = 2},
     Case::Basis::kRotation,
     90},
    {"lathe(ratio=4,scales=static,open=8,classes=3,newest=0,sink=4)",
     {.name = "split", .run = 0, .n_sink = 4},
     Case::Basis::kRotation},
    {"lathe(ratio=4,scales=static,open=16,classes=3,newest=7,sink=1)",
     {.name = "split", .run = 0, .newest = 7, .n_sink = 1},
     Case::Basis::kRotation,
     0,
     0,
     true},
    {"lathe(ratio=4,open=8,scales=token,classes=3,newest=0,sink=4)",
     {.name = "split", .run = 0, .n_sink = 4, .has_token_scales = true},
     Case::Basis::kRotation},
    {"lathe(ratio=4,scales=static,open=16,classes=3,keys=before,newest=0,sink=1)",
     {.name = "split", .run = 0, .n_sink = 1},
     Case::Basis::kLatents,
     0,
     0,
     true},
    {"lathe(ratio=4,open=8,scales=static,classes=3,keys=before,newest=0,sink=0)",
     {.name = "split", .run = 0},
     Case::Basis::kLatents},
    {"lathe(ratio=4,scales=static,open=8,classes=3,keys=before,newest=9,sink=2)",
     {.name = "split", .run = 0, .newest = 9, .n_sink = 2},
     Case::Basis::kLatents},
    {"palu+token(bits=4,group=16,run=64,sink=4)",
     {.name = "token", .bits = 4, .group = 16, .run = 64, .n_sink = 4},
     Case::Basis::kLatents},
    {"palu+kivi(bits=4,group=32,run=128,sink=0)+sparse(share=0.06)",
     {.name = "kivi", .bits = 4, .group = 32, .run = 128, .n_sink = 0, .sparse_share = 0.06},
     Case::Basis::kLatents},
    {"palu+kvquant(bits=4,run=64,sink=4)",
     {.name = "kvquant",
      .bits = 4,
      .run = 64,
      .n_sink = 4,
      .sparse_share = 0.01,
      .keys_before_rope = false},
     Case::Basis::kLatents},
    {"palu(group=2)+token(bits=4,group=16,run=64,sink=4)",
     {.name = "token", .bits = 4, .group = 16, .run = 64, .n_sink = 4},
     Case::Basis::kSharedLatents},
    {"palu(group=2)+kivi(bits=4,group=32,run=128,sink=0)",
     {.name = "kivi", .bits = 4, .group = 32, .run = 128, .n_sink = 0},
     Case::Basis::kSharedLatents},
    {"palu(group=2)+window(size=70)+kcvt(bits=4,run=64,sink=4)",
     {.name = "kcvt", .bits = 4, .run = 64, .n_sink = 4},
     Case::Basis::kSharedLatents,
     70},
    {"window(size=70)+kivi(bits=2,group=32,run=64,sink=4)",
     {.name = "kivi", .bits = 2, .group = 32, .run = 64, .n_sink = 4},
     Case::Basis::kNone,
     70},
    {"window(size=20)+kcvt(bits=2,run=64,sink=2)+sparse(share=0.1)",
     {.name = "kcvt", .bits = 2, .run = 64, .n_sink = 2, .sparse_share = 0.1},
     Case::Basis::kNone,
     20},
    {"window(size=110)+kvquant(bits=3,outliers=0.05,run=64,sink=1)",
     {.name = "kvquant", .bits = 3, .run = 64, .n_sink = 1, .sparse_share = 0.05},
     Case::Basis::kNone,
     110},
    {"fdc+window(size=90)+token(bits=3,group=16,run=64,sink=4)",
     {.name = "token", .bits = 3, .group = 16, .run = 64, .n_sink = 4},
     Case::Basis::kRotation,
     90},
    {"palu+window(size=70)+token(bits=4,group=16,run=64,sink=4)",
     {.name = "token", .bits = 4, .group = 16, .run = 64, .n_sink = 4},
     Case::Basis::kLatents,
     70},
    {"pool(n=2)+kivi(bits=2,group=32,run=64,sink=1)",
     {.name = "kivi", .bits = 2, .group = 32, .run = 64, .n_sink = 1},
     Case::Basis::kNone,
     0,
     2},
    {"pool(n=2)+token(bits=3,group=16,run=64,sink=4)",
     {.name = "token", .bits = 3, .group = 16, .run = 64, .n_sink = 4},
     Case::Basis::kNone,
     0,
     2},
    {"pool(n=2)+int8(run=64,sink=0)",
     {.name = "int8", .bits = 8, .run = 64, .n_sink = 0},
     Case::Basis::kNone,
     0,
     2},
    {"pool(n=2)+q8_0(run=64,sink=0)",
     {.name = "q8_0", .bits = 8, .run = 64, .n_sink = 0},
     Case::Basis::kNone,
     0,
     2},
    {"fdc+pool(n=2)+q4_0(run=64,sink=2)",
     {.name = "q4_0", .bits = 4, .run = 64, .n_sink = 2},
     Case::Basis::kRotation,
     0,
     2},
    {"pool(n=2)+mxfp4(run=64,sink=0)",
     {.name = "table", .bits = 4, .group = 32, .run = 64, .n_sink = 0, .table = kE2m1},
     Case::Basis::kNone,
     0,
     2},
    {"fdc+pool(n=2)+kvquant(bits=3,run=64,sink=1)",
     {.name = "kvquant",
      .bits = 3,
      .run = 64,
      .n_sink = 1,
      .sparse_share = 0.01,
      .keys_before_rope = false},
     Case::Basis::kRotation,
     0,
     2},
    {"lathe(ratio=4,scales=static,run=64,newest=7,sink=1)+pool(n=2)",
     {.name = "split", .run = 64, .newest = 7, .n_sink = 1},
     Case::Basis::kRotation,
     0,
     2,
     true},
    {"pool(n=2)+kcvt(bits=4,run=64,sink=0)+lowrank(prefill=32,decode=0,recent=0)",
     {.name = "kcvt", .bits = 4, .run = 64, .n_sink = 0, .whole_share = 0},
     Case::Basis::kNone,
     0,
     2},
    {"fdc+pool(n=2)+kcvt(bits=2,run=prompt,sink=0)+sparse(share=0.1)",
     {.name = "kcvt", .bits = 2, .run = 0, .n_sink = 0, .sparse_share = 0.1},
     Case::Basis::kRotation,
     0,
     2},
};

double AsFloat(double x) { return static_cast<float>(x); }

// Codebooks with unlike steps, whose codes stand for a little more than where they are chosen; key
// ranges that leave a few hundredths of the rows outside.
std::vector<ReferenceCodebooks> DrawCodebooks(const ReferenceQuantizer& q,
                                              const std::vector<testing::ReferenceRows>& layers) {
  std::vector<ReferenceCodebooks> codebooks;
  for (const testing::ReferenceRows& rows : layers) {
    ReferenceCodebooks& layer = codebooks.emplace_back();
    const int n = 1 << q.bits;
    for (int i = 0; i < n; ++i) {
      const double at = (2.0 * i + 1 - n) / n;
      layer.nearest.push_back(AsFloat(at * (0.6 + 0.4 * std::abs(at))));
      layer.decoded.push_back(AsFloat(1.03 * layer.nearest.back() + 0.01));
    }
    for (const Matrix& keys : rows.keys) {
      std::vector<double>& ranges = layer.ranges.emplace_back();
      std::vector<double>& offsets = layer.offsets.emplace_back();
      for (size_t r = 0; r < keys.back().size(); ++r) {
        std::vector<double> channel;
        for (size_t t = q.n_sink; t < keys.size(); ++t) {
          const bool turns_back = q.keys_before_rope;
          channel.push_back(turns_back ? testing::RotateRowBack(q.rope, q.rotary_dim, keys[t],
                                                                static_cast<int>(t))[r]
                                       : keys[t][r]);
        }
        std::sort(channel.begin(), channel.end());
        const double low = channel[channel.size() / 200],
                     high = channel.rbegin()[channel.size() / 200];
        // Unlike shares of the channels and off their middles: rows must not lie equally far out.
        ranges.push_back(AsFloat((high - low) / 2 * (0.8 + 0.01 * static_cast<double>(r))));
        offsets.push_back(AsFloat(0.55 * high + 0.45 * low));
      }
    }
  }
  return codebooks;
}

ModelCodebooks ToModelCodebooks(const std::vector<ReferenceCodebooks>& layers) {
  ModelCodebooks codebooks;
  for (const ReferenceCodebooks& layer : layers) {
    Codebook book{.n_codes = static_cast<int>(layer.nearest.size())};
    std::copy(layer.decoded.begin(), layer.decoded.end(), book.centroids.begin());
    for (int i = 0; i < book.n_codes - 1; ++i) {
      book.boundaries[i] = static_cast<float>((layer.nearest[i] + layer.nearest[i + 1]) / 2);
    }
    LayerCodebooks& to = codebooks.emplace_back(LayerCodebooks{.k = book, .v = book});
    for (size_t g = 0; g < layer.ranges.size(); ++g) {
      std::vector<float>& scales = to.key_scales.emplace_back();
      scales.assign(layer.ranges[g].begin(), layer.ranges[g].end());
      scales.insert(scales.end(), layer.offsets[g].begin(), layer.offsets[g].end());
    }
  }
  return codebooks;
}

class QuantizedModelTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    directory_ = testing::FreshDirectory("quantized_model");
    reference_ = testing::WriteRandomModel(
        {.n_heads = 4, .n_kv_heads = GetParam().n_kv_heads, .head_dim = 32, .vocab = 256},
        directory_, 31);
    // No token twice: where keys are stored before RoPE, its rows of the first layer would be
    // equal, and which of them is exact would hang on the last bit.
    ids_.resize(reference_.vocab);
    std::iota(ids_.begin(), ids_.end(), 0);
    std::shuffle(ids_.begin(), ids_.end(), std::mt19937_64(7));
    ids_.resize(kTokens);
    rotations_ = testing::RandomBases(reference_, 23);
    latents_ = testing::RandomLatentBases(reference_, 23);
    shared_latents_ = testing::RandomLatentBases(reference_, 23, reference_.n_kv_heads);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::vector<testing::ReferenceBasis> Bases() const {
    switch (GetParam().basis) {
      case Case::Basis::kNone:
        break;
      case Case::Basis::kRotation:
        return rotations_;
      case Case::Basis::kLatents:
        return latents_;
      case Case::Basis::kSharedLatents:
        return shared_latents_;
    }
    return {};
  }

  std::unique_ptr<Model> Load(Isa isa, DType type, const Spec& spec,
                              const std::vector<ReferenceCodebooks>& literal_codebooks) {
    ModelBasis basis = testing::ToModelBasis(reference_, Bases());
    if (FactsOf(spec.sealing()).has_classes) {
      testing::DrawClassBits(&basis);
    } else if (FactsOf(spec.sealing()).splits_bits) {
      testing::DrawSplitBits(&basis);
    }
    PlanParts parts = PartsOf(spec, basis.heads.empty() ? nullptr : &basis);
    parts.codebooks = ToModelCodebooks(literal_codebooks);
    auto reader = SafetensorsReader::OpenModel(directory_);
    auto weights =
        ModelWeights::Load(*LoadModelConfig(directory_), type, MakeFileSource(*std::move(reader)),
                           MakeMachine(&threads_, isa));
    EXPECT_TRUE(weights.ok()) << weights.status();
    auto model = CreateModel(*std::move(weights), std::move(parts));
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  // Logits after every token; chunks of at most `chunk` and of one run each, single tokens behind
  // the prompt when `decode` is set.
  Matrix Logits(Model* model, int chunk, bool decode) {
    SequenceCache cache(&model->layout(), &pool_);
    cache.set_n_prompt(kPrompt);
    const std::vector<int32_t> tokens(ids_.begin(), ids_.end());
    Matrix logits;
    while (cache.n_tokens() < kTokens) {
      const int begin = cache.n_tokens();
      const int most = decode && begin >= kPrompt ? 1 : chunk;
      const int n = static_cast<int>(std::min<int64_t>({most, kTokens - begin, cache.max_step()}));
      EXPECT_TRUE(cache.Extend(n).ok());
      const SequenceStep step{&cache, std::span(tokens).subspan(begin, n),
                              SequenceStep::Logits::kAll};
      const Status status = model->Forward({&step, 1});
      EXPECT_TRUE(status.ok()) << status;
      for (int t = 0; t < n; ++t) {
        logits.emplace_back(model->logits(t).begin(), model->logits(t).end());
      }
      EXPECT_EQ(cache.bytes().total(),
                SequenceBytes(model->layout(), cache.n_tokens(), n, kPrompt));
      EXPECT_EQ(cache.bytes().total(), pool_.usage().used_bytes);
    }
    return logits;
  }

  std::string directory_;
  testing::ReferenceModel reference_;
  std::vector<int> ids_;
  std::vector<testing::ReferenceBasis> rotations_, latents_, shared_latents_;
  ThreadPool threads_{2};
  HostPool pool_{int64_t{64} << 20};
};

TEST_P(QuantizedModelTest, MatchesTheLiteralQuantiser) {
  ReferenceQuantizer literal = GetParam().literal;
  literal.n_prompt = literal.n_prompt_tokens = kPrompt;
  literal.rope = reference_.rope;
  literal.rotary_dim = reference_.rotary_dim;
  const auto spec = Spec::Parse(GetParam().spec);
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::vector<testing::ReferenceBasis> bases = Bases();
  const std::vector<testing::ReferenceBasis> lossless = bases;
  for (testing::ReferenceBasis& basis : bases) {
    basis.codes_rows = literal.name == "split" && !GetParam().has_plain_rows;
  }
  testing::ReferenceModel reference = reference_;
  reference.window = GetParam().window;
  reference.window_spares = literal.n_sink;
  std::vector<testing::ReferenceRows> plain_rows(reference_.n_layers);
  const testing::ReferenceMerging pooling = {.every = GetParam().every};
  const testing::ReferenceMerging* merging = pooling.every > 0 ? &pooling : nullptr;
  const Matrix plain = testing::ReferenceLogits(
      reference, ids_, lossless, literal.n_sink,
      [&](int layer_idx, testing::ReferenceRows* rows) { plain_rows[layer_idx] = *rows; }, merging);
  if (literal.name == "kvquant") literal.codebooks = DrawCodebooks(literal, plain_rows);
  if (literal.name == "split") {
    ModelBasis basis = testing::ToModelBasis(reference_, bases);
    const bool has_classes = FactsOf(spec->sealing()).has_classes;
    const testing::DrawnBits bits =
        has_classes ? testing::DrawClassBits(&basis) : testing::DrawSplitBits(&basis);
    if (has_classes) {
      literal.outer_classes = {{bits.of_most_keys, bits.of_most_values},
                               {bits.of_least_keys, bits.of_least_values}};
    }
    literal.key_bits = bits.of_keys;
    literal.value_bits = bits.of_values;
  }
  testing::ReferenceVotes votes = {.n_prompt = kPrompt};
  std::vector<int> n_seen(reference_.n_layers), n_prompt_rows(reference_.n_layers, kTokens);
  const Matrix expected = testing::ReferenceLogits(
      reference, ids_, bases, literal.n_sink,
      [&](int layer_idx, testing::ReferenceRows* rows) {
        const int n_rows = static_cast<int>(rows->keys[0].size());
        const int n_past_sink = ++n_seen[layer_idx] - literal.n_sink;
        if (n_seen[layer_idx] == kPrompt) n_prompt_rows[layer_idx] = n_rows;
        votes.Add(*rows, n_seen[layer_idx]);
        // An entry is sealed once it is complete; where the prompt ends what is full is.
        const bool is_complete = merging == nullptr || n_past_sink % pooling.every == 0;
        if (!is_complete && n_seen[layer_idx] != kPrompt) return;
        ReferenceQuantizer at_length = literal;
        at_length.n_prompt = n_prompt_rows[layer_idx];
        testing::SealLiterally(at_length, layer_idx, rows, &votes);
      },
      merging);
  // What the quantiser loses, against which errors of the computation are judged. A row in F32 and
  // in double may round to neighbouring codes now and then, so equality is not to be had.
  const double loss = RootMeanSquare(expected, plain);
  ASSERT_GT(loss, 1e-6);
  // What balances a tile rounds too, now and then to the neighbouring F16.
  const double share = literal.name == "kvarn" ? 0.1 : 0.06;
  for (const Isa isa : AvailableIsas()) {
    SCOPED_TRACE(IsaName(isa));
    std::unique_ptr<Model> f32 = Load(isa, DType::kF32, *spec, literal.codebooks);
    const Matrix whole = Logits(f32.get(), 512, false);
    EXPECT_LT(RootMeanSquare(whole, expected), share * loss + 1e-4);
    EXPECT_LT(RootMeanSquare(Logits(f32.get(), 37, true), whole), 0.02 * loss + 1e-5);
    // A row that is rounded to Bf16 first may take the neighbouring code: an error of the size of
    // the quantiser's own in a few entries of a hundred.
    std::unique_ptr<Model> bf16 = Load(isa, DType::kBf16, *spec, literal.codebooks);
    EXPECT_LT(RootMeanSquare(Logits(bf16.get(), 64, true), expected), 0.7 * loss + 2e-2);
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, QuantizedModelTest, ::testing::ValuesIn(kCases),
                         [](const auto& test) {
                           std::string name = test.param.spec;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace kvlathe
