#include "sequence_cases.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <optional>

#include "base/random.h"
#include "format/keys.h"
#include "kv/spec/spec.h"
#include "model/planned_model.h"
#include "model/small_config.h"
#include "model/tensor_source.h"
#include "plan/drawn_basis.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe::testing {
namespace {

ModelConfig MergingConfig(CaseScores scores = CaseScores::kPlain) {
  ModelConfig c = SmallConfig();
  // Scores of random weights are small.
  if (scores == CaseScores::kCapped) c.score_cap = 0.02f;
  c.has_sink_logits = scores == CaseScores::kSinkLogits;
  c.dmc = DmcConfig{.offset = 0, .weight_offset = 0};  // random weights merge half of the positions
  c.dms = DmsConfig{.window = 20, .offset = 0};        // and let half of them go
  return c;
}

MappedKeys JoinedKeys() {
  return {.has_frames = true, .turning_pairs = MostTurningPairs(32), .joins_values = true};
}

ModelBasis DrawBasis(CaseBasis kind) {
  switch (kind) {
    case CaseBasis::kNone:
      return {};
    case CaseBasis::kPlain:
      return DrawRandomBasis(2, 2, 32, 0.3, 9);
    case CaseBasis::kSplit:
      return DrawRandomSplitBasis(2, 2, 32, 4, 9);
    case CaseBasis::kLatents:
      return DrawRandomBasis(2, 2, 32, 0.3, 9, LatentKeys{});
    case CaseBasis::kSplitLatents:
      return DrawRandomSplitBasis(2, 2, 32, 4, 9, LatentKeys{});
    case CaseBasis::kSplitCentred:
      return DrawRandomSplitBasis(2, 2, 32, 4, 9, MappedKeys{1, false, MostTurningPairs(32)});
    case CaseBasis::kSplitFrames:
      return DrawRandomSplitBasis(2, 2, 32, 4, 9, MappedKeys{1, true, MostTurningPairs(32)});
    case CaseBasis::kSplitJoined:
      return DrawRandomSplitBasis(2, 2, 32, 4, 9, JoinedKeys());
    case CaseBasis::kSplitClasses:
      return DrawRandomSplitBasis(2, 2, 32, 4, 9, MappedKeys{}, /*has_classes=*/true);
    case CaseBasis::kSplitClassLatents:
      return DrawRandomSplitBasis(2, 2, 32, 4, 9, LatentKeys{}, /*has_classes=*/true);
    case CaseBasis::kSplitPressed:
      return DrawRandomBasis(2, 2, 32, DrawPressedSplits(4, 32, 4, 8, 9).value(), 9);
    case CaseBasis::kSplitPressedCentred:
      return DrawRandomBasis(2, 2, 32, DrawPressedSplits(4, 32, 4, 8, 9).value(), 9,
                             MappedKeys{1, false, MostTurningPairs(32)});
    case CaseBasis::kSplitPressedLatents:
      return DrawRandomBasis(2, 2, 32, DrawPressedSplits(4, 32, 4, 8, 9).value(), 9, LatentKeys{});
    case CaseBasis::kSplitPressedFrames:
      return DrawRandomBasis(2, 2, 32, DrawPressedSplits(4, 32, 4, 8, 9).value(), 9,
                             MappedKeys{1, true, MostTurningPairs(32)});
    case CaseBasis::kSplitPressedJoined:
      return DrawRandomBasis(2, 2, 32,
                             DrawPressedSplits(4, 32, 4, 8, 9, {.joins_values = true}).value(), 9,
                             JoinedKeys());
    case CaseBasis::kSharedLatents:
      return DrawRandomBasis(2, 2, 32, 0.3, 9, LatentKeys{.heads_per_latent = 2});
    case CaseBasis::kOnline: {
      ModelBasis online{2, 2, 32, {{16, 32}, {32, 16}, {16, 16}, {32, 32}}};
      online.keys = TurnedKeys{};
      online.online = OnlineInputs{.output_grams{4, std::vector<double>(32 * 32, 0.5)}};
      return online;
    }
  }
  return {};
}

// Of the kind that the spec's method makes.
CaseBasis BasisOf(const Spec& spec) {
  if (spec.basis() == nullptr) return CaseBasis::kNone;
  const SealingFacts sealing = FactsOf(spec.sealing());
  if (sealing.finds_bases) {
    return spec.basis_as<ZackOptions>() != nullptr ? CaseBasis::kOnline : CaseBasis::kNone;
  }
  if (sealing.has_classes) {
    return TurnWhenRead(spec.keys()) ? CaseBasis::kSplitClassLatents : CaseBasis::kSplitClasses;
  }
  if (const auto* lathe = spec.basis_as<LatheOptions>();
      lathe != nullptr && lathe->under_pressure > 0) {
    return TurnWhenRead(spec.keys()) ? CaseBasis::kSplitPressedLatents : CaseBasis::kSplitPressed;
  }
  if (JoinsValues(spec.keys())) return CaseBasis::kSplitJoined;
  if (HasFrames(spec.keys())) return CaseBasis::kSplitFrames;
  if (spec.key_rows() == KeyRows::kCentred) return CaseBasis::kSplitCentred;
  if (sealing.splits_bits) {
    return TurnWhenRead(spec.keys()) ? CaseBasis::kSplitLatents : CaseBasis::kSplit;
  }
  if (!TurnWhenRead(spec.keys())) return CaseBasis::kPlain;
  return HeadsPerLatent(spec.keys()) > 1 ? CaseBasis::kSharedLatents : CaseBasis::kLatents;
}

const SequenceCase kCases[] = {
    {"Uncompressed", "none"},
    {"Basis", "fdc(rate=0.3)", CaseBasis::kPlain},
    {"Kivi", "kivi(bits=2,run=64)"},
    {"BasisGear", "fdc(rate=0.3)+gear(bits=4,run=128,share=0.1)", CaseBasis::kPlain},
    {"GearOfPrompt", "fdc(rate=0.3)+gear(bits=2,run=prompt,share=0.2)", CaseBasis::kPlain},
    {"Int8", "int8(sink=0)"},
    {"Turboquant", "turboquant(bits=3,value_bits=2,run=64)", CaseBasis::kPlain},
    {"TurboquantProduct", "turboquant(keys=product,run=64)", CaseBasis::kPlain},
    {"Kvarn", "kvarn(run=128)"},
    {"Kvquant", "kvquant(bits=3,run=64,sink=2)"},
    {"KvquantLowrank", "fdc(rate=0.3)+kvquant(outliers=0.1)+lowrank", CaseBasis::kPlain},
    {"WindowGear", "window(size=90)+gear(bits=4,run=64)"},
    {"WindowInt8", "window(size=30)+int8(run=64)"},
    {"Lathe", "lathe(ratio=4,scales=static,open=8,run=64)", CaseBasis::kSplit},
    {"LatheKeysCentred", "lathe(ratio=4,scales=static,open=8,keys=centred,run=64)",
     CaseBasis::kSplitCentred},
    {"LatheOpen16", "lathe(ratio=4,scales=static,run=64,open=16,sink=0)", CaseBasis::kSplit},
    {"LatheLowrank", "lathe(ratio=4,scales=static,open=8,run=128)+lowrank", CaseBasis::kSplit},
    {"LatheLowrankKeysCentred", "lathe(ratio=4,scales=static,keys=centred,run=128)+lowrank",
     CaseBasis::kSplitCentred},
    {"LatheClasses", "lathe(ratio=4,scales=static,open=8,classes=3,run=64)",
     CaseBasis::kSplitClasses},
    {"LatheClassesKeysBefore", "lathe(ratio=4,scales=static,open=8,classes=3,keys=before,run=64)",
     CaseBasis::kSplitClassLatents},
    {"LatheKeysBefore", "lathe(ratio=4,scales=static,open=8,keys=before,run=64)",
     CaseBasis::kSplitLatents},
    {"LatheKeysBlock", "lathe(ratio=4,scales=static,open=8,keys=block,run=64)",
     CaseBasis::kSplitFrames},
    {"LatheMapsJoint", "lathe(ratio=4,keys=block,maps=joint,run=64)", CaseBasis::kSplitJoined},
    {"LathePressureMapsJoint",
     "lathe(ratio=4,keys=block,maps=joint,scales=static,under_pressure=8,run=64)",
     CaseBasis::kSplitPressedJoined},
    {"LathePressure", "lathe(ratio=4,open=8,under_pressure=8,run=64)", CaseBasis::kSplitPressed},
    {"LathePressureKeysBefore",
     "lathe(ratio=4,scales=static,under_pressure=8,keys=before,run=64,sink=0)",
     CaseBasis::kSplitPressedLatents},
    {"LathePressureKeysCentred", "lathe(ratio=4,open=8,under_pressure=8,keys=centred,run=64)",
     CaseBasis::kSplitPressedCentred},
    {"LathePressureKeysBlock", "lathe(ratio=4,open=8,under_pressure=8,keys=block,run=64)",
     CaseBasis::kSplitPressedFrames},
    {"SvdOnline", "svd-online"},
    {"ZackOnline", "zack(online=on)", CaseBasis::kOnline},
    {"Palu", "palu(group=2)", CaseBasis::kSharedLatents},
    {"PaluToken", "palu(group=2)+token(bits=4,hadamard=on,run=64)", CaseBasis::kSharedLatents},
    {"PaluTova", "palu(group=2)+tova(budget=40)", CaseBasis::kSharedLatents},
    {"H2o", "h2o(keep=0.4)"},
    {"H2oExact", "fdc(rate=0.3)+h2o(keep=0.3,score=exact)+gear(bits=4)", CaseBasis::kPlain},
    {"H2oGear", "h2o(keep=0.3)+gear(bits=4)"},
    {"Keyformer", "fdc(rate=0.3)+keyformer(keep=0.3,interval=4)", CaseBasis::kPlain},
    {"Tova", "tova(budget=40,sink=0)"},
    {"TovaKivi", "tova(budget=80,sink=0)+kivi(bits=2)"},
    {"Snapkv", "snapkv(budget=50)"},
    {"SnapkvExact", "fdc(rate=0.3)+snapkv(budget=50,score=exact,sink=0)", CaseBasis::kPlain},
    {"Kvzip", "kvzip(keep=0.5,window=8,chunk=50)"},
    {"KvzipOwn", "kvzip(keep=0.5,window=8,heads=own)"},
    {"KvzipKivi", "kvzip(keep=0.7,window=8)+kivi(bits=4)"},
    {"KvzipOwnGear", "kvzip(keep=0.7,window=8,heads=own)+gear(bits=4)"},
    {"Window", "window(size=30)"},
    {"Dmc", "dmc"},
    {"BasisDmc", "fdc(rate=0.3)+dmc(window=3,sink=0)", CaseBasis::kPlain},
    {"Pool", "pool(n=5,sink=2)"},
    {"PoolKivi", "pool(n=2)+kivi(bits=2,run=64)"},
    {"TovaKvarn", "tova(budget=80,sink=0)+kvarn(group=64,buffer=64)"},
    {"DmcKvarn", "dmc(sink=0)+kvarn(group=64,buffer=64)"},
    {"DmcKivi", "dmc(sink=0)+kivi(bits=2)"},
    {"DmcGear", "fdc(rate=0.3)+dmc+gear(bits=2,share=0.2)", CaseBasis::kPlain},
    {"Dms", "dms(run=32)"},
    {"BasisDms", "fdc(rate=0.3)+dms(window=7,interval=4,sink=0)", CaseBasis::kPlain},
    {"DmsKivi", "dms(run=32,sink=0)+kivi(bits=2)"},
};

}  // namespace

std::span<const SequenceCase> SequenceCases() { return kCases; }

std::vector<SequenceCase> RecordedCases() {
  std::ifstream file(KVLATHE_SOURCE_DIR "/tests/recording/specs.txt");
  std::vector<SequenceCase> cases;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    const auto spec = Spec::Parse(line);
    EXPECT_TRUE(spec.ok()) << spec.status();
    if (!spec.ok()) continue;
    std::string name = fmt::format("{}_{}", cases.size(), line);
    std::ranges::replace_if(
        name, [](char c) { return std::isalnum(c) == 0; }, '_');
    cases.push_back({name, line, BasisOf(*spec)});
  }
  return cases;
}

std::vector<SequenceCase> SharingCases() {
  std::vector<SequenceCase> sharing;
  for (const SequenceCase& of : SequenceCases()) {
    const auto spec = Spec::Parse(of.spec);
    EXPECT_TRUE(spec.ok()) << spec.status();
    const CacheLayout layout =
        MakeLayout(FactsOf(MergingConfig(), DType::kBf16), PartsOf(*spec), {}, spec->keys());
    if (SharesPrefixes(layout)) sharing.push_back(of);
  }
  return sharing;
}

std::unique_ptr<Model> MakeCaseModel(const SequenceCase& of, ThreadPool* threads, Isa isa) {
  return MakeCaseModel(of, MakeMachine(threads, isa));
}

std::unique_ptr<Model> MakeCaseModel(const SequenceCase& of, std::shared_ptr<Machine> machine) {
  const auto spec = Spec::Parse(of.spec);
  EXPECT_TRUE(spec.ok()) << spec.status();
  ModelBasis basis = DrawBasis(of.basis);
  if (of.scores == CaseScores::kSinkLogits) {
    for (HeadBasis& head : basis.heads) head.value_offset.clear();
  }
  auto weights = ModelWeights::Load(MergingConfig(of.scores), DType::kBf16, MakeRandomSource(3),
                                    std::move(machine));
  EXPECT_TRUE(weights.ok()) << weights.status();
  auto model = CreateModel(*std::move(weights),
                           PartsOf(*spec, of.basis == CaseBasis::kNone ? nullptr : &basis));
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

void PressOldest(Model* model, SequenceCache* cache) {
  if (!cache->layout().HasPressedRuns()) return;
  const std::optional<int> run_idx = cache->RunToPress();
  EXPECT_TRUE(run_idx.has_value());
  if (!run_idx.has_value()) return;
  const Status status = model->PressRun(cache, *run_idx);
  EXPECT_TRUE(status.ok()) << status;
}

std::string Feed(Model* model, SequenceCache* cache, std::span<const int32_t> ids, size_t piece) {
  while (!ids.empty()) {
    if (cache->must_read_again()) {
      // Any tokens will do: the prompt may have come in parts.
      const std::vector<int32_t> other = RandomTokens(static_cast<int>(cache->n_prompt()), 77);
      const Status again = model->ReadPromptAgain(cache, other, static_cast<int64_t>(piece));
      EXPECT_TRUE(again.ok()) << again;
    }
    const size_t n =
        std::min({ids.size(), piece, static_cast<size_t>(std::max<int64_t>(1, cache->max_step()))});
    EXPECT_TRUE(cache->Extend(static_cast<int>(n)).ok());
    const SequenceStep step = {cache, ids.first(n), SequenceStep::Logits::kLast};
    const Status status = model->Forward({&step, 1});
    EXPECT_TRUE(status.ok()) << status;
    ids = ids.subspan(n);
  }
  const auto logits = std::as_bytes(model->logits(0));
  return {reinterpret_cast<const char*>(logits.data()), logits.size()};
}

std::vector<int32_t> RandomTokens(int n, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(kSmallVocabulary));
  return ids;
}

}  // namespace kvlathe::testing
