// The forward of a model that decides what leaves against the literal decoder that drops one entry
// after the other (docs/methods/dms.md).
#include "sweeping/swept_model.h"

#include <algorithm>
#include <set>
#include <utility>

#include "model/planned_model.h"
#include "random_model.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using testing::Matrix;
using testing::ReferenceDms;
using testing::ReferenceQuantizer;

const ReferenceDms kTaught = {.window = 20, .scale = 100, .offset = 5};
// Of the same model, read with other run, interval or sinks.
ReferenceDms Taught(int run, int interval, int n_sink = 0) {
  ReferenceDms dms = kTaught;
  dms.run = run;
  dms.interval = interval;
  dms.n_sink = n_sink;
  return dms;
}
ReferenceDms OfLayer() {
  ReferenceDms dms = Taught(64, 64, 4);
  dms.is_per_head = false;
  return dms;
}
ReferenceDms WithBias() {
  ReferenceDms dms = Taught(64, 64, 4);
  dms.has_bias = true;
  dms.window = 1;
  return dms;
}
// A channel of queries decides, as in the checkpoint that was published first.
ReferenceDms InQueries(ReferenceDms dms) {
  dms.query_channel.emplace();
  return dms;
}
// The same as FastDMS has it: of the position itself, and RoPE turns into the channel what it will.
ReferenceDms OfItself(ReferenceDms dms) {
  dms.query_channel = {.zeroes_after_rope = false};
  dms.decides_of_itself = true;
  return dms;
}

const SweptCase kSwept[] = {
    {"dms(sink=0)", Taught(256, 64)},
    {"dms(run=1,interval=1,sink=0)", Taught(1, 1)},  // as it was published
    {"dms(run=50,interval=16,sink=4,window=37)", Taught(50, 16, 4), 37},
    {"dms(run=64,sink=3,offset=-30)", Taught(64, 64, 3), std::nullopt, -30},
    {"dms(run=64,interval=8,sink=4,window=300)", Taught(64, 8, 4), 300},
    {"fdc(sink=4)+dms(run=32)", Taught(32, 64, 4), std::nullopt, std::nullopt, "llama", true},
    {"dms(run=64)", OfLayer()},
    {"dms(run=64)", WithBias()},
    {"dms(run=7,interval=2,sink=1)", Taught(7, 2, 1), std::nullopt, std::nullopt, "qwen3"},
    {"dms(run=1,interval=1,sink=0)", InQueries(Taught(1, 1)), std::nullopt, std::nullopt, "qwen3"},
    {"dms(run=50,interval=16,window=37)", InQueries(Taught(50, 16, 4)), 37, std::nullopt, "qwen3"},
    {"fdc(sink=4)+dms(run=32)", InQueries(Taught(32, 64, 4)), std::nullopt, std::nullopt, "qwen3",
     true},
    {"dms(run=1,interval=1,sink=0)", OfItself(Taught(1, 1))},
    {"fdc(sink=1)+dms(run=64,sink=1)", OfItself(Taught(64, 64, 1)), std::nullopt, std::nullopt,
     "llama", true},
};

TEST_P(SweptModel, DropsWhatTheLiteralMethodDrops) {
  const SweptCase& c = GetParam();
  Write(c);
  const Literal want = Literally(c, nullptr);
  ASSERT_GT(want.share, 0.2);
  ASSERT_LT(want.share, 0.8);
  const Matrix plain = testing::ReferenceLogits(reference_, {ids_.begin(), ids_.begin() + kTokens},
                                                bases_, c.dms.n_sink);
  const double loss = LargestDifference(want.logits, plain);
  const bool drops = c.window.value_or(0) < kTokens;
  ASSERT_EQ(loss > 0.1, drops);
  for (const Isa isa : AvailableIsas()) {
    std::unique_ptr<Model> model = Load(isa, DType::kF32, c.spec);
    for (const int chunk : {512, 1, 23}) {
      SCOPED_TRACE(std::string(IsaName(isa)) + " chunk " + std::to_string(chunk));
      const std::unique_ptr<SequenceCache> cache = NewCache(*model);
      Matrix logits;
      SweptModel::Read(model.get(), cache.get(), kTokens, chunk, &logits);
      if (HasFatalFailure()) return;
      EXPECT_EQ(Lengths(*cache), want.lengths);
      EXPECT_LT(LargestDifference(logits, want.logits), drops ? 0.002 * loss : 1e-4);
    }
  }
}

// Neither the way a text is cut nor what else is in the batch changes a bit of a deterministic
// model.
TEST_P(SweptModel, BatchesDropTheSame) {
  const SweptCase& c = GetParam();
  Write(c);
  std::unique_ptr<Model> model = Load(AvailableIsas().back(), DType::kBf16, c.spec);
  model->set_deterministic(true);
  Matrix alone;
  const std::unique_ptr<SequenceCache> single = NewCache(*model);
  SweptModel::Read(model.get(), single.get(), kTokens, 512, &alone);
  if (HasFatalFailure()) return;
  std::vector<std::unique_ptr<SequenceCache>> caches;
  for (int i = 0; i < 3; ++i) caches.push_back(NewCache(*model));
  for (int round = 0; caches.back()->n_tokens() < kTokens; ++round) {
    std::vector<SequenceStep> steps;
    for (int i = 0; i < 3; ++i) {
      const int begin = caches[i]->n_tokens();
      const int n = static_cast<int>(
          std::min<int64_t>({i == 1 ? 1 : 31, kTokens - begin, caches[i]->max_step()}));
      if (round < 7 * i || n == 0) continue;
      ASSERT_TRUE(caches[i]->Extend(n).ok());
      steps.push_back({caches[i].get(), std::span(ids_).subspan(begin, n)});
    }
    ASSERT_TRUE(model->Forward(steps).ok());
    for (size_t s = 0; s < steps.size(); ++s) {
      const int n_tokens = steps[s].cache->n_tokens();
      const Matrix got = {{model->logits(s).begin(), model->logits(s).end()}};
      ASSERT_EQ(LargestDifference(got, {alone[n_tokens - 1]}), 0) << n_tokens;
    }
  }
  EXPECT_EQ(Lengths(*caches[2]), Lengths(*single));
}

INSTANTIATE_TEST_SUITE_P(Specs, SweptModel, ::testing::ValuesIn(kSwept), NameOfSweptCase);

// Where nothing may leave nothing changes, and where everything may it is a window, whose newest
// position sees itself and so many before it.
TEST_F(SweptModel, ExtremeDecisionsAreNoneAndAWindow) {
  Write({.spec = "", .dms = kTaught});
  for (const auto& [spec, same] :
       {std::pair("dms(offset=1000,sink=4)", "window(size=1000,sink=4)"),
        std::pair("dms(offset=-1000,interval=1,sink=4)", "window(size=20,sink=4)")}) {
    SCOPED_TRACE(spec);
    Matrix logits[2];
    for (const int i : {0, 1}) {
      std::unique_ptr<Model> model =
          Load(AvailableIsas().back(), DType::kF32, i == 0 ? spec : same);
      SequenceCache cache(&model->layout(), &pool_);
      cache.set_n_prompt(1);
      for (int t = 0; t < kTokens; ++t) {
        ASSERT_TRUE(cache.Extend(1).ok());
        const SequenceStep step{&cache, std::span(ids_).subspan(t, 1)};
        ASSERT_TRUE(model->Forward({&step, 1}).ok());
        logits[i].emplace_back(model->logits(0).begin(), model->logits(0).end());
      }
    }
    EXPECT_LT(LargestDifference(logits[0], logits[1]), 1e-4);
  }
}

// The channel that decides takes no part in attention under any cache, though nothing leaves it.
TEST_F(SweptModel, AChannelThatDecidesIsZeroUnderOtherCaches) {
  for (const auto& [model_type, dms] :
       {std::pair("qwen3", InQueries(kTaught)), std::pair("llama", OfItself(kTaught))}) {
    for (const bool has_basis : {false, true}) {
      SCOPED_TRACE(std::string(model_type) + (has_basis ? " with a basis" : ""));
      Write({.spec = "", .dms = dms, .model_type = model_type, .has_basis = has_basis});
      if (!has_basis) bases_.clear();
      const int n_sink = has_basis ? 4 : 0;
      const std::vector<int> ids(ids_.begin(), ids_.begin() + kTokens);
      const Matrix want = testing::ReferenceLogits(reference_, ids, bases_, n_sink);
      testing::ReferenceModel whole = reference_;
      whole.query_channel.reset();
      ASSERT_GT(LargestDifference(want, testing::ReferenceLogits(whole, ids, bases_, n_sink)), 0.1);
      std::unique_ptr<Model> model =
          Load(AvailableIsas().back(), DType::kF32, has_basis ? "fdc(sink=4)" : "none");
      const std::unique_ptr<SequenceCache> cache = NewCache(*model);
      Matrix logits;
      for (int begin = 0; begin < kTokens; begin += 23) {
        const int n = std::min(23, kTokens - begin);
        ASSERT_TRUE(cache->Extend(n).ok());
        const SequenceStep step{cache.get(), std::span(ids_).subspan(begin, n),
                                SequenceStep::Logits::kAll};
        ASSERT_TRUE(model->Forward({&step, 1}).ok());
        for (int t = 0; t < n; ++t) {
          logits.emplace_back(model->logits(t).begin(), model->logits(t).end());
        }
      }
      EXPECT_LT(LargestDifference(logits, want), 1e-4);
    }
  }
}

// Positions that left take no memory: what they gave back holds another sequence.
TEST_F(SweptModel, WhatLeftIsFreeForOthers) {
  Write({.spec = "", .dms = kTaught});
  std::unique_ptr<Model> model =
      Load(AvailableIsas().back(), DType::kF32, "dms(offset=-1000,run=64,sink=0)");
  const std::unique_ptr<SequenceCache> cache = NewCache(*model);
  Matrix logits;
  SweptModel::Read(model.get(), cache.get(), kPrompt, 512, &logits);
  EXPECT_EQ(Lengths(*cache), std::vector<int>(4, 20));
  const KvBytes bytes = cache->bytes();
  EXPECT_EQ(bytes.blocks, 4 * BlockBytes(model->layout().shape(0, 0)));
  EXPECT_EQ(bytes.entries, 4 * 64);  // a bit for each of 20 + 64 positions
}

const SweptCase kSealed[] = {
    {"dms(run=64,sink=0)+kivi(bits=2,group=32)", Taught(64, 64), std::nullopt, std::nullopt,
     "llama", false, ReferenceQuantizer{.name = "kivi", .bits = 2, .group = 32, .newest = 19}},
    {"dms(run=100,interval=16,sink=3)+token(bits=3,group=16,buffer=128,newest=40)",
     Taught(100, 16, 3), std::nullopt, std::nullopt, "llama", false,
     ReferenceQuantizer{
         .name = "token", .bits = 3, .group = 16, .buffer = 128, .newest = 40, .n_sink = 3}},
    {"fdc(sink=1)+dms(run=64,window=50)+kivi(bits=2,group=64)+sparse(share=0.2)", Taught(64, 64, 1),
     50, std::nullopt, "llama", true,
     ReferenceQuantizer{
         .name = "kivi", .bits = 2, .group = 64, .newest = 49, .n_sink = 1, .sparse_share = 0.2}},
    {"dms(run=64,sink=1)+int8", Taught(64, 64, 1), std::nullopt, std::nullopt, "qwen3", false,
     ReferenceQuantizer{.name = "int8", .bits = 8, .newest = 19, .n_sink = 1}},
    {"lathe(ratio=4,scales=token,newest=7,sink=2)+dms(run=64)", InQueries(Taught(64, 64, 2)),
     std::nullopt, std::nullopt, "qwen3", true,
     ReferenceQuantizer{.name = "split", .newest = 19, .n_sink = 2, .has_token_scales = true}},
    {"lathe(ratio=4,scales=token,newest=7,sink=2)+dms(run=64)", Taught(64, 64, 2), std::nullopt,
     std::nullopt, "llama", true,
     ReferenceQuantizer{.name = "split", .newest = 19, .n_sink = 2, .has_token_scales = true}},
};

class SealedSweptModel : public SweptModel {};

TEST_P(SealedSweptModel, SealsWhatStaysAsTheLiteralMethodDoes) {
  const SweptCase& c = GetParam();
  Write(c);
  ReferenceQuantizer quantizer = *c.quantizer;
  if (quantizer.name == "split") {
    ModelBasis basis = testing::ToModelBasis(reference_, bases_);
    const testing::DrawnBits bits = testing::DrawSplitBits(&basis);
    quantizer.key_bits = bits.of_keys;
    quantizer.value_bits = bits.of_values;
  }
  const Literal want = Literally(c, &quantizer);
  const double loss = testing::RootMeanSquare(want.logits, Literally(c, nullptr).logits);
  ASSERT_GT(loss, 1e-4);
  std::set<int> n_sealed;
  for (const auto& layer : want.n_sealed) n_sealed.insert(layer.begin(), layer.end());
  ASSERT_GE(*n_sealed.rbegin(), 64 + quantizer.buffer);
  for (const Isa isa : AvailableIsas()) {
    std::unique_ptr<Model> model = Load(isa, DType::kF32, c.spec);
    for (const int chunk : {512, 23}) {
      SCOPED_TRACE(std::string(IsaName(isa)) + " chunk " + std::to_string(chunk));
      const std::unique_ptr<SequenceCache> cache = NewCache(*model);
      Matrix logits;
      Read(model.get(), cache.get(), c.n_tokens(), chunk, &logits);
      if (HasFatalFailure()) return;
      EXPECT_EQ(Lengths(*cache), want.lengths);
      EXPECT_LT(testing::RootMeanSquare(logits, want.logits), 0.05 * loss + 1e-5);
      for (int l = 0; l < reference_.n_layers; ++l) {
        for (int g = 0; g < 2; ++g) {
          EXPECT_EQ(cache->head(l, g).merged_length().n_sealed_blocks * 64, want.n_sealed[l][g]);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, SealedSweptModel, ::testing::ValuesIn(kSealed), NameOfSweptCase);

TEST_F(SweptModel, RefusesToDropWhereTheModelWasNotTaught) {
  testing::WriteRandomModel({.head_dim = 32}, directory_, 31);
  auto reader = SafetensorsReader::OpenModel(directory_);
  auto weights = ModelWeights::Load(*LoadModelConfig(directory_), DType::kF32,
                                    MakeFileSource(*std::move(reader)),
                                    MakeMachine(&threads_, AvailableIsas().back()));
  const auto model = CreateModel(*std::move(weights), PartsOf(*Spec::Parse("dms")));
  EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(model.status().ToString().find("retrofitted"), std::string::npos);
}

}  // namespace
}  // namespace kvlathe
