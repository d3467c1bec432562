#include "kv/spec/spec_table.h"

#include <iterator>

#include "analysis/bases/eigen.h"
#include "analysis/bases/fdc.h"
#include "analysis/bases/lathe.h"
#include "analysis/bases/palu.h"
#include "analysis/bases/zack.h"
#include "analysis/rotations/spectral.h"
#include "kv/spec/compatibility.h"
#include "kv/spec/read_options.h"
#include "kv/spec/spec_keys.h"
#include "kv/spec/tuning_ladders.h"

namespace kvlathe {
namespace {

using enum Axis;

// --- basis ---

constexpr KeyInfo kResident = {
    .name = "resident",
    .doc = "full: the weights of all dimensions stay, so that a request may choose its own rate",
    .choices = "full"};
constexpr KeyInfo kWhiten = {.name = "whiten",
                             .doc = "weigh the weights by the Gram matrix of their inputs",
                             .default_text = "on",
                             .choices = "on|off"};
constexpr KeyInfo kFdcWhiten = WithDoc(
    kWhiten, "values by the SVD of W_V behind the Gram matrix of its inputs, as Palu; off: of W_V");
constexpr const KeyInfo* kFdcKeys[] = {&kRate,  &kRatio,     &kAccuracy, &kRanks,
                                       &kRound, &kFdcWhiten, &kResident, &kSink};

constexpr KeyInfo kNormalise = {.name = "normalise",
                                .doc = "stack Q on K and V on W_O at equal norms",
                                .default_text = "off",
                                .choices = "on|off"};
constexpr KeyInfo kOnline = {
    .name = "online",
    .doc = "on: the paper's /OE; rotations found where a prompt ends, and nothing folded",
    .choices = "on"};
constexpr const KeyInfo* kZackKeys[] = {&kRate,      &kRatio,    &kAccuracy, &kRanks, &kRound,
                                        &kNormalise, &kResident, &kOnline,   &kSink};
constexpr KeyInfo kCentre = {.name = "centre",
                             .doc = "subtract the means of keys and values; takes no bytes",
                             .default_text = "on",
                             .choices = "on|off"};
constexpr KeyInfo kLatheKeyRows = {
    .name = "keys",
    .doc =
        "keys as they are after RoPE; the same less the mean that they have before it (centred); "
        "likewise, turned inside frames of 256 positions (block); or latents of those before RoPE, "
        "made into keys at every read. auto: centred where bits are mixed and entries keep their "
        "places, after elsewhere",
    .default_text = "after",
    .choices = "after|auto|centred|block|before"};
constexpr KeyInfo kLatheMaps = {.name = "maps",
                                .doc =
                                    "with mixed bits and keys=block: joint: one map for keys and "
                                    "values, whose codes are stored "
                                    "once and read for both",
                                .choices = "joint"};
constexpr KeyInfo kLatheHeads = {
    .name = "heads",
    .doc =
        "one map for the KV heads of a layer together (at most 512 channels, 256 with a "
        "quantizer), or one for each; auto: together up to 256 channels where bits are mixed and "
        "heads choose no entries of their own",
    .default_text = "auto",
    .choices = "auto|joint|own"};
constexpr KeyInfo kLatheBits = {
    .name = "bits",
    .doc =
        "mixed: of every 16 channels their own, 1 to 8, by ratio; 16: only ranks; auto: mixed with "
        "ratio where no quantizer follows",
    .default_text = "auto",
    .choices = "auto|mixed|16"};
constexpr KeyInfo kLatheScales = {
    .name = "scales",
    .doc =
        "with mixed bits: one for K and one for V of each token (token, auto), or only those of "
        "channels that calibration finds (static)",
    .default_text = "auto",
    .choices = "auto|static|token"};
constexpr KeyInfo kLatheOpen = {
    .name = "open",
    .doc =
        "with mixed bits: bits of a number of the newest block, until it is sealed; auto: 8 from "
        "ratio 5 on; 16 where a retention stage drops or merges entries",
    .default_text = "auto",
    .choices = "auto|8|16"};
constexpr KeyInfo kLatheClasses = {
    .name = "classes",
    .doc =
        "with mixed bits: 3: where the prompt ends, the quarter of the entries that its last "
        "queries attend to most gets more bits, the quarter with the least fewer; 1: all alike",
    .default_text = "1",
    .choices = "1|3"};
constexpr KeyInfo kLathePressure = {
    .name = "under_pressure",
    .doc =
        "with mixed bits: a ratio above `ratio`, whose bits the oldest runs are sealed again in "
        "before a request that runs is preempted for memory",
    .min = 1,
    .max = 1000,
    .excludes_min = true};
constexpr KeyInfo kLatheNewest = WithDefault(kNewest, "auto");
constexpr KeyInfo kLatheContext = {
    .name = "context",
    .doc =
        "positions at which ratio counts bytes, and shares them out where layers have sliding "
        "windows; without it the model's context",
    .min = 1,
    .max = 1 << 30,
    .multiple_of = 1};
constexpr const KeyInfo* kLatheKeys[] = {
    &kRate,         &kRatio,       &kAccuracy,     &kRanks,        &kRound,
    &kResident,     &kCentre,      &kLatheKeyRows, &kLatheMaps,    &kLatheHeads,
    &kLatheBits,    &kLatheScales, &kLatheOpen,    &kLatheClasses, &kLathePressure,
    &kLatheContext, &kRun,         &kBuffer,       &kLatheNewest,  &kSink};

constexpr KeyInfo kPaluGroup = {
    .name = "group",
    .doc = "KV heads that share a latent: 1 (M-LRD), several (G-LRD) or all (J-LRD)",
    .default_text = "1",
    .min = 1,
    .max = 256,
    .multiple_of = 1};
constexpr const KeyInfo* kPaluKeys[] = {&kRate,      &kRatio,     &kAccuracy, &kPaluRanks,
                                        &kPaluRound, &kPaluGroup, &kWhiten,   &kSink};

constexpr const KeyInfo* kEigenKeys[] = {&kRate, &kRatio, &kAccuracy, &kRanks, &kRound, &kSink};

constexpr const KeyInfo* kSpectralKeys[] = {&kSpectralHeads, &kSpectralCentre, &kSink};

constexpr KeyInfo kOnlineRate =
    WithDoc(kRate, "share of the dimensions of every head removed, at most");
constexpr const KeyInfo* kOnlineKeys[] = {&kOnlineRate, &kSink};

// --- retention ---

constexpr KeyInfo kRecent = {.name = "recent",
                             .doc = "share of the kept positions that are the newest",
                             .default_text = "0.5",
                             .min = 0,
                             .max = 1};
constexpr KeyInfo kH2oKeep = WithDefault(kKeep, "0.2");
constexpr const KeyInfo* kH2oKeys[] = {&kH2oKeep, &kBudget, &kAccuracy, &kRecent,
                                       &kPrune,   &kScore,  &kSink};

constexpr KeyInfo kTovaBudget = WithDefault(kBudget, "512");
constexpr KeyInfo kTovaHeads = {
    .name = "heads",
    .doc = "all KV heads of a layer keep the same positions, or its own each",
    .default_text = "shared",
    .choices = "shared|own"};
constexpr const KeyInfo* kTovaKeys[] = {&kTovaBudget, &kKeep,  &kAccuracy, &kTovaHeads,
                                        &kPrune,      &kScore, &kSink};

constexpr KeyInfo kKeyformerKeep = WithDefault(kKeep, "0.6");
constexpr KeyInfo kKeyformerRecent = WithDefault(kRecent, "0.3");
constexpr KeyInfo kTauInit = {.name = "tau_init",
                              .doc = "temperature of the noisy scores at the prompt",
                              .default_text = "1",
                              .min = 0,
                              .max = 100,
                              .excludes_min = true};
constexpr KeyInfo kTauEnd = {.name = "tau_end",
                             .doc = "temperature at the last new token; linear in between",
                             .default_text = "2",
                             .min = 0,
                             .max = 100,
                             .excludes_min = true};
constexpr KeyInfo kInterval = {.name = "interval",
                               .doc = "decode steps between two prunings",
                               .default_text = "1",
                               .min = 1,
                               .max = 4096,
                               .multiple_of = 1};
constexpr const KeyInfo* kKeyformerKeys[] = {
    &kKeyformerKeep, &kBudget,   &kAccuracy, &kKeyformerRecent, &kTauInit,
    &kTauEnd,        &kInterval, &kPrune,    &kScore,           &kSink};

constexpr KeyInfo kSnapkvBudget = WithDefault(kBudget, "1024");
constexpr KeyInfo kSnapkvWindow = {.name = "window",
                                   .doc = "last prompt queries that vote, and stay",
                                   .default_text = "32",
                                   .min = 1,
                                   .max = 4096,
                                   .multiple_of = 1};
constexpr KeyInfo kKernel = {.name = "kernel",
                             .doc = "positions over which scores are averaged",
                             .default_text = "5",
                             .choices = "1|3|5|7|9|11|13"};
constexpr const KeyInfo* kSnapkvKeys[] = {&kSnapkvBudget, &kKeep,  &kAccuracy, &kSnapkvWindow,
                                          &kKernel,       &kScore, &kSink};

constexpr KeyInfo kKvzipKeep = WithDefault(kKeep, "0.5");
constexpr KeyInfo kKvzipWindow = {.name = "window",
                                  .doc = "last prompt positions, which stay",
                                  .default_text = "32",
                                  .min = 1,
                                  .max = 4096,
                                  .multiple_of = 1};
constexpr KeyInfo kChunk = {.name = "chunk",
                            .doc = "prompt positions that are read again at a time",
                            .default_text = "2048",
                            .min = 16,
                            .max = 1 << 16,
                            .multiple_of = 1};
constexpr KeyInfo kKvzipHeads = {
    .name = "heads",
    .doc = "the heads of all layers compete for one budget, or each keeps as many",
    .default_text = "joint",
    .choices = "joint|own"};
constexpr const KeyInfo* kKvzipKeys[] = {&kKvzipKeep,  &kBudget, &kAccuracy, &kKvzipWindow,
                                         &kKvzipHeads, &kChunk,  &kScore,    &kSink};

constexpr KeyInfo kSize = {.name = "size",
                           .doc = "newest positions kept beside the sinks",
                           .default_text = "1024",
                           .min = 1,
                           .max = 1 << 24,
                           .multiple_of = 1,
                           .excludes_others = true};
constexpr const KeyInfo* kWindowKeys[] = {&kSize, &kAccuracy, &kSink};

constexpr KeyInfo kMerge = {.name = "n",
                            .doc = "consecutive positions averaged into one entry",
                            .default_text = "4",
                            .min = 2,
                            .max = 64,
                            .multiple_of = 1,
                            .excludes_others = true};
constexpr const KeyInfo* kPoolKeys[] = {&kMerge, &kAccuracy, &kSink};

constexpr KeyInfo kDmcWindow = {.name = "window",
                                .doc = "newest positions of a segment that are averaged; 0: all",
                                .default_text = "12",
                                .min = 0,
                                .max = 256,
                                .multiple_of = 1};
constexpr const KeyInfo* kDmcKeys[] = {&kDmcWindow, &kSink};

constexpr KeyInfo kDmsWindow = {.name = "window",
                                .doc = "newest positions that always stay; model: as it was taught",
                                .default_text = "model",
                                .min = 1,
                                .max = 1 << 16,
                                .multiple_of = 1,
                                .choices = "model"};
constexpr KeyInfo kDmsOffset = {
    .name = "offset",
    .doc = "what a decision must exceed: a lower one drops more; model: as it was taught",
    .default_text = "model",
    .min = -1000,
    .max = 1000,
    .choices = "model"};
constexpr KeyInfo kDmsRun = {.name = "run",
                             .doc = "prompt positions after which what may leave leaves",
                             .default_text = "256",
                             .min = 1,
                             .max = 1 << 16,
                             .multiple_of = 1};
constexpr KeyInfo kDmsInterval = {.name = "interval",
                                  .doc = "the same behind the prompt",
                                  .default_text = "64",
                                  .choices = "1|2|4|8|16|32|64"};
constexpr const KeyInfo* kDmsKeys[] = {&kDmsWindow, &kDmsOffset, &kDmsRun, &kDmsInterval, &kSink};

// --- how `tune` tries them ---

constexpr TunedForm kLatheForms[] = {{"lathe", 0}, {"lathe(keys=before)", 1}};
constexpr TunedForm kFdcForms[] = {{"fdc", 2}};
constexpr TunedForm kZackForms[] = {{"zack", 3}};
constexpr TunedForm kPaluForms[] = {{"palu", 4}};
constexpr TunedForm kH2oForms[] = {{"h2o", 5}};
constexpr TunedForm kTovaForms[] = {{"tova", 6}};
constexpr TunedForm kKeyformerForms[] = {{"keyformer", 7}};

constexpr StageInfo kStages[] = {
    {.name = "zack",
     .axis = kBasis,
     .doc = "one rotation for queries and keys, one for values and outputs, truncated",
     .paper = kZackPaper,
     .keys = kZackKeys,
     .read = ReadZack,
     .check = CheckZack,
     .analysis = &kZackMethod,
     .ladders = kRateLadder,
     .tuned = kZackForms},
    {.name = "fdc",
     .axis = kBasis,
     .doc = "queries and keys rotated after RoPE on random tokens, values by a whitened SVD of W_V",
     .paper = kFdcPaper,
     .keys = kFdcKeys,
     .read = ReadFdc,
     .check = CheckBasis,
     .analysis = &kFdcMethod,
     .ladders = kRateLadder,
     .tuned = kFdcForms},
    {.name = "palu",
     .axis = kBasis,
     .doc = "keys and values as latents of a low-rank projection, keys before RoPE",
     .paper = "Palu: Compressing KV-Cache with Low-Rank Projection",
     .keys = kPaluKeys,
     .read = ReadPalu,
     .check = CheckBasis,
     .analysis = &kPaluMethod,
     .ladders = kRateLadder,
     .tuned = kPaluForms},
    {.name = "eigen",
     .axis = kBasis,
     .doc = "principal directions: of a layer's keys before RoPE, and of each head's values",
     .paper = "Eigen Attention: Attention in Low-Rank Space for KV Cache Compression",
     .keys = kEigenKeys,
     .read = ReadEigen,
     .check = CheckBasis,
     .analysis = &kEigenMethod,
     .ladders = kRateLadder},
    {.name = "spectral",
     .axis = kBasis,
     .doc = "rotations by what queries and attention's outputs hold, all channels alike: for codes",
     .paper = kOscarPaper,
     .keys = kSpectralKeys,
     .read = ReadSpectral,
     .check = CheckBasis,
     .analysis = &kSpectralMethod},
    {.name = "svd-online",
     .axis = kBasis,
     .doc = "an SVD of each prompt where it ends: the papers' strawman",
     .paper = "ZACK and FDC, as a baseline",
     .keys = kOnlineKeys,
     .read = ReadSvdOnline,
     .check = CheckSvdOnline},
    {.name = "lathe",
     .axis = kBasis,
     .doc = "maps, ranks and bits by what errors of rows cost the output, for the heads of a layer "
            "together",
     .paper = "this project",
     .keys = kLatheKeys,
     .read = ReadLathe,
     .check = CheckLathe,
     .analysis = &kLatheMethod,
     .ladders = kLatheLadders,
     .tuned = kLatheForms},

    {.name = "h2o",
     .axis = kRetention,
     .doc = "the newest positions and those with the most attention so far",
     .paper =
         "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
     .keys = kH2oKeys,
     .read = ReadH2o,
     .check = CheckVoting,
     .ladders = kKeepLadder,
     .tuned = kH2oForms},
    {.name = "mas",
     .axis = kRetention,
     .doc = "the newest positions and those with the most attention for each query that saw them",
     .paper = "On the Efficacy of Eviction Policy for Key-Value Constrained Generative Language "
              "Model Inference",
     .keys = kH2oKeys,
     .read = ReadMas,
     .check = CheckVoting,
     .ladders = kKeepLadder},
    {.name = "tova",
     .axis = kRetention,
     .doc = "drops the position that the newest query attends to least",
     .paper = "Transformers are Multi-State RNNs",
     .keys = kTovaKeys,
     .read = ReadTova,
     .check = CheckVoting,
     .ladders = kKeepLadder,
     .tuned = kTovaForms},
    {.name = "keyformer",
     .axis = kRetention,
     .doc = "the newest positions and those with the highest noisy scores",
     .paper = "Keyformer: KV Cache Reduction through Key Tokens Selection for Efficient Generative "
              "Inference",
     .keys = kKeyformerKeys,
     .read = ReadKeyformer,
     .check = CheckVoting,
     .ladders = kKeepLadder,
     .tuned = kKeyformerForms},
    {.name = "snapkv",
     .axis = kRetention,
     .doc = "the prompt positions that its last queries attend to",
     .paper = "SnapKV: LLM Knows What You are Looking for Before Generation",
     .keys = kSnapkvKeys,
     .read = ReadSnapkv,
     .check = CheckVoting,
     .ladders = kKeepLadder},
    {.name = "kvzip",
     .axis = kRetention,
     .doc = "the prompt positions that are attended to while the prompt is read again",
     .paper = "KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction",
     .keys = kKvzipKeys,
     .read = ReadKvzip,
     .check = CheckVoting,
     .ladders = kKeepLadder},
    {.name = "window",
     .axis = kRetention,
     .doc = "sinks and the newest positions",
     .paper = "Efficient Streaming Language Models with Attention Sinks",
     .keys = kWindowKeys,
     .read = ReadWindow,
     .ladders = kSizeLadder},
    {.name = "pool",
     .axis = kRetention,
     .doc = "averages a fixed number of consecutive positions",
     .paper = kDmcPaper,
     .keys = kPoolKeys,
     .read = ReadPool,
     .ladders = kMergeLadder},
    {.name = "dmc",
     .axis = kRetention,
     .doc = "the model decides which positions merge (needs a retrofitted model)",
     .paper = kDmcPaper,
     .keys = kDmcKeys,
     .read = ReadDmc},
    {.name = "dms",
     .axis = kRetention,
     .doc = "the model decides which positions leave once they are old (needs a retrofit)",
     .paper = "Inference-Time Hyper-Scaling with KV Cache Compression",
     .keys = kDmsKeys,
     .read = ReadDms},
};

}  // namespace

const KeyInfo* StageInfo::FindKey(std::string_view key_name) const {
  for (const KeyInfo* key : keys) {
    if (key->name == key_name) return key;
  }
  return nullptr;
}

std::span<const StageInfo> AllStages() {
  static const std::vector<StageInfo> all = [] {
    std::vector<StageInfo> stages(std::begin(kStages), std::end(kStages));
    for (const std::span<const StageInfo> more : {QuantizersAndResiduals(), Presets()}) {
      stages.insert(stages.end(), more.begin(), more.end());
    }
    return stages;
  }();
  return all;
}

const StageInfo* FindStage(std::string_view name) {
  for (const StageInfo& stage : AllStages()) {
    if (stage.name == name) return &stage;
  }
  return nullptr;
}

}  // namespace kvlathe
