#include "kv/spec/spec_table.h"

#include <iterator>

#include "kv/spec/spec_keys.h"

namespace kvlathe {
namespace {

using enum Axis;

// --- basis ---

constexpr KeyInfo kResident = {
    .name = "resident",
    .doc = "full: the weights of all dimensions stay, so that a request may choose its own rate",
    .choices = "full"};
constexpr const KeyInfo* kBasisKeys[] = {&kRate,  &kRatio,    &kAccuracy, &kRanks,
                                         &kRound, &kResident, &kSink};

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
        "keys as they are after RoPE, or latents of those before it, made into keys at every read",
    .default_text = "after",
    .choices = "after|before"};
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
        "with mixed bits: auto: an offset and a scale in each block for channels of keys where "
        "calibration finds that they save more than bits do; static: only those of calibration",
    .default_text = "auto",
    .choices = "auto|static"};
constexpr KeyInfo kLatheOpen = {
    .name = "open",
    .doc =
        "with mixed bits: bits of a number of the newest block, until it is sealed; auto: 8 from "
        "ratio 5 on; 16 where a retention stage drops or merges entries",
    .default_text = "auto",
    .choices = "auto|8|16"};
constexpr KeyInfo kLatheNewest = WithDefault(kNewest, "32");
constexpr const KeyInfo* kLatheKeys[] = {&kRate,      &kRatio,       &kAccuracy,  &kRanks,
                                         &kRound,     &kResident,    &kCentre,    &kLatheKeyRows,
                                         &kLatheBits, &kLatheScales, &kLatheOpen, &kRun,
                                         &kBuffer,    &kLatheNewest, &kSink};

constexpr KeyInfo kPaluGroup = {
    .name = "group",
    .doc = "KV heads that share a latent: 1 (M-LRD), several (G-LRD) or all (J-LRD)",
    .default_text = "1",
    .min = 1,
    .max = 256,
    .multiple_of = 1};
constexpr KeyInfo kWhiten = {.name = "whiten",
                             .doc = "weigh the weights by the Gram matrix of their inputs",
                             .default_text = "on",
                             .choices = "on|off"};
constexpr const KeyInfo* kPaluKeys[] = {&kRate,      &kRatio,     &kAccuracy, &kPaluRanks,
                                        &kPaluRound, &kPaluGroup, &kWhiten,   &kSink};

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

// --- quantizer ---

constexpr KeyInfo kGroup = {.name = "group",
                            .doc = "channels of a token that share a scale",
                            .default_text = "64",
                            .choices = "16|32|64|128"};
constexpr KeyInfo kBits4 = Bits("2|3|4|8", "4");
constexpr KeyInfo kBits2 = Bits("2|3|4|8", "2");
constexpr KeyInfo kHadamard = {.name = "hadamard",
                               .doc = "mix channels by a Hadamard matrix first: outliers spread",
                               .default_text = "off",
                               .choices = "on|off"};
constexpr const KeyInfo* kTokenKeys[] = {&kBits4, &kAccuracy, &kGroup,  &kHadamard,
                                         &kRun,   &kBuffer,   &kNewest, &kSink};
constexpr const KeyInfo* kKcvtKeys[] = {&kBits4, &kAccuracy, &kRun, &kBuffer, &kNewest, &kSink};

constexpr KeyInfo kKiviGroup =
    WithDoc(WithChoices(kGroup, "32|64|128", "32"),
            "tokens (K) and channels (V) that share a scale; must divide run and buffer");
constexpr KeyInfo kKiviBuffer =
    WithDoc(kBuffer, "newest positions held in 16 bits while decoding (the paper's R: 128)");
constexpr const KeyInfo* kKiviKeys[] = {&kBits2,      &kAccuracy, &kKiviGroup, &kRun,
                                        &kKiviBuffer, &kNewest,   &kSink};

constexpr KeyInfo kOutliers = {.name = "outliers",
                               .doc = "share of the entries kept exactly",
                               .default_text = "0.01",
                               .min = 0,
                               .max = 0.1};
constexpr KeyInfo kQnorm = {.name = "qnorm",
                            .doc = "match mean and deviation of the codebook; auto: at 2 bits",
                            .default_text = "auto",
                            .choices = "auto|on|off"};
constexpr const KeyInfo* kKvquantKeys[] = {&kKvquantBits, &kAccuracy, &kOutliers, &kQnorm,
                                           &kRun,         &kBuffer,   &kNewest,   &kSink};
constexpr const KeyInfo* kInt8Keys[] = {&kHadamard, &kRun, &kBuffer, &kNewest, &kSink};

// --- residual ---

constexpr const KeyInfo* kLowrankKeys[] = {&kPrefillRank, &kDecodeRank, &kRepaired, &kLoops};
constexpr const KeyInfo* kSparseKeys[] = {&kShare};

constexpr StageInfo kStages[] = {
    {"zack", kBasis, "one rotation for queries and keys, one for values and outputs, truncated",
     kZackPaper, kZackKeys},
    {"fdc", kBasis,
     "queries and keys rotated after RoPE on random tokens, values by the SVD of W_V", kFdcPaper,
     kBasisKeys},
    {"palu", kBasis, "keys and values as latents of a low-rank projection, keys before RoPE",
     "Palu: Compressing KV-Cache with Low-Rank Projection", kPaluKeys},
    {"svd-online", kBasis, "an SVD of each prompt where it ends: the papers' strawman",
     "ZACK and FDC, as a baseline", kOnlineKeys},
    {"lathe", kBasis,
     "maps from the SVD of queries times keys, centred; ranks and bits by measured losses",
     "this project", kLatheKeys},

    {"h2o", kRetention, "the newest positions and those with the most attention so far",
     "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
     kH2oKeys},
    {"tova", kRetention, "drops the position that the newest query attends to least",
     "Transformers are Multi-State RNNs", kTovaKeys},
    {"keyformer", kRetention, "the newest positions and those with the highest noisy scores",
     "Keyformer: KV Cache Reduction through Key Tokens Selection for Efficient Generative "
     "Inference",
     kKeyformerKeys},
    {"snapkv", kRetention, "the prompt positions that its last queries attend to",
     "SnapKV: LLM Knows What You are Looking for Before Generation", kSnapkvKeys},
    {"window", kRetention, "sinks and the newest positions",
     "Efficient Streaming Language Models with Attention Sinks", kWindowKeys},
    {"pool", kRetention, "averages a fixed number of consecutive positions", kDmcPaper, kPoolKeys},
    {"dmc", kRetention, "the model decides which positions merge (needs a retrofitted model)",
     kDmcPaper, kDmcKeys},

    {"token", kQuantizer, "groups of channels within a token",
     "FlexGen: High-Throughput Generative Inference of Large Language Models with a Single GPU",
     kTokenKeys},
    {"kcvt", kQuantizer, "one scale per channel of K in a run, one per token of V over all heads",
     kGearPaper, kKcvtKeys},
    {"kivi", kQuantizer, "K in groups of tokens per channel, V in groups of channels per token",
     "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", kKiviKeys},
    {"kvquant", kQuantizer, "non-uniform codes per layer, outliers apart",
     "KVQuant: Towards 10 Million Context Length LLM Inference with KV Cache Quantization",
     kKvquantKeys},
    {"int8", kQuantizer, "8 bits, one scale per token and KV head", "common practice", kInt8Keys},
    {"q8_0", kQuantizer, "8 bits, one scale for 32 channels of a token", "llama.cpp", kInt8Keys},
    {"q4_0", kQuantizer, "4 bits, one scale for 32 channels of a token", "llama.cpp", kInt8Keys},

    {"lowrank", kResidual, "low-rank factors of what the quantizer lost, per run and head",
     kGearPaper, kLowrankKeys},
    {"sparse", kResidual, "the largest and smallest entries, kept exactly", kGearPaper,
     kSparseKeys},
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
    stages.insert(stages.end(), Presets().begin(), Presets().end());
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
