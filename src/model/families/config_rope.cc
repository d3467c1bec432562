// Rotary embeddings in config.json: theta and the kinds of scaling.
#include <algorithm>
#include <cmath>

#include "model/families/config_families.h"

namespace kvlathe {
namespace {

constexpr double kMaxRopePositions = 1e9;

Status ReadLlama3(const ConfigFields& fields, RopeConfig* rope) {
  rope->scaling = RopeConfig::Scaling::kLlama3;
  KVL_ASSIGN_OR_RETURN(rope->low_freq_factor, fields.NumberOr("low_freq_factor", 1, 1e-3, 1e6));
  KVL_ASSIGN_OR_RETURN(rope->high_freq_factor, fields.NumberOr("high_freq_factor", 4, 1e-3, 1e6));
  KVL_ASSIGN_OR_RETURN(
      rope->original_max_position,
      fields.NumberOr("original_max_position_embeddings", 8192, 1, kMaxRopePositions));
  if (rope->high_freq_factor <= rope->low_freq_factor) {
    return Error(StatusCode::kDataLoss,
                 "{}: rope_scaling: high_freq_factor must exceed low_freq_factor", fields.where());
  }
  return OkStatus();
}

// `fields` are those of rope_scaling; the original context stands beside it.
Status ReadLongRope(const ConfigFields& model, const ConfigFields& fields,
                    const ModelConfig& config, RopeConfig* to) {
  RopeConfig& rope = *to;
  rope.scaling = RopeConfig::Scaling::kLongRope;
  const size_t n_pairs = config.rope_dim() / 2;
  KVL_ASSIGN_OR_RETURN(rope.short_factors, fields.Numbers("short_factor", n_pairs, 1e-3, 1e6));
  KVL_ASSIGN_OR_RETURN(rope.long_factors, fields.Numbers("long_factor", n_pairs, 1e-3, 1e6));
  KVL_ASSIGN_OR_RETURN(const double fallback,
                       fields.NumberOr("original_max_position_embeddings", config.max_seq_len, 2,
                                       kMaxRopePositions));
  KVL_ASSIGN_OR_RETURN(
      rope.original_max_position,
      model.NumberOr("original_max_position_embeddings", fallback, 2, kMaxRopePositions));
  const double stretch =
      fields.Has("factor") ? rope.factor : config.max_seq_len / rope.original_max_position;
  const double amplitude =
      stretch <= 1 ? 1 : std::sqrt(1 + std::log(stretch) / std::log(rope.original_max_position));
  KVL_ASSIGN_OR_RETURN(rope.amplitude, fields.NumberOr("attention_factor", amplitude, 1e-3, 1e3));
  return OkStatus();
}

// What YaRN multiplies rotated rows by where a stretch by `factor` is weighed so much.
double YarnAmplitude(double factor, double weight) {
  return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
}

// `fields` are those of the scaling, `outer` those of the object that holds the scalings of all
// types of layers, which alone may say that the ramp does not end at whole pairs.
Status ReadYarn(const ConfigFields& model, const ConfigFields& fields, const ConfigFields& outer,
                const ModelConfig& config, RopeConfig* to) {
  RopeConfig& rope = *to;
  const std::string& where = fields.where();
  rope.scaling = RopeConfig::Scaling::kYarn;
  const char* const original = "original_max_position_embeddings";
  KVL_ASSIGN_OR_RETURN(const double inside,
                       fields.NumberOr(original, config.max_seq_len, 1, kMaxRopePositions));
  KVL_ASSIGN_OR_RETURN(rope.original_max_position,
                       model.NumberOr(original, inside, 1, kMaxRopePositions));
  const double stretch = std::max(1.0, config.max_seq_len / rope.original_max_position);
  if (!fields.Has("factor")) rope.factor = stretch;
  KVL_ASSIGN_OR_RETURN(const double fast, fields.NumberOr("beta_fast", 32, 0, 1e6));
  KVL_ASSIGN_OR_RETURN(const double slow, fields.NumberOr("beta_slow", 1, 0, 1e6));
  rope.beta_fast = fast == 0 ? 32 : fast;  // as transformers takes it
  rope.beta_slow = slow == 0 ? 1 : slow;
  if (rope.beta_fast < rope.beta_slow || rope.theta <= 1) {
    return Error(StatusCode::kDataLoss,
                 "{}: YaRN with beta_fast {}, beta_slow {} and rope_theta {}; beta_fast cannot be "
                 "less than beta_slow, and rope_theta must exceed 1",
                 where, rope.beta_fast, rope.beta_slow, rope.theta);
  }
  KVL_ASSIGN_OR_RETURN(rope.has_whole_ramp, outer.BoolOr("truncate", true));
  KVL_ASSIGN_OR_RETURN(const double mscale, fields.NumberOr("mscale", 0, 0, 1e3));
  KVL_ASSIGN_OR_RETURN(const double of_all, fields.NumberOr("mscale_all_dim", 0, 0, 1e3));
  double amplitude = YarnAmplitude(rope.factor, 1);
  if (mscale != 0 && of_all != 0) {
    amplitude = YarnAmplitude(rope.factor, mscale) / YarnAmplitude(rope.factor, of_all);
  }
  KVL_ASSIGN_OR_RETURN(rope.amplitude, fields.NumberOr("attention_factor", amplitude, 1e-3, 1e3));
  return OkStatus();
}

// Whether the family has read what the fields say of the share of channels that rotate.
Status CheckRotaryFraction(const ConfigFields& fields, const ModelConfig& config) {
  KVL_ASSIGN_OR_RETURN(const double fraction,
                       fields.NumberOr("partial_rotary_factor", config.rotary_fraction, 0, 1));
  if (fraction == config.rotary_fraction) return OkStatus();
  return Error(StatusCode::kUnimplemented,
               "{}: partial_rotary_factor {} is not supported in a '{}' whose rotated share is {}",
               fields.where(), fraction, config.model_type, config.rotary_fraction);
}

// The object with the scaling; null: there is none.
const nlohmann::json* FindScaling(const ConfigFields& fields, const RopeNames& names) {
  if (!fields.Has("rope_parameters")) {
    return *names.scaling != 0 && fields.Has(names.scaling) ? &fields.at(names.scaling) : nullptr;
  }
  const nlohmann::json& parameters = fields.at("rope_parameters");
  const bool has_types = parameters.is_object() && parameters.contains(names.layer_type);
  return has_types ? &parameters.at(names.layer_type) : &parameters;
}

std::string DescribeGrowth(const AttentionKind& kind) {
  if (kind.query_growth == 0) return "";
  return fmt::format(" growth={} by {}", kind.query_growth, kind.growth_context);
}

}  // namespace

Status ReadRope(const ConfigFields& fields, const RopeNames& names, const ModelConfig& config,
                RopeConfig* to) {
  RopeConfig& rope = *to;
  const std::string& where = fields.where();
  KVL_RETURN_IF_ERROR(CheckRotaryFraction(fields, config));
  KVL_ASSIGN_OR_RETURN(rope.theta, fields.NumberOr(names.theta, names.default_theta, 1, 1e12));
  const nlohmann::json* const object = FindScaling(fields, names);
  if (object == nullptr) return OkStatus();
  if (!object->is_object()) {
    return Error(StatusCode::kDataLoss, "{}: '{}' is not an object", where,
                 fields.Has("rope_parameters") ? "rope_parameters" : names.scaling);
  }
  const ConfigFields inner(*object, where);
  KVL_ASSIGN_OR_RETURN(rope.theta, inner.NumberOr("rope_theta", rope.theta, 1, 1e12));
  KVL_RETURN_IF_ERROR(CheckRotaryFraction(inner, config));
  KVL_ASSIGN_OR_RETURN(const std::string old_name, inner.StringOr("type", "default"));
  KVL_ASSIGN_OR_RETURN(const std::string type, inner.StringOr("rope_type", old_name));
  if (type == "default") return OkStatus();
  KVL_ASSIGN_OR_RETURN(rope.factor, inner.NumberOr("factor", 1, 1, 1e6));
  if (type == "linear") {
    rope.scaling = RopeConfig::Scaling::kLinear;
    return OkStatus();
  }
  if (type == "llama3") return ReadLlama3(inner, &rope);
  if (type == "longrope" || type == "su") return ReadLongRope(fields, inner, config, &rope);
  if (type == "yarn") {
    const char* const outer = fields.Has("rope_parameters") ? "rope_parameters" : names.scaling;
    return ReadYarn(fields, inner, ConfigFields(fields.at(outer), where), config, &rope);
  }
  if (type == "dynamic" && !inner.Has("alpha")) {
    rope.scaling = RopeConfig::Scaling::kDynamic;
    rope.original_max_position = config.max_seq_len;
    return OkStatus();
  }
  return Error(
      StatusCode::kUnimplemented,
      "{}: rope_scaling type '{}' is not supported; supported: default, linear, dynamic, yarn, "
      "llama3, longrope (su)",
      where, type);
}

std::string RopeConfig::Describe() const {
  switch (scaling) {
    case Scaling::kNone:
      return fmt::format("half theta={}", theta);
    case Scaling::kLinear:
      return fmt::format("half theta={} linear factor={}", theta, factor);
    case Scaling::kLlama3:
      return fmt::format("half theta={} llama3 factor={} low={} high={} original={}", theta, factor,
                         low_freq_factor, high_freq_factor, original_max_position);
    case Scaling::kLongRope:
      return fmt::format("half theta={} longrope {} factors original={} amplitude={}", theta,
                         uses_long_factors ? "long" : "short", original_max_position, amplitude);
    case Scaling::kYarn:
      return fmt::format(
          "half theta={} yarn factor={} original={} fast={} slow={} whole={} amplitude={}", theta,
          factor, original_max_position, beta_fast, beta_slow, has_whole_ramp, amplitude);
    case Scaling::kStill:
      return "no positions";
    case Scaling::kDynamic:
      return fmt::format("half theta={} dynamic factor={} original={} context={}", theta, factor,
                         original_max_position, chosen_context);
  }
  return "";
}

float ModelConfig::scale_of_scores() const {
  return score_scale > 0 ? score_scale : 1 / std::sqrt(static_cast<float>(head_dim));
}

int ModelConfig::rope_dim() const {
  if (positions != PositionKind::kRope) return 0;
  return static_cast<int>(head_dim * rotary_fraction);
}

std::string ModelConfig::DescribePositions() const {
  std::string text = "none (learned positions)";
  if (positions == PositionKind::kRope) {
    text = attention.kinds[0].rope.Describe() + DescribeGrowth(attention.kinds[0]);
  }
  for (int kind = 1; kind < std::ssize(attention.kinds); ++kind) {
    const AttentionKind& other = attention.kinds[kind];
    text += fmt::format("; window {} {}{} in layers", other.window, other.rope.Describe(),
                        DescribeGrowth(other));
    for (int l = 0; l < n_layers; ++l) {
      if (attention.kind_idx(l) == kind) text += fmt::format(" {}", l);
    }
  }
  if (rotary_fraction != 1) text += fmt::format(" on {} channels", rope_dim());
  if (decides_in_queries()) {
    text += fmt::format("; dms: last channel of first queries{}",
                        dms->query_channel->zeroes_after_rope ? ", zeroed again" : "");
  }
  if (!dmc.has_value()) return text;
  // Calibrated rows lack the channel; what a cache holds depends on all of it.
  text += fmt::format("; dmc: {} channel, offset {}, epsilon {}{}", dmc->is_last ? "last" : "first",
                      dmc->offset, dmc->epsilon, dmc->zeroes_after_rope ? ", zeroed again" : "");
  if (dmc->weight_offset == dmc->offset) return text;
  return text + fmt::format(", weight offset {}", dmc->weight_offset);
}

double AttentionKind::GrowthAt(int position) const {
  if (query_growth == 0) return 1;
  return 1 + query_growth * std::log1p(std::floor(position / growth_context));
}

bool AttentionLayers::HasWindow() const {
  if (kind_of_layer.empty()) return kinds[0].window > 0;
  return std::ranges::any_of(kind_of_layer, [&](int kind) { return kinds[kind].window > 0; });
}

std::vector<int> AttentionLayers::Windows(int n_layers) const {
  std::vector<int> windows;
  for (int l = 0; HasWindow() && l < n_layers; ++l) windows.push_back(of(l).window);
  return windows;
}

void ModelConfig::ChooseContext(int n_positions) {
  if (positions != PositionKind::kRope) return;
  for (AttentionKind& kind : attention.kinds) {
    RopeConfig& rope = kind.rope;
    if (rope.scaling == RopeConfig::Scaling::kDynamic) {
      rope.chosen_context = std::max<double>(n_positions, rope.original_max_position);
      max_seq_len = static_cast<int>(rope.chosen_context);
    }
    if (rope.scaling != RopeConfig::Scaling::kLongRope) continue;
    rope.uses_long_factors = n_positions > rope.original_max_position;
    if (rope.uses_long_factors) continue;
    max_seq_len = static_cast<int>(std::min<double>(max_seq_len, rope.original_max_position));
  }
}

int ModelConfig::longest_context() const {
  double longest = max_seq_len;
  for (const AttentionKind& kind : attention.kinds) {
    const RopeConfig& rope = kind.rope;
    if (positions != PositionKind::kRope || rope.scaling != RopeConfig::Scaling::kDynamic) continue;
    longest = std::max(longest, std::floor(rope.factor * rope.original_max_position));
  }
  return static_cast<int>(std::min(longest, kMaxRopePositions));
}

}  // namespace kvlathe
