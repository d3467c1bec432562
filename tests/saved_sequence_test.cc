// A sequence that was saved and restored goes on with the bits that it would have gone on with.
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "io/scratch_folder.h"
#include "kv/blocks/host_pool_fixture.h"
#include "kv/blocks/sequence_file.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "kv/spec/spec.h"
#include "model/model.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "plan/drawn_basis.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

ModelConfig MergingConfig() {
  ModelConfig c = SmallConfig();
  c.dmc = DmcConfig{.offset = 0, .weight_offset = 0};  // random weights merge half of the positions
  c.dms = DmsConfig{.window = 20, .offset = 0};        // and let half of them go
  return c;
}

class SavedSequence : public testing::TestWithParam<DType> {
 protected:
  std::unique_ptr<Model> MakeModel(PlanParts parts) {
    auto weights = ModelWeights::Load(MergingConfig(), GetParam(), MakeRandomSource(3),
                                      MakeMachine(&threads_, SelectIsa().value()));
    EXPECT_TRUE(weights.ok()) << weights.status();
    auto model = CreateModel(*std::move(weights), std::move(parts));
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  // The bits of the logits after these tokens.
  static std::string Feed(Model* model, SequenceCache* cache, std::span<const int32_t> ids) {
    while (!ids.empty()) {
      if (cache->must_read_again()) {
        const std::vector<int32_t> prompt = RandomTokens(static_cast<int>(cache->n_prompt()), 1);
        EXPECT_TRUE(model->ReadPromptAgain(cache, prompt, 40).ok());
      }
      const size_t n = static_cast<size_t>(
          std::min<int64_t>(static_cast<int64_t>(ids.size()), cache->max_step()));
      EXPECT_TRUE(cache->Extend(static_cast<int>(n)).ok());
      const SequenceStep step = {cache, ids.first(n), SequenceStep::Logits::kLast};
      const Status status = model->Forward({&step, 1});
      EXPECT_TRUE(status.ok()) << status;
      ids = ids.subspan(n);
    }
    const auto logits = std::as_bytes(model->logits(0));
    return {reinterpret_cast<const char*>(logits.data()), logits.size()};
  }

  static std::vector<int32_t> RandomTokens(int n, uint64_t seed) {
    Random random(seed);
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(kSmallVocabulary));
    return ids;
  }

  // Reads a prompt, saves, restores into a pool of its own and decodes both further.
  void ExpectSameBits(Model* model, int n_prompt, const std::string& spec = "a spec") {
    const SequenceIdentity identity = {spec, "a model"};
    HostPool pool(kNoLimit), other_pool(kNoLimit);
    SequenceCache original(&model->layout(), &pool), restored(&model->layout(), &other_pool);
    original.set_n_prompt(n_prompt, 50);
    Feed(model, &original, RandomTokens(n_prompt, 1));
    const std::string path = folder_ / "sequence";
    ASSERT_TRUE(SaveSequence(original, identity, "", path).ok());
    const auto state = RestoreSequence(path, {identity, &model->layout(), 512}, &restored);
    ASSERT_TRUE(state.ok()) << state.status();
    // Tokens one by one over the end of a block, then a second prompt.
    for (const int32_t id : RandomTokens(70, 2)) {
      const std::string expected = Feed(model, &original, {&id, 1});
      ASSERT_EQ(Feed(model, &restored, {&id, 1}), expected) << "position " << original.n_tokens();
    }
    const std::vector<int32_t> more = RandomTokens(90, 3);
    const std::string expected = Feed(model, &original, more);
    EXPECT_EQ(Feed(model, &restored, more), expected);
    // Once more, long after the prompt.
    ASSERT_TRUE(SaveSequence(restored, identity, "", path).ok());
    SequenceCache again(&model->layout(), &other_pool);
    ASSERT_TRUE(RestoreSequence(path, {identity, &model->layout(), 512}, &again).ok());
    const std::vector<int32_t> last = RandomTokens(30, 4);
    EXPECT_EQ(Feed(model, &again, last), Feed(model, &original, last));
  }

  ScratchFolder folder_;
  ThreadPool threads_{2};
};

TEST_P(SavedSequence, GoesOnWithTheSameBitsUncompressed) {
  const auto model = MakeModel({});
  for (const int n_prompt : {1, 64, 100}) ExpectSameBits(model.get(), n_prompt);
}

TEST_P(SavedSequence, GoesOnWithTheSameBitsInABasisWithSinks) {
  const ModelBasis basis = DrawRandomBasis(2, 2, 32, 0.5, 9);
  const auto model = MakeModel(PartsOf(&basis, 4));
  for (const int n_prompt : {2, 4, 68, 100}) ExpectSameBits(model.get(), n_prompt);
}

TEST_P(SavedSequence, GoesOnWithTheSameBitsSealed) {
  const ModelBasis basis = DrawRandomBasis(2, 2, 32, 0.3, 9);
  for (const char* text :
       {"kivi(bits=2,run=64)", "fdc(rate=0.3)+gear(bits=4,run=128,share=0.1)", "int8(sink=0)",
        "kvarn(run=128)", "fdc(rate=0.3)+kvarn(group=64,run=64,buffer=64)",
        "kvquant(bits=3,run=64,sink=2)", "fdc(rate=0.3)+kvquant(outliers=0.1)+lowrank",
        "fdc(rate=0.3)+gear(bits=2,run=prompt,share=0.2)", "gear(bits=2,run=64,recent=0.4)",
        "window(size=90)+gear(bits=4,run=64)"}) {
    const auto spec = Spec::Parse(text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto model = MakeModel(PartsOf(*spec, spec->basis() == nullptr ? nullptr : &basis));
    for (const int n_prompt : {1, 68, 132, 210}) {
      SCOPED_TRACE(testing::Message() << text << ' ' << n_prompt);
      ExpectSameBits(model.get(), n_prompt, spec->ToString());
    }
  }
}

TEST_P(SavedSequence, GoesOnWithTheSameBitsWhereRunsHaveNoRecordOrABasisInTheFirst) {
  const ModelBasis split = DrawRandomSplitBasis(2, 2, 32, 4, 9);
  const ModelBasis latents = DrawRandomSplitBasis(2, 2, 32, 4, 9, LatentKeys{});
  ModelBasis online{2, 2, 32, {{16, 32}, {32, 16}, {16, 16}, {32, 32}}};
  online.keys = TurnedKeys{};
  online.online = OnlineInputs{.output_grams{4, std::vector<double>(32 * 32, 0.5)}};
  const std::pair<const char*, const ModelBasis*> cases[] = {
      {"lathe(ratio=4,scales=static,open=8,run=64)", &split},
      {"lathe(ratio=4,scales=static,run=64,open=16,sink=0)", &split},
      {"lathe(ratio=4,scales=static,open=8,run=128)+lowrank", &split},
      {"lathe(ratio=4,scales=static,open=8,keys=before,run=64)", &latents},
      {"lathe(ratio=4,scales=token,open=8,run=64)", &split},
      {"lathe(ratio=4,scales=token,run=128)+lowrank", &split},
      {"lathe(ratio=4,scales=token,open=8,keys=before,run=64)", &latents},
      {"svd-online", nullptr},
      {"zack(online=on)", &online}};
  for (const auto& [text, basis] : cases) {
    const auto spec = Spec::Parse(text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto model = MakeModel(PartsOf(*spec, basis));
    for (const int n_prompt : {1, 40, 68, 210}) {
      SCOPED_TRACE(testing::Message() << text << ' ' << n_prompt);
      ExpectSameBits(model.get(), n_prompt, spec->ToString());
    }
  }
}

TEST_P(SavedSequence, GoesOnWithTheSameBitsWhereHeadsShareLatents) {
  const ModelBasis basis = DrawRandomBasis(2, 2, 32, 0.3, 9, LatentKeys{.heads_per_latent = 2});
  for (const char* text :
       {"palu(group=2)", "palu(group=2)+token(bits=4,hadamard=on,run=64)",
        "palu(group=2)+tova(budget=40)", "palu(group=2)+window(size=90)+gear(bits=4,run=64)"}) {
    const auto spec = Spec::Parse(text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto model = MakeModel(PartsOf(*spec, &basis));
    model->set_deterministic(true);
    for (const int n_prompt : {1, 68, 210}) {
      SCOPED_TRACE(testing::Message() << text << ' ' << n_prompt);
      ExpectSameBits(model.get(), n_prompt, spec->ToString());
    }
  }
}

TEST_P(SavedSequence, GoesOnWithTheSameBitsWithEntriesDropped) {
  const ModelBasis basis = DrawRandomBasis(2, 2, 32, 0.3, 9);
  for (const char* text :
       {"h2o(keep=0.4)", "fdc(rate=0.3)+keyformer(keep=0.3,interval=4)", "tova(budget=40,sink=0)",
        "fdc(rate=0.3)+keyformer(keep=0.3,score=exact)",
        "fdc(rate=0.3)+h2o(keep=0.3,score=exact)+gear(bits=4)",
        "fdc(rate=0.3)+snapkv(budget=50,score=exact,sink=0)", "snapkv(budget=50)",
        "kvzip(budget=50)", "kvzip(budget=70,heads=own)+kivi(bits=2)",
        "kvzip(keep=0.8,window=8)+kivi(bits=2)", "fdc(rate=0.3)+kvzip(budget=60,score=exact)",
        "window(size=30)", "h2o(keep=0.9)+gear(bits=4)", "h2o(keep=0.3)+gear(bits=4)",
        "tova(budget=80,sink=0)+kivi(bits=2)"}) {
    const auto spec = Spec::Parse(text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto model = MakeModel(PartsOf(*spec, spec->basis() == nullptr ? nullptr : &basis));
    model->set_deterministic(true);
    for (const int n_prompt : {1, 132}) {
      SCOPED_TRACE(testing::Message() << text << ' ' << n_prompt);
      ExpectSameBits(model.get(), n_prompt, spec->ToString());
    }
  }
}

// A prompt that is not read to its end holds whole keys.
TEST_P(SavedSequence, GoesOnInThePromptWithWholeKeys) {
  const ModelBasis basis = DrawRandomBasis(2, 2, 32, 0.3, 9);
  const Spec spec = *Spec::Parse("fdc(rate=0.3)+h2o(keep=0.4,score=exact)");
  const auto model = MakeModel(PartsOf(spec, &basis));
  const CacheLayout& layout = model->layout();
  const SequenceIdentity identity = {spec.ToString(), "a model"};
  HostPool pool(kNoLimit);
  SequenceCache original(&layout, &pool), restored(&layout, &pool);
  original.set_n_prompt(200, 50);
  Feed(model.get(), &original, RandomTokens(150, 1));
  const std::string path = folder_ / "sequence";
  ASSERT_TRUE(SaveSequence(original, identity, "", path).ok());
  const auto state = RestoreSequence(path, {identity, &layout, 512}, &restored);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(restored.bytes().total(), original.bytes().total());
  const std::vector<int32_t> rest = RandomTokens(70, 2);
  const std::string expected = Feed(model.get(), &original, rest);
  EXPECT_EQ(Feed(model.get(), &restored, rest), expected);
  EXPECT_EQ(restored.bytes().total(), original.bytes().total());
}

TEST_P(SavedSequence, GoesOnWithTheSameBitsWithEntriesMerged) {
  const ModelBasis basis = DrawRandomBasis(2, 2, 32, 0.3, 9);
  for (const char* text : {"dmc", "fdc(rate=0.3)+dmc(window=3,sink=0)", "pool(n=5,sink=2)",
                           "pool(n=2)+kivi(bits=2,run=64)", "dmc(sink=0)+kivi(bits=2)",
                           "fdc(rate=0.3)+dmc+gear(bits=2,share=0.2)"}) {
    const auto spec = Spec::Parse(text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto model = MakeModel(PartsOf(*spec, spec->basis() == nullptr ? nullptr : &basis));
    model->set_deterministic(true);
    std::vector<int> lengths = {1, 5, 132, 201};
    // Long enough for heads to have sealed what they closed, and to seal more.
    if (model->layout().HasRunsOfHeads()) lengths = {5, 280};
    for (const int n_prompt : lengths) {
      SCOPED_TRACE(testing::Message() << text << ' ' << n_prompt);
      ExpectSameBits(model.get(), n_prompt, spec->ToString());
    }
  }
}

TEST_P(SavedSequence, GoesOnWithTheSameBitsWhereTheModelLetsEntriesGo) {
  const ModelBasis basis = DrawRandomBasis(2, 2, 32, 0.3, 9);
  for (const char* text :
       {"dms(run=32)", "fdc(rate=0.3)+dms(window=7,interval=4,sink=0)",
        "dms(run=32,sink=0)+kivi(bits=2)", "fdc(rate=0.3)+dms(run=64)+gear(bits=2,share=0.2)"}) {
    const auto spec = Spec::Parse(text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto model = MakeModel(PartsOf(*spec, spec->basis() == nullptr ? nullptr : &basis));
    model->set_deterministic(true);
    std::vector<int> lengths = {1, 5, 132, 201};
    if (model->layout().HasRunsOfHeads()) lengths = {5, 280};
    for (const int n_prompt : lengths) {
      SCOPED_TRACE(testing::Message() << text << ' ' << n_prompt);
      ExpectSameBits(model.get(), n_prompt, spec->ToString());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(RowTypes, SavedSequence, testing::Values(DType::kBf16, DType::kF32),
                         [](const auto& test) { return std::string(DTypeName(test.param)); });

}  // namespace
}  // namespace kvlathe
