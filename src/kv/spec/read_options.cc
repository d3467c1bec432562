#include "kv/spec/read_options.h"

#include <algorithm>

namespace kvlathe {
namespace {

RankOptions ReadRanks(const KeyValues& values) {
  RankOptions ranks;
  const auto set_goal = [&](RankOptions::Goal goal, std::string_view key) {
    if (!values.Has(key)) return;
    ranks.goal = goal;
    ranks.value = values.Number(key);
  };
  set_goal(RankOptions::Goal::kRate, "rate");
  set_goal(RankOptions::Goal::kRatio, "ratio");
  set_goal(RankOptions::Goal::kAccuracy, "accuracy");
  if (values.Is("ranks", "uniform")) ranks.choice = RankOptions::Choice::kUniform;
  if (values.Is("ranks", "fisher")) ranks.choice = RankOptions::Choice::kFisher;
  ranks.round = values.Integer("round");
  return ranks;
}

// run=prompt reads as 0.
RunOptions ReadRuns(const KeyValues& values) {
  constexpr int kLeastOfAuto = 32;
  const bool grows = values.Is("newest", "auto");
  return {values.Integer("run"), values.Integer("buffer"),
          grows ? kLeastOfAuto : values.Integer("newest"), grows};
}

BudgetOptions ReadBudget(const KeyValues& values) {
  return {.keep = values.Number("keep"),
          .n_kept = values.Integer("budget"),
          .of_prompt = values.Is("budget", "prompt"),
          .prunes_runs = !values.Is("prune", "prompt"),
          .reads_whole_keys = values.Is("score", "exact")};
}

bool ReadHadamard(const KeyValues& values) { return values.Is("hadamard", "on"); }

double ReadClip(const KeyValues& values, std::string_view key) {
  return values.Has(key) ? values.Number(key) : 1;
}

}  // namespace

const SpecValue* KeyValues::Find(std::string_view key) const {
  const auto found =
      std::ranges::find_if(values_, [&](const StageValue& v) { return v.first->name == key; });
  return found == values_.end() ? nullptr : &found->second;
}

double KeyValues::Number(std::string_view key) const {
  const SpecValue* const value = Find(key);
  return value == nullptr ? 0 : value->number;
}

bool KeyValues::Is(std::string_view key, std::string_view word) const {
  const SpecValue* const value = Find(key);
  return value != nullptr && value->word == word;
}

StageOptions ReadZack(const KeyValues& values) {
  return BasisStage(ZackOptions{.ranks = ReadRanks(values),
                                .is_normalised = values.Is("normalise", "on"),
                                .is_resident = values.Has("resident"),
                                .is_online = values.Has("online")});
}

StageOptions ReadFdc(const KeyValues& values) {
  return BasisStage(FdcOptions{.ranks = ReadRanks(values),
                               .is_whitened = values.Is("whiten", "on"),
                               .is_resident = values.Has("resident")});
}

StageOptions ReadPalu(const KeyValues& values) {
  return BasisStage(PaluOptions{.ranks = ReadRanks(values),
                                .heads_per_latent = values.Integer("group"),
                                .is_whitened = values.Is("whiten", "on")});
}

StageOptions ReadEigen(const KeyValues& values) {
  return BasisStage(EigenOptions{.ranks = ReadRanks(values)});
}

StageOptions ReadSpectral(const KeyValues& values) {
  SpectralOptions spectral{.shares_heads = values.Is("heads", "shared")};
  if (values.Is("centre", "on")) spectral.centre = SpectralOptions::Centre::kOn;
  if (values.Is("centre", "off")) spectral.centre = SpectralOptions::Centre::kOff;
  return BasisStage(spectral);
}

StageOptions ReadSvdOnline(const KeyValues& values) {
  return BasisStage(SvdOnlineOptions{.rate = values.Number("rate")});
}

StageOptions ReadLathe(const KeyValues& values) {
  LatheOptions lathe{.ranks = ReadRanks(values),
                     .is_resident = values.Has("resident"),
                     .is_centred = values.Is("centre", "on"),
                     .has_classes = values.Integer("classes") > 1,
                     .under_pressure = values.Number("under_pressure"),
                     .context = values.Integer("context"),
                     .runs = ReadRuns(values)};
  for (const KeyRows rows : kAllKeyRows) {
    if (values.Is("keys", NameOf(rows))) lathe.keys = rows;
  }
  lathe.joins_values = values.Is("maps", "joint");
  if (values.Is("heads", "joint")) lathe.heads = LatheOptions::Heads::kJoint;
  if (values.Is("heads", "own")) lathe.heads = LatheOptions::Heads::kOwn;
  if (values.Is("bits", "mixed")) lathe.bits = LatheOptions::Bits::kMixed;
  if (values.Integer("bits") == 16) lathe.bits = LatheOptions::Bits::k16;
  if (values.Is("scales", "static")) lathe.unit = StoredUnit::kChannel;
  if (values.Integer("open") == 8) lathe.open = LatheOptions::OpenRows::k8;
  if (values.Integer("open") == 16) lathe.open = LatheOptions::OpenRows::k16;
  return BasisStage(lathe);
}

StageOptions ReadH2o(const KeyValues& values) {
  return RetentionStage(
      H2oOptions{.budget = ReadBudget(values), .recent = values.Number("recent")});
}

StageOptions ReadMas(const KeyValues& values) {
  return RetentionStage(
      MasOptions{.budget = ReadBudget(values), .recent = values.Number("recent")});
}

StageOptions ReadTova(const KeyValues& values) {
  return RetentionStage(
      TovaOptions{.budget = ReadBudget(values), .shares_heads = values.Is("heads", "shared")});
}

StageOptions ReadKeyformer(const KeyValues& values) {
  return RetentionStage(KeyformerOptions{.budget = ReadBudget(values),
                                         .recent = values.Number("recent"),
                                         .tau_init = values.Number("tau_init"),
                                         .tau_end = values.Number("tau_end"),
                                         .interval = values.Integer("interval")});
}

StageOptions ReadSnapkv(const KeyValues& values) {
  return RetentionStage(SnapkvOptions{.budget = ReadBudget(values),
                                      .window = values.Integer("window"),
                                      .kernel = values.Integer("kernel")});
}

StageOptions ReadKvzip(const KeyValues& values) {
  return RetentionStage(KvzipOptions{.budget = ReadBudget(values),
                                     .window = values.Integer("window"),
                                     .chunk = values.Integer("chunk"),
                                     .joins_heads = values.Is("heads", "joint")});
}

StageOptions ReadWindow(const KeyValues& values) {
  return RetentionStage(
      WindowOptions{.size = values.Integer("size"), .n_sink = values.Integer("sink")});
}

StageOptions ReadPool(const KeyValues& values) {
  return RetentionStage(PoolOptions{.every = values.Integer("n")});
}

StageOptions ReadDmc(const KeyValues& values) {
  return RetentionStage(DmcOptions{.window = values.Integer("window")});
}

StageOptions ReadDms(const KeyValues& values) {
  DmsOptions dms{.window = values.Integer("window"),
                 .run = values.Integer("run"),
                 .interval = values.Integer("interval")};
  if (!values.Is("offset", "model")) dms.offset = values.Number("offset");
  return RetentionStage(dms);
}

StageOptions ReadToken(const KeyValues& values) {
  return QuantizerStage(TokenOptions{.bits = values.Integer("bits"),
                                     .group = values.Integer("group"),
                                     .mixes_channels = ReadHadamard(values),
                                     .key_clip = ReadClip(values, "key_clip"),
                                     .value_clip = ReadClip(values, "value_clip"),
                                     .runs = ReadRuns(values)});
}

StageOptions ReadKcvt(const KeyValues& values) {
  return QuantizerStage(KcvtOptions{.bits = values.Integer("bits"), .runs = ReadRuns(values)});
}

StageOptions ReadKivi(const KeyValues& values) {
  return QuantizerStage(KiviOptions{
      .bits = values.Integer("bits"), .group = values.Integer("group"), .runs = ReadRuns(values)});
}

StageOptions ReadKvarn(const KeyValues& values) {
  return QuantizerStage(KvarnOptions{.key_bits = values.Integer("key_bits"),
                                     .value_bits = values.Integer("value_bits"),
                                     .group = values.Integer("group"),
                                     .mixes_channels = ReadHadamard(values),
                                     .runs = ReadRuns(values)});
}

StageOptions ReadKvquant(const KeyValues& values) {
  const int bits = values.Integer("bits");
  return QuantizerStage(KvquantOptions{
      .bits = bits,
      .outliers = values.Number("outliers"),
      .matches_moments = values.Is("qnorm", "on") || (values.Is("qnorm", "auto") && bits == 2),
      .runs = ReadRuns(values)});
}

StageOptions ReadTurboquant(const KeyValues& values) {
  const int bits = values.Integer("bits");
  return QuantizerStage(TurboquantOptions{
      .key_bits = bits,
      .value_bits = values.Is("value_bits", "same") ? bits : values.Integer("value_bits"),
      .keys_have_signs = values.Is("keys", "product"),
      .corrects_norms = values.Is("norms", "corrected"),
      .runs = ReadRuns(values)});
}

StageOptions ReadFixedCodes(const KeyValues& values, const PackedFormat& format, MixingRule rule) {
  return QuantizerStage(FixedCodesOptions{.format = format,
                                          .mixes_channels = ReadHadamard(values),
                                          .mixing_rule = rule,
                                          .runs = ReadRuns(values)});
}

StageOptions ReadLowrank(const KeyValues& values) {
  return ResidualStage(LowrankOptions{.prompt_rank = values.Integer("prefill"),
                                      .decode_rank = values.Integer("decode"),
                                      .repaired_share = values.Number("recent"),
                                      .power_loops = values.Integer("loops")});
}

StageOptions ReadSparse(const KeyValues& values) {
  return ResidualStage(SparseOptions{.share = values.Number("share")});
}

}  // namespace kvlathe
