#include "plan/basis_analyses.h"

#include <utility>

#include "analysis/bases/lathe.h"
#include "analysis/bases/palu.h"
#include "plan/plan_shard.h"

namespace kvlathe {
namespace {

// What the basis of a method depends on, besides ranks: of most on nothing.
BasisOptions OptionsOf(const auto& /*options*/, const Spec& /*spec*/) { return {}; }
BasisOptions OptionsOf(const FdcOptions& fdc, const Spec& spec) {
  return {.counts_first_positions = spec.n_sink() == 0, .is_whitened = fdc.is_whitened};
}
BasisOptions OptionsOf(const ZackOptions& zack, const Spec& spec) {
  return {.counts_first_positions = spec.n_sink() == 0, .is_normalised = zack.is_normalised};
}
BasisOptions OptionsOf(const PaluOptions& palu, const Spec& /*spec*/) {
  return {.is_whitened = palu.is_whitened, .heads_per_latent = palu.heads_per_latent};
}
BasisOptions OptionsOf(const SpectralOptions& spectral, const Spec& /*spec*/) {
  using Centre = SpectralOptions::Centre;
  return {.is_centred = spectral.centre != Centre::kOff,
          .centres_biases_alone = spectral.centre == Centre::kAuto,
          .shares_heads = spectral.shares_heads};
}
BasisOptions OptionsOf(const LatheOptions& lathe, const Spec& spec) {
  return {.is_centred = lathe.is_centred,
          .keys_before_rope = spec.key_rows() == KeyRows::kBeforeRope,
          .has_frames = spec.key_rows() == KeyRows::kBlock,
          .counts_all_queries = CutsAtOnce(spec),
          .joins_values = lathe.joins_values};
}

// How many pairs of channels of keys lose a mean before they turn.
int TurningPairsOf(const Spec& spec, int rope_dim) {
  const KeyRows rows = spec.key_rows();
  const bool lose_mean = rows == KeyRows::kCentred || rows == KeyRows::kBlock;
  return lose_mean && rope_dim > 0 ? MostTurningPairs(rope_dim) : 0;
}

StatisticsShape ShapeOfHeads(const ModelFacts& model) {
  return {model.n_layers, model.n_kv_heads, model.n_kv_heads, model.head_dim};
}

// Spec::joint_channels, but where heads=auto would join heads of several ranks: the largest join
// that stays within each of them.
int JointChannels(const Spec& spec, const ModelFacts& model) {
  const int n_channels = spec.joint_channels();
  const auto* const lathe = spec.basis_as<LatheOptions>();
  const bool may_choose = lathe != nullptr && lathe->heads == LatheOptions::Heads::kAuto &&
                          !lathe->joins_values && n_channels > 0;
  if (model.tensor_ranks == 1 || !may_choose) return n_channels;
  const StatisticsShape shape = ShapeOfHeads(model);
  const int n_common = CommonHeads(model.n_kv_heads, model.tensor_ranks);
  int n_joined = HeadsPerMap(shape, n_channels);
  while (n_common % n_joined != 0) {
    n_joined = HeadsPerMap(shape, (n_joined - 1) * model.head_dim);
  }
  return n_joined * model.head_dim;
}

}  // namespace

const BasisMethod* BasisMethodOf(const Spec& spec) {
  const Stage* const stage = spec.stage(Axis::kBasis);
  return stage == nullptr ? nullptr : stage->info->analysis;
}

BasisOptions BasisOptionsOf(const Spec& spec, const ModelFacts& model) {
  BasisOptions options =
      std::visit([&](const auto& stage) { return OptionsOf(stage, spec); }, *spec.basis());
  options.has_frames = options.has_frames && model.rope_dim > 0;
  options.turning_pairs = TurningPairsOf(spec, model.rope_dim);
  options.joint_channels = JointChannels(spec, model);
  options.has_value_offsets = !model.has_sink_logits;
  return options;
}

Keys KeysOf(const Spec& spec, const ModelFacts& model) {
  Keys keys = spec.keys(HeadsPerMap(ShapeOfHeads(model), JointChannels(spec, model)));
  if (auto* const mapped = std::get_if<MappedKeys>(&keys); mapped != nullptr) {
    mapped->has_frames = mapped->has_frames && model.rope_dim > 0;
    mapped->turning_pairs = TurningPairsOf(spec, model.rope_dim);
  }
  return keys;
}

StatusOr<BasisAnalysis> BasisAnalyses::From(const Spec& spec,
                                            const CalibrationStatistics& statistics) {
  const BasisMethod& method = *BasisMethodOf(spec);
  if (output_grams_.empty()) {
    KVL_ASSIGN_OR_RETURN(output_grams_, source_->OutputGrams());
    KVL_ASSIGN_OR_RETURN(value_biases_, source_->ValueBiases());
    KVL_ASSIGN_OR_RETURN(key_biases_, source_->KeyBiases());
  }
  BasisInputs inputs = {.statistics = &statistics,
                        .output_grams = output_grams_,
                        .options = BasisOptionsOf(spec, model_),
                        .pool = source_->threads(),
                        .key_biases = key_biases_,
                        .value_biases = value_biases_};
  std::vector<std::vector<double>> key_grams, value_grams;
  const int n_joined = inputs.options.heads_per_latent;
  if (!inputs.options.is_whitened && model_.n_kv_heads % n_joined == 0) {
    KVL_ASSIGN_OR_RETURN(key_grams, source_->KeyGrams(n_joined));
    KVL_ASSIGN_OR_RETURN(value_grams, source_->ValueGrams(n_joined));
    inputs.key_grams = key_grams;
    inputs.value_grams = value_grams;
  }
  return method.analyse(inputs);
}

StatusOr<const CalibrationStatistics*> BasisAnalyses::StatisticsOf(const Spec& spec) {
  return source_->Statistics(*BasisNeedOf(spec));
}

StatusOr<const BasisAnalysis*> BasisAnalyses::Of(const Spec& spec) {
  const BasisMethod* const method = BasisMethodOf(spec);
  const BasisOptions options = BasisOptionsOf(spec, model_);
  const std::optional<MergePlan> merge = MergingOf(spec);
  for (const KnownAnalysis& known : analyses_) {
    const bool is_same = known.method == method && known.options == options && known.merge == merge;
    if (is_same) return known.analysis.get();
  }
  KVL_RETURN_IF_ERROR(CheckHeadsPerLatent(options.heads_per_latent, model_.n_kv_heads));
  KVL_ASSIGN_OR_RETURN(const CalibrationStatistics* statistics, StatisticsOf(spec));
  KVL_ASSIGN_OR_RETURN(BasisAnalysis analysis, From(spec, *statistics));
  analyses_.push_back(
      {method, options, merge, std::make_unique<BasisAnalysis>(std::move(analysis))});
  return analyses_.back().analysis.get();
}

}  // namespace kvlathe
