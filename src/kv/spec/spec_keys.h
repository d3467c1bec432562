// These are the keys of the spec grammar that several stages share or that presets pass on to their
// stages.
#pragma once

#include <string_view>

#include "format/rows/block_layout.h"
#include "kv/spec/spec_table.h"

namespace kvlathe {

inline constexpr KeyInfo kRate = {
    .name = "rate",
    .doc = "share of K and V elements removed, after ranks are rounded up",
    .default_text = "0.5",
    .min = 0,
    .max = 1,
    .excludes_max = true,
    .excludes_others = true};
inline constexpr KeyInfo kRatio = {
    .name = "ratio",
    .doc = "uncompressed bytes / stored bytes at the model's full context",
    .min = 1,
    .max = 1000,
    .excludes_others = true};
inline constexpr KeyInfo kAccuracy = {
    .name = "accuracy",
    .doc = "share of the baseline's accuracy to keep, as a tuned profile or a prediction says",
    .min = 0,
    .max = 1,
    .excludes_min = true,
    .excludes_others = true};
inline constexpr KeyInfo kRanks = {.name = "ranks",
                                   .doc = "ranks by the spectrum of each head, or one for all",
                                   .default_text = "adaptive",
                                   .choices = "adaptive|uniform"};
inline constexpr KeyInfo kRound = {.name = "round",
                                   .doc = "ranks are rounded up to a multiple of it",
                                   .default_text = "16",
                                   .choices = "16|32"};
inline constexpr KeyInfo kSink = {
    .name = "sink",
    .doc = "first positions kept whole in 16 bits; one value per spec",
    .default_text = "4",
    .min = 0,
    .max = 1024,
    .multiple_of = 1};
inline constexpr KeyInfo kKeep = {.name = "keep",
                                  .doc = "share of the positions kept",
                                  .min = 0,
                                  .max = 1,
                                  .excludes_min = true,
                                  .excludes_others = true};
inline constexpr KeyInfo kBudget = {
    .name = "budget",
    .doc = "positions kept; prompt: of keep, the share of the prompt",
    .min = 1,
    .max = 1 << 24,
    .multiple_of = 1,
    .choices = "prompt",
    .excludes_others = true};
inline constexpr KeyInfo kPrune = {
    .name = "prune",
    .doc = "drop where runs of the prompt end, or only where it ends",
    .default_text = "run",
    .choices = "run|prompt"};
inline constexpr KeyInfo kRun = {.name = "run",
                                 .doc = "prompt positions compressed together; prompt: all of them",
                                 .default_text = "512",
                                 .min = 64,
                                 .max = 1 << 20,
                                 .multiple_of = 64,
                                 .choices = "prompt"};
inline constexpr KeyInfo kBuffer = {
    .name = "buffer",
    .doc = "newest positions that wait to be sealed together while decoding",
    .default_text = "64",
    .min = 64,
    .max = 4096,
    .multiple_of = 64};
inline constexpr KeyInfo kNewest = {
    .name = "newest",
    .doc =
        "newest positions, of which none is sealed; auto: a 32nd of the first 2048 and a sixteenth "
        "of those behind, at least 32, at most a sixteenth of the narrowest window, 32 under "
        "retention",
    .default_text = "0",
    .min = 0,
    .max = 4096,
    .multiple_of = 1,
    .choices = "auto"};
inline constexpr KeyInfo kShare = {.name = "share",
                                   .doc = "share of the entries kept exactly, half at either end",
                                   .default_text = "0.02",
                                   .min = 0,
                                   .max = 0.5,
                                   .excludes_min = true};
inline constexpr KeyInfo kPrefillRank = {.name = "prefill",
                                         .doc = "rank for the runs of the prompt",
                                         .default_text = "4",
                                         .min = 1,
                                         .max = kMaxPackedLowrank,
                                         .multiple_of = 1};
inline constexpr KeyInfo kDecodeRank = {
    .name = "decode",
    .doc = "rank for each buffer while decoding; 0: on the prompt only",
    .default_text = "2",
    .min = 0,
    .max = kMaxPackedLowrank,
    .multiple_of = 1};

inline constexpr KeyInfo kKeyClip = {
    .name = "key_clip",
    .doc = "share of the magnitudes of a key that codes reach; larger ones are clipped to it",
    .min = 0,
    .max = 1,
    .excludes_min = true};
inline constexpr KeyInfo kValueClip = {
    .name = "value_clip", .doc = "the same of a value", .min = 0, .max = 1, .excludes_min = true};
inline constexpr KeyInfo kGroup = {.name = "group",
                                   .doc = "channels of a token that share a scale",
                                   .default_text = "64",
                                   .choices = "16|32|64|128"};
inline constexpr KeyInfo kSpectralHeads = {
    .name = "heads",
    .doc = "all KV heads of a layer have one rotation, or each its own",
    .default_text = "shared",
    .choices = "shared|own"};
inline constexpr KeyInfo kSpectralCentre = {
    .name = "centre",
    .doc = "subtract the means of keys and values; takes no bytes; auto: where they have biases",
    .default_text = "auto",
    .choices = "auto|on|off"};

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
// The key on a preset: its default is that of the stage to which the preset passes it on.
constexpr KeyInfo PassedOn(const KeyInfo& key) { return WithDefault(key, ""); }

constexpr KeyInfo Bits(std::string_view choices, std::string_view default_text) {
  return {.name = "bits",
          .doc = "bits of a code",
          .default_text = default_text,
          .choices = choices,
          .excludes_others = true};
}

inline constexpr KeyInfo kScore = {
    .name = "score",
    .doc =
        "keys whose scores decide: as a basis stores them; exact: whole ones, until the prompt "
        "ends",
    .default_text = "stored",
    .choices = "stored|exact"};
inline constexpr KeyInfo kPaluRanks =
    WithDoc(WithChoices(kRanks, "adaptive|uniform|fisher", "adaptive"),
            "ranks by the spectrum of each head, one for all, or Palu's "
            "by Fisher information of each layer");
inline constexpr KeyInfo kPaluRound = WithDefault(kRound, "32");
inline constexpr KeyInfo kLoops = {.name = "loops",
                                   .doc = "power iterations",
                                   .default_text = "3",
                                   .min = 1,
                                   .max = 16,
                                   .multiple_of = 1};
inline constexpr KeyInfo kRepaired = {
    .name = "recent",
    .doc = "share of the prompt whose runs have factors, the newest",
    .default_text = "1",
    .min = 0,
    .max = 1};
inline constexpr KeyInfo kKvquantBits = Bits("2|3|4", "4");

inline constexpr std::string_view kZackPaper = "ZACK: dimensionality compression of the KV cache";
inline constexpr std::string_view kFdcPaper = "FDC: fast KV dimensionality compression";
inline constexpr std::string_view kGearPaper =
    "GEAR: An Efficient KV Cache Compression Recipe for Near-Lossless Generative Inference of LLM";
inline constexpr std::string_view kOscarPaper =
    "OSCAR: Offline Spectral Covariance-Aware Rotation for 2-bit KV Cache Quantization";
inline constexpr std::string_view kDmcPaper =
    "Dynamic Memory Compression: Retrofitting LLMs for Accelerated Inference";

// Those of the last two axes, in the order in which they are listed.
std::span<const StageInfo> QuantizersAndResiduals();
// All presets, likewise.
std::span<const StageInfo> Presets();

}  // namespace kvlathe
