// Names for compositions, and what they become.
#include <cmath>

#include "kv/spec/spec_keys.h"
#include "kv/spec/tuning_ladders.h"

namespace kvlathe {
namespace {

using enum Axis;

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
constexpr const KeyInfo* kGearLKeys[] = {
    &kGearBits,    &kAccuracy,  &kPassedPrefill, &kPassedDecode, &kPassedRepaired,
    &kPassedLoops, &kPassedRun, &kPassedBuffer,  &kPassedNewest, &kPassedSink};
constexpr const KeyInfo* kOutlierKeys[] = {&kOutlierBits, &kAccuracy,     &kPassedShare,
                                           &kPassedRun,   &kPassedBuffer, &kPassedNewest,
                                           &kPassedSink};

constexpr KeyInfo kBothRate =
    WithDoc(WithDefault(kRate, "0.7"), "share removed by both together, 1 - sqrt(1 - rate) each");
constexpr const KeyInfo* kEvictAndRotateKeys[] = {&kBothRate,    &kAccuracy,    &kPassedRanks,
                                                  &kPassedRound, &kPassedScore, &kPassedSink};
// FDC's authors drop entries by whole keys, before the basis; ZACK's after it.
constexpr KeyInfo kExactScore = WithDefault(kScore, "exact");
constexpr const KeyInfo* kKfFKeys[] = {&kBothRate,    &kAccuracy,   &kPassedRanks,
                                       &kPassedRound, &kExactScore, &kPassedSink};
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

constexpr KeyInfo kOscarBits = Bits("2|3|4|8", "2");
constexpr KeyInfo kPassedHeads = PassedOn(kSpectralHeads);
constexpr KeyInfo kPassedCentre = PassedOn(kSpectralCentre);
constexpr KeyInfo kOscarGroup = WithDefault(kGroup, "128");
constexpr KeyInfo kOscarKeyClip = WithDefault(kKeyClip, "0.96");
constexpr KeyInfo kOscarValueClip = WithDefault(kValueClip, "0.92");
constexpr KeyInfo kOscarNewest = WithDefault(kNewest, "256");
constexpr KeyInfo kOscarSink = WithDefault(kSink, "64");
constexpr const KeyInfo* kOscarKeys[] = {
    &kOscarBits,      &kPassedHeads, &kPassedCentre, &kOscarGroup,  &kOscarKeyClip,
    &kOscarValueClip, &kPassedRun,   &kPassedBuffer, &kOscarNewest, &kOscarSink};

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

std::vector<ExpandedStage> ExpandOscar(const PresetKeys&) {
  return {{"spectral", {}}, {"token", {}}};
}

constexpr TunedForm kGearForms[] = {{"gear", 11}};

constexpr StageInfo kPresets[] = {
    {.name = "gear",
     .axis = kPreset,
     .doc = "kcvt or kivi, lowrank and sparse",
     .paper = kGearPaper,
     .keys = kGearKeys,
     .expand = ExpandGear,
     .ladders = kBitsLadder,
     .tuned = kGearForms,
     .tuned_axis = kQuantizer},
    {.name = "gear-l",
     .axis = kPreset,
     .doc = "kcvt or kivi, and lowrank",
     .paper = kGearPaper,
     .keys = kGearLKeys,
     .expand = ExpandGearL,
     .ladders = kBitsLadder},
    {.name = "outlier-aware",
     .axis = kPreset,
     .doc = "kivi and sparse",
     .paper = kGearPaper,
     .keys = kOutlierKeys,
     .expand = ExpandOutlierAware,
     .ladders = kBitsLadder},
    {.name = "keyformer-z",
     .axis = kPreset,
     .doc = "keyformer and zack",
     .paper = kZackPaper,
     .keys = kEvictAndRotateKeys,
     .expand = ExpandKeyformerZ,
     .ladders = kRateLadder},
    {.name = "kvquant-z",
     .axis = kPreset,
     .doc = "zack and kvquant",
     .paper = kZackPaper,
     .keys = kRotateAndQuantizeKeys,
     .expand = ExpandKvquantZ,
     .ladders = kRateLadder},
    {.name = "kf-f",
     .axis = kPreset,
     .doc = "keyformer and fdc",
     .paper = kFdcPaper,
     .keys = kKfFKeys,
     .expand = ExpandKfF,
     .ladders = kRateLadder},
    {.name = "kvq-f",
     .axis = kPreset,
     .doc = "fdc and kvquant",
     .paper = kFdcPaper,
     .keys = kRotateAndQuantizeKeys,
     .expand = ExpandKvqF,
     .ladders = kRateLadder},
    {.name = "kf-p",
     .axis = kPreset,
     .doc = "keyformer and palu",
     .paper = kFdcPaper,
     .keys = kKfPKeys,
     .expand = ExpandKfP,
     .ladders = kRateLadder},
    {.name = "kvq-p",
     .axis = kPreset,
     .doc = "palu and kvquant",
     .paper = kFdcPaper,
     .keys = kKvqPKeys,
     .expand = ExpandKvqP,
     .ladders = kRateLadder},
    {.name = "oscar",
     .axis = kPreset,
     .doc = "spectral and clipped token codes, with sinks and newest positions in 16 bits",
     .paper = kOscarPaper,
     .keys = kOscarKeys,
     .expand = ExpandOscar},
};

}  // namespace

std::span<const StageInfo> Presets() { return kPresets; }

}  // namespace kvlathe
