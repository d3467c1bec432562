// The quantizers and residuals among the stages.
#include "format/table_codes/mxfp4.h"
#include "kv/spec/compatibility.h"
#include "kv/spec/fixed_formats.h"
#include "kv/spec/read_options.h"
#include "kv/spec/spec_keys.h"
#include "kv/spec/tuning_ladders.h"

namespace kvlathe {
namespace {

using enum Axis;

// --- quantizer ---

constexpr KeyInfo kBits4 = Bits("2|3|4|8", "4");
constexpr KeyInfo kBits2 = Bits("2|3|4|8", "2");
constexpr KeyInfo kHadamard = {.name = "hadamard",
                               .doc = "mix channels by a Hadamard matrix first: outliers spread",
                               .default_text = "off",
                               .choices = "on|off"};
constexpr const KeyInfo* kTokenKeys[] = {&kBits4,     &kAccuracy, &kGroup,  &kHadamard, &kKeyClip,
                                         &kValueClip, &kRun,      &kBuffer, &kNewest,   &kSink};
constexpr const KeyInfo* kKcvtKeys[] = {&kBits4, &kAccuracy, &kRun, &kBuffer, &kNewest, &kSink};

constexpr KeyInfo kKiviGroup =
    WithDoc(WithChoices(kGroup, "32|64|128", "32"),
            "tokens (K) and channels (V) that share a scale; must divide run and buffer");
constexpr KeyInfo kKiviBuffer =
    WithDoc(kBuffer, "newest positions held in 16 bits while decoding (the paper's R: 128)");
constexpr const KeyInfo* kKiviKeys[] = {&kBits2,      &kAccuracy, &kKiviGroup, &kRun,
                                        &kKiviBuffer, &kNewest,   &kSink};

constexpr KeyInfo kKvarnKeyBits = {
    .name = "key_bits", .doc = "bits of a code of K", .default_text = "4", .choices = "2|3|4|5|8"};
constexpr KeyInfo kKvarnValueBits = {.name = "value_bits",
                                     .doc = "bits of a code of V",
                                     .default_text = "2",
                                     .choices = "2|3|4|5|8"};
constexpr KeyInfo kKvarnGroup =
    WithDoc(WithChoices(kGroup, "64|128", "128"),
            "positions that are balanced together; must divide run and buffer");
constexpr KeyInfo kKvarnHadamard = WithDefault(kHadamard, "on");
constexpr KeyInfo kKvarnBuffer = WithDefault(kBuffer, "128");
constexpr const KeyInfo* kKvarnKeys[] = {
    &kKvarnKeyBits, &kKvarnValueBits, &kKvarnGroup, &kKvarnHadamard,
    &kRun,          &kKvarnBuffer,    &kNewest,     &kSink};

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
constexpr KeyInfo kSphereBits =
    WithDoc(Bits("2|3|4", "4"), "bits of a code, of keys and of values");
constexpr KeyInfo kValueBits = {.name = "value_bits",
                                .doc = "bits of a code of values, where they differ from keys'",
                                .default_text = "same",
                                .choices = "same|2|3|4"};
constexpr KeyInfo kEstimator = {
    .name = "keys",
    .doc =
        "what codes of keys keep: least squared errors, or products without bias, for which a "
        "bit is the sign of a residual",
    .default_text = "mse",
    .choices = "mse|product"};
constexpr KeyInfo kNorms = {
    .name = "norms",
    .doc = "what codes without signs stand for: rows of the length that they had, or as they are",
    .default_text = "corrected",
    .choices = "corrected|plain"};
constexpr const KeyInfo* kTurboquantKeys[] = {&kSphereBits, &kValueBits, &kEstimator, &kNorms,
                                              &kRun,        &kBuffer,    &kNewest,    &kSink};
constexpr const KeyInfo* kInt8Keys[] = {&kHadamard, &kRun, &kBuffer, &kNewest, &kSink};

// --- residual ---

constexpr const KeyInfo* kLowrankKeys[] = {&kPrefillRank, &kDecodeRank, &kRepaired, &kLoops};
constexpr const KeyInfo* kSparseKeys[] = {&kShare};

// --- how `tune` tries them ---

constexpr TunedForm kKiviForms[] = {{"kivi", 8}};
constexpr TunedForm kKcvtForms[] = {{"kcvt", 9}};
constexpr TunedForm kKvquantForms[] = {{"kvquant", 10}};
constexpr TunedForm kInt8Forms[] = {{"int8", 12}};

constexpr StageInfo kCodeStages[] = {
    {.name = "token",
     .axis = kQuantizer,
     .doc = "groups of channels within a token",
     .paper =
         "FlexGen: High-Throughput Generative Inference of Large Language Models with a Single GPU",
     .keys = kTokenKeys,
     .read = ReadToken,
     .ladders = kBitsLadder},
    {.name = "kcvt",
     .axis = kQuantizer,
     .doc = "one scale per channel of K in a run, one per token of V over all heads",
     .paper = kGearPaper,
     .keys = kKcvtKeys,
     .read = ReadKcvt,
     .check = CheckKcvt,
     .ladders = kBitsLadder,
     .tuned = kKcvtForms},
    {.name = "kivi",
     .axis = kQuantizer,
     .doc = "K in groups of tokens per channel, V in groups of channels per token",
     .paper = "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache",
     .keys = kKiviKeys,
     .read = ReadKivi,
     .ladders = kBitsLadder,
     .tuned = kKiviForms},
    {.name = "kvarn",
     .axis = kQuantizer,
     .doc = "K per channel and V per token in tiles whose positions and channels are balanced",
     .paper = "KVarN: Variance-Normalized KV-Cache Quantization Mitigates Error Accumulation in "
              "Reasoning Tasks",
     .keys = kKvarnKeys,
     .read = ReadKvarn,
     .check = CheckKvarn},
    {.name = "kvquant",
     .axis = kQuantizer,
     .doc = "non-uniform codes per layer, outliers apart",
     .paper = "KVQuant: Towards 10 Million Context Length LLM Inference with KV Cache Quantization",
     .keys = kKvquantKeys,
     .read = ReadKvquant,
     .check = CheckKvquant,
     .ladders = kBitsLadder,
     .tuned = kKvquantForms},
    {.name = "turboquant",
     .axis = kQuantizer,
     .doc = "levels of a normal number in a random rotation, a scale per token and KV head",
     .paper = "TurboQuant: Online Vector Quantization with Near-optimal Distortion Rate",
     .keys = kTurboquantKeys,
     .read = ReadTurboquant,
     .check = CheckTurboquant},
    {.name = "int8",
     .axis = kQuantizer,
     .doc = "8 bits, one scale per token and KV head",
     .paper = "common practice",
     .keys = kInt8Keys,
     .read = ReadFixed<Int8Format>,
     .tuned = kInt8Forms},
    {.name = "q8_0",
     .axis = kQuantizer,
     .doc = "8 bits, one scale for 32 channels of a token",
     .paper = "llama.cpp",
     .keys = kInt8Keys,
     .read = ReadFixed<Q8Format, MixingRule::kGgml>},
    {.name = "q4_0",
     .axis = kQuantizer,
     .doc = "4 bits, one scale for 32 channels of a token",
     .paper = "llama.cpp",
     .keys = kInt8Keys,
     .read = ReadFixed<Q4Format, MixingRule::kGgml>},
    {.name = "mxfp4",
     .axis = kQuantizer,
     .doc = "4-bit floats (E2M1) under one power of two for 32 channels of a token",
     .paper = "OCP Microscaling Formats (MX) Specification, version 1.0",
     .keys = kInt8Keys,
     .read = ReadFixed<TableFormat<kMxfp4, kMxGroup>>},

    {.name = "lowrank",
     .axis = kResidual,
     .doc = "low-rank factors of what the quantizer lost, per run and head",
     .paper = kGearPaper,
     .keys = kLowrankKeys,
     .read = ReadLowrank,
     .check = CheckLowrank},
    {.name = "sparse",
     .axis = kResidual,
     .doc = "the largest and smallest entries, kept exactly",
     .paper = kGearPaper,
     .keys = kSparseKeys,
     .read = ReadSparse,
     .check = CheckSparse},
};

}  // namespace

std::span<const StageInfo> QuantizersAndResiduals() { return kCodeStages; }

}  // namespace kvlathe
