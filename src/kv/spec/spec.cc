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

// What the basis of each method makes of keys, where its maps join so many KV heads.
Keys KeysOf(const FdcOptions& /*options*/, int /*heads_per_map*/) { return MappedKeys{}; }
Keys KeysOf(const PaluOptions& options, int /*heads_per_map*/) {
  return LatentKeys{.heads_per_latent = options.heads_per_latent};
}
Keys KeysOf(const LatheOptions& options, int heads_per_map) {
  if (options.keys_before_rope) return LatentKeys{.heads_per_map = heads_per_map};
  return MappedKeys{heads_per_map};
}
// Rows are whole until a sequence has found its basis, which its runs then bring with them.
Keys KeysOf(const SvdOnlineOptions& /*options*/, int /*heads_per_map*/) { return TurnedKeys{}; }
Keys KeysOf(const ZackOptions& options, int /*heads_per_map*/) {
  return options.is_online ? Keys(TurnedKeys{}) : Keys(MappedKeys{});
}

}  // namespace

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

const RunOptions* Spec::runs() const {
  if (splits_bits()) return &basis_as<LatheOptions>()->runs;
  return quantizer() == nullptr ? nullptr : &RunsOf(*quantizer());
}

int Spec::n_sink() const {
  const SpecValue* sink = FindValue(stages_, "sink");
  return sink == nullptr ? 0 : static_cast<int>(sink->number);
}

std::optional<double> Spec::accuracy() const {
  const SpecValue* accuracy = FindValue(stages_, "accuracy");
  return accuracy == nullptr ? std::nullopt : std::optional(accuracy->number);
}

bool Spec::splits_bits() const {
  const auto* lathe = basis_as<LatheOptions>();
  if (lathe == nullptr) return false;
  if (lathe->bits != LatheOptions::Bits::kAuto) return lathe->bits == LatheOptions::Bits::kMixed;
  return lathe->ranks.has_ratio() && quantizer() == nullptr;
}

bool Spec::has_classes() const {
  const auto* lathe = basis_as<LatheOptions>();
  return lathe != nullptr && lathe->has_classes && splits_bits();
}

int Spec::joint_channels() const {
  const auto* lathe = basis_as<LatheOptions>();
  if (lathe == nullptr || lathe->heads == LatheOptions::Heads::kOwn) return 0;
  if (lathe->heads == LatheOptions::Heads::kJoint) {
    return quantizer() == nullptr ? kMaxRowRank : kMaxPackedRank;
  }
  // Each head more makes every dot longer on the same bytes, so `auto` stops here.
  constexpr int kMostOfAuto = 256;
  const bool pays =
      splits_bits() && (retention() == nullptr || retention_as<WindowOptions>() != nullptr);
  return pays ? kMostOfAuto : 0;
}

Keys Spec::keys(int heads_per_map) const {
  if (basis() == nullptr) return TurnedKeys{};
  return std::visit([&](const auto& options) { return KeysOf(options, heads_per_map); }, *basis());
}

bool Spec::finds_basis_online() const {
  const auto* zack = basis_as<ZackOptions>();
  return basis_as<SvdOnlineOptions>() != nullptr || (zack != nullptr && zack->is_online);
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
