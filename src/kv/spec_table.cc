#include "kv/spec_table.h"

#include <cmath>

namespace kvlathe {
namespace {

using enum Axis;

// --- Keys that several stages share. ---

constexpr KeyInfo kRate = {.name = "rate",
                           .doc = "share of K and V elements removed, after ranks are rounded up",
                           .default_text = "0.5",
                           .min = 0,
                           .max = 1,
                           .excludes_max = true,
                           .excludes_others = true};
constexpr KeyInfo kRatio = {.name = "ratio",
                            .doc = "uncompressed bytes / stored bytes at the model's full context",
                            .min = 1,
                            .max = 1000,
                            .excludes_others = true};
constexpr KeyInfo kAccuracy = {.name = "accuracy",
                               .doc = "share of the baseline's accuracy that a tuned profile keeps",
                               .min = 0,
                               .max = 1,
                               .excludes_min = true,
                               .excludes_others = true};
constexpr KeyInfo kRanks = {.name = "ranks",
                            .doc = "ranks by the spectrum of each head, or one for all",
                            .default_text = "adaptive",
                            .choices = "adaptive|uniform"};
constexpr KeyInfo kRound = {.name = "round",
                            .doc = "ranks are rounded up to a multiple of it",
                            .default_text = "16",
                            .choices = "8|16"};
constexpr KeyInfo kSink = {.name = "sink",
                           .doc = "first positions kept whole in 16 bits; one value per spec",
                           .default_text = "4",
                           .min = 0,
                           .max = 1024,
                           .multiple_of = 1};
constexpr KeyInfo kKeep = {.name = "keep",
                           .doc = "share of the positions kept",
                           .min = 0,
                           .max = 1,
                           .excludes_min = true,
                           .excludes_others = true};
constexpr KeyInfo kBudget = {.name = "budget",
                             .doc = "positions kept; prompt: of keep, the share of the prompt",
                             .min = 1,
                             .max = 1 << 24,
                             .multiple_of = 1,
                             .choices = "prompt",
                             .excludes_others = true};
constexpr KeyInfo kPrune = {.name = "prune",
                            .doc = "drop where runs of the prompt end, or only where it ends",
                            .default_text = "run",
                            .choices = "run|prompt"};
constexpr KeyInfo kRun = {.name = "run",
                          .doc = "prompt positions compressed together; prompt: all of them",
                          .default_text = "512",
                          .min = 64,
                          .max = 1 << 20,
                          .multiple_of = 64,
                          .choices = "prompt"};
constexpr KeyInfo kBuffer = {
    .name = "buffer",
    .doc = "newest positions that wait to be sealed together while decoding",
    .default_text = "64",
    .min = 64,
    .max = 4096,
    .multiple_of = 64};
constexpr KeyInfo kNewest = {.name = "newest",
                             .doc = "newest positions, of which none is sealed",
                             .default_text = "0",
                             .min = 0,
                             .max = 4096,
                             .multiple_of = 1};
constexpr KeyInfo kShare = {.name = "share",
                            .doc = "share of the entries kept exactly, half at either end",
                            .default_text = "0.02",
                            .min = 0,
                            .max = 0.5,
                            .excludes_min = true};
constexpr KeyInfo kPrefillRank = {.name = "prefill",
                                  .doc = "rank for the runs of the prompt",
                                  .default_text = "4",
                                  .min = 1,
                                  .max = 64,
                                  .multiple_of = 1};
constexpr KeyInfo kDecodeRank = {
    .name = "decode",
    .doc = "rank for each buffer while decoding; 0: on the prompt only",
    .default_text = "2",
    .min = 0,
    .max = 64,
    .multiple_of = 1};

// The same key with another default, range or text.
constexpr KeyInfo WithDefault(KeyInfo key, std::string_view default_text) {
  key.default_text = default_text;
  return key;
}
constexpr KeyInfo WithDoc(KeyInfo key, std::string_view doc) {
  key.doc = doc;
  return key;
}
constexpr KeyInfo WithChoices(KeyInfo key, std::string_view choices,
                              std::string_view default_text) {
  key.choices = choices;
  return WithDefault(key, default_text);
}
constexpr KeyInfo BesideOthers(KeyInfo key) {
  key.excludes_others = false;
  return key;
}
// On a preset: the default is that of the stage which the key goes to.
constexpr KeyInfo PassedOn(const KeyInfo& key) { return WithDefault(key, ""); }

constexpr KeyInfo Bits(std::string_view choices, std::string_view default_text) {
  return {.name = "bits",
          .doc = "bits of a code",
          .default_text = default_text,
          .choices = choices,
          .excludes_others = true};
}

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
                             .doc = "subtract the means of keys and values, which is free",
                             .default_text = "on",
                             .choices = "on|off"};
constexpr KeyInfo kLatheKeyRows = {
    .name = "keys",
    .doc = "keys as they are after RoPE, or before it: less error, more time to read them",
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
        "with mixed bits: auto: an offset and a scale in each block for the channels of keys that "
        "gain more by them than by more bits; static: only those of calibration",
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

constexpr KeyInfo kPaluRanks = WithDoc(WithChoices(kRanks, "adaptive|uniform|fisher", "adaptive"),
                                       "ranks by the spectrum of each head, one for all, or Palu's "
                                       "by Fisher information of each layer");
constexpr KeyInfo kPaluRound = WithChoices(kRound, "8|16|32", "32");
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
constexpr KeyInfo kScore = {
    .name = "score",
    .doc =
        "keys whose scores decide: as a basis stores them; exact: whole ones, until the prompt "
        "ends",
    .default_text = "stored",
    .choices = "stored|exact"};
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
constexpr KeyInfo kKvquantBits = Bits("2|3|4", "4");
constexpr const KeyInfo* kKvquantKeys[] = {&kKvquantBits, &kAccuracy, &kOutliers, &kQnorm,
                                           &kRun,         &kBuffer,   &kNewest,   &kSink};
constexpr const KeyInfo* kInt8Keys[] = {&kHadamard, &kRun, &kBuffer, &kNewest, &kSink};

// --- residual ---

constexpr KeyInfo kLoops = {.name = "loops",
                            .doc = "power iterations",
                            .default_text = "3",
                            .min = 1,
                            .max = 16,
                            .multiple_of = 1};
constexpr KeyInfo kRepaired = {.name = "recent",
                               .doc = "share of the prompt whose runs have factors, the newest",
                               .default_text = "1",
                               .min = 0,
                               .max = 1};
constexpr const KeyInfo* kLowrankKeys[] = {&kPrefillRank, &kDecodeRank, &kRepaired, &kLoops};
constexpr const KeyInfo* kSparseKeys[] = {&kShare};

// --- presets ---

constexpr KeyInfo kGearBits = WithDoc(Bits("2|4", "4"), "4: on kcvt; 2: on kivi(group=64)");
constexpr KeyInfo kOutlierBits = Bits("2|4", "2");
constexpr KeyInfo kPassedShare = PassedOn(kShare);
constexpr KeyInfo kPassedPrefill = PassedOn(kPrefillRank);
constexpr KeyInfo kPassedDecode = PassedOn(kDecodeRank);
constexpr KeyInfo kPassedRepaired = PassedOn(kRepaired);
constexpr KeyInfo kPassedLoops = PassedOn(kLoops);
constexpr KeyInfo kPassedRun = PassedOn(kRun);
constexpr KeyInfo kPassedBuffer = PassedOn(kBuffer);
constexpr KeyInfo kPassedNewest = PassedOn(kNewest);
constexpr KeyInfo kPassedSink = PassedOn(kSink);
constexpr KeyInfo kPassedRanks = PassedOn(kRanks);
constexpr KeyInfo kPassedRound = PassedOn(kRound);
constexpr KeyInfo kPassedScore = PassedOn(kScore);
constexpr const KeyInfo* kGearKeys[] = {
    &kGearBits,    &kAccuracy,  &kPassedPrefill, &kPassedDecode, &kPassedRepaired, &kPassedLoops,
    &kPassedShare, &kPassedRun, &kPassedBuffer,  &kPassedNewest, &kPassedSink};
constexpr const KeyInfo* kGearLKeys[] = {&kGearBits,     &kAccuracy,       &kPassedPrefill,
                                         &kPassedDecode, &kPassedRepaired, &kPassedLoops,
                                         &kPassedRun,    &kPassedBuffer,   &kPassedSink};
constexpr const KeyInfo* kOutlierKeys[] = {&kOutlierBits, &kAccuracy,     &kPassedShare,
                                           &kPassedRun,   &kPassedBuffer, &kPassedNewest,
                                           &kPassedSink};

constexpr KeyInfo kBothRate =
    WithDoc(WithDefault(kRate, "0.7"), "share removed by both together, 1 - sqrt(1 - rate) each");
constexpr const KeyInfo* kEvictAndRotateKeys[] = {&kBothRate,    &kAccuracy,    &kPassedRanks,
                                                  &kPassedRound, &kPassedScore, &kPassedSink};
// Beside rate, which is what accuracy stands for.
constexpr KeyInfo kRotatedBits = BesideOthers(kKvquantBits);
constexpr const KeyInfo* kRotateAndQuantizeKeys[] = {&kRate,         &kAccuracy,     &kRotatedBits,
                                                     &kPassedRanks,  &kPassedRound,  &kPassedRun,
                                                     &kPassedBuffer, &kPassedNewest, &kPassedSink};
constexpr KeyInfo kPassedPaluRanks = PassedOn(kPaluRanks);
constexpr KeyInfo kPassedPaluRound = PassedOn(kPaluRound);
constexpr const KeyInfo* kKfPKeys[] = {&kBothRate, &kAccuracy, &kPassedPaluRanks, &kPassedPaluRound,
                                       &kPassedSink};
constexpr const KeyInfo* kKvqPKeys[] = {
    &kRate,      &kAccuracy,     &kRotatedBits,  &kPassedPaluRanks, &kPassedPaluRound,
    &kPassedRun, &kPassedBuffer, &kPassedNewest, &kPassedSink};

std::vector<ExpandedStage> GearBackbone(const PresetKeys& keys) {
  if (keys.Number("bits") == 2) return {{"kivi", {{"group", 64}}}};
  return {{"kcvt", {}}};
}

std::vector<ExpandedStage> ExpandGear(const PresetKeys& keys) {
  std::vector<ExpandedStage> stages = GearBackbone(keys);
  stages.push_back({"lowrank", {}});
  stages.push_back({"sparse", {}});
  return stages;
}

std::vector<ExpandedStage> ExpandGearL(const PresetKeys& keys) {
  std::vector<ExpandedStage> stages = GearBackbone(keys);
  stages.push_back({"lowrank", {}});
  return stages;
}

std::vector<ExpandedStage> ExpandOutlierAware(const PresetKeys&) {
  return {{"kivi", {{"group", 64}}}, {"sparse", {}}};
}

// What each of two methods removes so that both together remove `rate`.
std::vector<ExpandedStage> EvictAndRotate(std::string_view basis, const PresetKeys& keys) {
  const double kept = std::sqrt(1 - keys.Number("rate"));
  return {{basis, {{"rate", 1 - kept}}}, {"keyformer", {{"keep", kept}}}};
}

std::vector<ExpandedStage> ExpandKeyformerZ(const PresetKeys& keys) {
  return EvictAndRotate("zack", keys);
}

std::vector<ExpandedStage> ExpandKfF(const PresetKeys& keys) { return EvictAndRotate("fdc", keys); }

std::vector<ExpandedStage> ExpandKfP(const PresetKeys& keys) {
  return EvictAndRotate("palu", keys);
}

std::vector<ExpandedStage> ExpandKvquantZ(const PresetKeys&) {
  return {{"zack", {}}, {"kvquant", {}}};
}

std::vector<ExpandedStage> ExpandKvqF(const PresetKeys&) { return {{"fdc", {}}, {"kvquant", {}}}; }

std::vector<ExpandedStage> ExpandKvqP(const PresetKeys&) { return {{"palu", {}}, {"kvquant", {}}}; }

constexpr std::string_view kZackPaper = "ZACK: dimensionality compression of the KV cache";
constexpr std::string_view kFdcPaper = "FDC: fast KV dimensionality compression";
constexpr std::string_view kGearPaper =
    "GEAR: An Efficient KV Cache Compression Recipe for Near-Lossless Generative Inference of LLM";
constexpr std::string_view kDmcPaper =
    "Dynamic Memory Compression: Retrofitting LLMs for Accelerated Inference";

constexpr StageInfo kStages[] = {
    {"zack", kBasis, "one rotation for queries and keys, one for values and outputs, truncated",
     kZackPaper, kZackKeys, true},
    {"fdc", kBasis,
     "queries and keys rotated after RoPE on random tokens, values by the SVD of W_V", kFdcPaper,
     kBasisKeys, true},
    {"palu", kBasis, "keys and values as latents of a low-rank projection, keys before RoPE",
     "Palu: Compressing KV-Cache with Low-Rank Projection", kPaluKeys, true},
    {"svd-online", kBasis, "an SVD of each prompt where it ends: the papers' strawman",
     "ZACK and FDC, as a baseline", kOnlineKeys, true},
    {"lathe", kBasis, "score-optimal bases of centred rows, ranks and bits by error per byte",
     "this project", kLatheKeys, true},

    {"h2o", kRetention, "the newest positions and those with the most attention so far",
     "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
     kH2oKeys, true},
    {"tova", kRetention, "drops the position that the newest query attends to least",
     "Transformers are Multi-State RNNs", kTovaKeys, true},
    {"keyformer", kRetention, "the newest positions and those with the highest noisy scores",
     "Keyformer: KV Cache Reduction through Key Tokens Selection for Efficient Generative "
     "Inference",
     kKeyformerKeys, true},
    {"snapkv", kRetention, "the prompt positions that its last queries attend to",
     "SnapKV: LLM Knows What You are Looking for Before Generation", kSnapkvKeys, true},
    {"window", kRetention, "sinks and the newest positions",
     "Efficient Streaming Language Models with Attention Sinks", kWindowKeys, true},
    {"pool", kRetention, "averages a fixed number of consecutive positions", kDmcPaper, kPoolKeys,
     true},
    {"dmc", kRetention, "the model decides which positions merge (needs a retrofitted model)",
     kDmcPaper, kDmcKeys, true},

    {"token", kQuantizer, "groups of channels within a token",
     "FlexGen: High-Throughput Generative Inference of Large Language Models with a Single GPU",
     kTokenKeys, true},
    {"kcvt", kQuantizer, "one scale per channel of K in a run, one per token of V over all heads",
     kGearPaper, kKcvtKeys, true},
    {"kivi", kQuantizer, "K in groups of tokens per channel, V in groups of channels per token",
     "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", kKiviKeys, true},
    {"kvquant", kQuantizer, "non-uniform codes per layer, outliers apart",
     "KVQuant: Towards 10 Million Context Length LLM Inference with KV Cache Quantization",
     kKvquantKeys, true},
    {"int8", kQuantizer, "8 bits, one scale per token and KV head", "common practice", kInt8Keys,
     true},
    {"q8_0", kQuantizer, "8 bits, one scale for 32 channels of a token", "llama.cpp", kInt8Keys,
     true},
    {"q4_0", kQuantizer, "4 bits, one scale for 32 channels of a token", "llama.cpp", kInt8Keys,
     true},

    {"lowrank", kResidual, "low-rank factors of what the quantizer lost, per run and head",
     kGearPaper, kLowrankKeys, true},
    {"sparse", kResidual, "the largest and smallest entries, kept exactly", kGearPaper, kSparseKeys,
     true},

    {"gear", kPreset, "kcvt or kivi, lowrank and sparse", kGearPaper, kGearKeys, false, ExpandGear},
    {"gear-l", kPreset, "kcvt or kivi, and lowrank", kGearPaper, kGearLKeys, false, ExpandGearL},
    {"outlier-aware", kPreset, "kivi and sparse", kGearPaper, kOutlierKeys, false,
     ExpandOutlierAware},
    {"keyformer-z", kPreset, "keyformer and zack", kZackPaper, kEvictAndRotateKeys, false,
     ExpandKeyformerZ},
    {"kvquant-z", kPreset, "zack and kvquant", kZackPaper, kRotateAndQuantizeKeys, false,
     ExpandKvquantZ},
    {"kf-f", kPreset, "keyformer and fdc", kFdcPaper, kEvictAndRotateKeys, false, ExpandKfF},
    {"kvq-f", kPreset, "fdc and kvquant", kFdcPaper, kRotateAndQuantizeKeys, false, ExpandKvqF},
    {"kf-p", kPreset, "keyformer and palu", kFdcPaper, kKfPKeys, false, ExpandKfP},
    {"kvq-p", kPreset, "palu and kvquant", kFdcPaper, kKvqPKeys, false, ExpandKvqP},
};

}  // namespace

const KeyInfo* StageInfo::FindKey(std::string_view key_name) const {
  for (const KeyInfo* key : keys) {
    if (key->name == key_name) return key;
  }
  return nullptr;
}

std::span<const StageInfo> AllStages() { return kStages; }

const StageInfo* FindStage(std::string_view name) {
  for (const StageInfo& stage : kStages) {
    if (stage.name == name) return &stage;
  }
  return nullptr;
}

}  // namespace kvlathe
