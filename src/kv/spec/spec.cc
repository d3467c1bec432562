#include "kv/spec/spec.h"

#include <algorithm>

#include "format/rows/block_layout.h"

namespace kvlathe {
namespace {

// A key that stages of several axes have, of the first that has it.
const SpecValue* FindValue(const std::vector<Stage>& stages, std::string_view key) {
  for (const Stage& stage : stages) {
    const auto found = std::ranges::find_if(
        stage.values, [&](const StageValue& value) { return value.first->name == key; });
    if (found != stage.values.end()) return &found->second;
  }
  return nullptr;
}

// What the basis of each method makes of keys, where its maps join so many KV heads. `rows` are
// those of lathe.
Keys KeysOf(const FdcOptions& /*options*/, KeyRows /*rows*/, int /*heads_per_map*/) {
  return MappedKeys{};
}
Keys KeysOf(const PaluOptions& options, KeyRows /*rows*/, int /*heads_per_map*/) {
  return LatentKeys{.heads_per_latent = options.heads_per_latent};
}
Keys KeysOf(const EigenOptions& /*options*/, KeyRows /*rows*/, int /*heads_per_map*/) {
  return LatentKeys{};
}
Keys KeysOf(const SpectralOptions& /*options*/, KeyRows /*rows*/, int /*heads_per_map*/) {
  return MappedKeys{};
}
Keys KeysOf(const LatheOptions& options, KeyRows rows, int heads_per_map) {
  if (rows == KeyRows::kBeforeRope) return LatentKeys{.heads_per_map = heads_per_map};
  return MappedKeys{.heads_per_map = heads_per_map,
                    .has_frames = rows == KeyRows::kBlock,
                    .joins_values = options.joins_values};
}
// Rows are whole until a sequence has found its basis, which its runs then bring with them.
Keys KeysOf(const SvdOnlineOptions& /*options*/, KeyRows /*rows*/, int /*heads_per_map*/) {
  return TurnedKeys{};
}
Keys KeysOf(const ZackOptions& options, KeyRows /*rows*/, int /*heads_per_map*/) {
  return options.is_online ? Keys(TurnedKeys{}) : Keys(MappedKeys{});
}

// What the basis of a method seals by; most leave that to the quantizer. `has_quantizer` tells of
// the spec.
Sealing SealingOf(const auto& /*options*/, bool /*has_quantizer*/) { return SealNothing{}; }
Sealing SealingOf(const LatheOptions& options, bool has_quantizer) {
  const bool splits = options.bits == LatheOptions::Bits::kAuto
                          ? options.ranks.has_ratio() && !has_quantizer
                          : options.bits == LatheOptions::Bits::kMixed;
  if (!splits) return SealNothing{};
  return SealBySplitBits{&options};
}
Sealing SealingOf(const SvdOnlineOptions& options, bool /*has_quantizer*/) {
  return SealByOwnBasis{.kept_share = 1 - options.rate, .gathers_queries = false};
}
Sealing SealingOf(const ZackOptions& options, bool /*has_quantizer*/) {
  if (!options.is_online) return SealNothing{};
  return SealByOwnBasis{.kept_share = 0, .gathers_queries = true};
}

SealingFacts OwnFactsOf(const SealNothing& /*sealing*/) { return {nullptr, false, false, false}; }
SealingFacts OwnFactsOf(const SealByQuantizer& sealing) {
  return {&RunsOf(*sealing.quantizer), false, false, false};
}
SealingFacts OwnFactsOf(const SealBySplitBits& sealing) {
  return {&sealing.lathe->runs, true, sealing.lathe->has_classes, false};
}
SealingFacts OwnFactsOf(const SealByOwnBasis& /*sealing*/) { return {nullptr, false, false, true}; }

}  // namespace

SealingFacts FactsOf(const Sealing& sealing) {
  return std::visit([](const auto& kind) { return OwnFactsOf(kind); }, sealing);
}

std::string Stage::ToString() const {
  std::string text(name);
  char separator = '(';
  for (const auto& [key, value] : values) {
    text += fmt::format("{}{}={}", separator, key->name, ValueText(value));
    separator = ',';
  }
  if (!values.empty()) text += ')';
  return text;
}

const Stage* Spec::stage(Axis axis) const {
  const auto it = std::ranges::find(stages_, axis, &Stage::axis);
  return it == stages_.end() ? nullptr : &*it;
}

const BasisStage* Spec::basis() const {
  const Stage* found = stage(Axis::kBasis);
  return found == nullptr ? nullptr : &std::get<BasisStage>(found->options);
}

const RetentionStage* Spec::retention() const {
  const Stage* found = stage(Axis::kRetention);
  return found == nullptr ? nullptr : &std::get<RetentionStage>(found->options);
}

const QuantizerStage* Spec::quantizer() const {
  const Stage* found = stage(Axis::kQuantizer);
  return found == nullptr ? nullptr : &std::get<QuantizerStage>(found->options);
}

Sealing Spec::sealing() const {
  Sealing sealing = SealNothing{};
  if (basis() != nullptr) {
    const bool has_quantizer = quantizer() != nullptr;
    sealing = std::visit([&](const auto& options) { return SealingOf(options, has_quantizer); },
                         *basis());
  }
  if (quantizer() == nullptr || FactsOf(sealing).splits_bits) return sealing;
  return SealByQuantizer{quantizer()};
}

int Spec::n_sink() const {
  const SpecValue* sink = FindValue(stages_, "sink");
  return sink == nullptr ? 0 : static_cast<int>(sink->number);
}

std::optional<double> Spec::accuracy() const {
  const SpecValue* accuracy = FindValue(stages_, "accuracy");
  return accuracy == nullptr ? std::nullopt : std::optional(accuracy->number);
}

int Spec::joint_channels() const {
  const auto* lathe = basis_as<LatheOptions>();
  if (lathe == nullptr || lathe->heads == LatheOptions::Heads::kOwn) return 0;
  if (lathe->heads == LatheOptions::Heads::kJoint) {
    return quantizer() == nullptr ? kMaxRowRank : kMaxPackedRank;
  }
  // Each head more makes every dot longer on the same bytes, so `auto` stops here.
  constexpr int kMostOfAuto = 256;
  const Sealing sealed = sealing();
  const bool by_lathe = FactsOf(sealed).splits_bits || std::holds_alternative<SealNothing>(sealed);
  const bool pays = by_lathe && !retention_facts().moves_rows;
  return pays ? kMostOfAuto : 0;
}

KeyRows Spec::key_rows() const {
  const auto* lathe = basis_as<LatheOptions>();
  if (lathe == nullptr) return KeyRows::kAfterRope;
  if (lathe->keys.has_value()) return *lathe->keys;
  const bool keeps_places = retention() == nullptr && !lathe->has_classes;
  return FactsOf(sealing()).splits_bits && keeps_places ? KeyRows::kCentred : KeyRows::kAfterRope;
}

Keys Spec::keys(int heads_per_map) const {
  if (basis() == nullptr) return TurnedKeys{};
  return std::visit([&](const auto& options) { return KeysOf(options, key_rows(), heads_per_map); },
                    *basis());
}

std::string Spec::ToString() const {
  if (is_none()) return "none";
  std::string text;
  for (const Stage& stage : stages_) {
    if (!text.empty()) text += '+';
    text += stage.ToString();
  }
  return text;
}

Status CheckSupported(const Spec& spec) {
  if (spec.accuracy().has_value()) {
    return Error(StatusCode::kInvalidArgument,
                 "--kv '{}': accuracy is looked up in the profile of a model, and there is none "
                 "here; give rate, keep or bits",
                 spec.text());
  }
  for (const Stage& stage : spec.stages()) {
    if (stage.info->check != nullptr) KVL_RETURN_IF_ERROR(stage.info->check(spec));
  }
  return OkStatus();
}

}  // namespace kvlathe
