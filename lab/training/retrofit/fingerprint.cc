#include "training/retrofit/fingerprint.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <vector>

namespace kvlathe {
namespace {

// The names of config.json and of recipes, in the order of the first two groups of a fingerprint,
// and of the group of a stage.
constexpr std::array kModelFields = {"num_hidden_layers",   "hidden_size", "num_attention_heads",
                                     "num_key_value_heads", "head_dim",    "intermediate_size",
                                     "vocab_size"};
constexpr std::array kRunFields = {"muon", "batch_tokens", "micro_batch_tokens", "seed"};
constexpr std::array kStageFields = {
    "stage",       "channel last", "offset",           "weight_offset",
    "hinge",       "consistent",   "shared_decisions", "uniform_weights",
    "temperature", "window",       "compression",      "total_tokens"};

constexpr std::array kDmsFields = {"window",      "sink",        "scale",        "offset",
                                   "compression", "temperature", "hinge_weight", "hinge_growth",
                                   "fit_tokens",  "fit_ridge",   "fit_steps",    "fit_slope",
                                   "every",       "total_tokens"};

// What a fingerprint that does not say so means.
std::string_view DefaultOf(std::string_view name) {
  if (name == "model_type") return "llama";
  if (name == "trained") return "all";
  if (name == "deciding_rate" || name == "hinge_weight") return "1";
  if (name == "distillation" || name == "hinge_growth") return "0";
  return "not set";
}

std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + separator.size());
  }
}

using Values = std::map<std::string, std::string, std::less<>>;

void AddGroup(std::string_view group, std::span<const char* const> names, Values* values) {
  const std::vector<std::string_view> parts = SplitAt(group, " ");
  for (size_t i = 0; i < std::min(parts.size(), names.size()); ++i) {
    values->emplace(names[i], parts[i]);
  }
}

// A group that not every fingerprint has, by its first word.
void AddFurtherGroup(std::string_view group, int* n_phases, Values* values) {
  const std::string_view first = group.substr(0, group.find(' '));
  const std::string_view rest = group.substr(std::min(group.size(), first.size() + 1));
  if (first == "pool") {
    values->emplace("pool", rest);
  } else if (first == "dms") {
    AddGroup(rest, kDmsFields, values);
  } else if (first == "rate") {
    values->emplace("deciding_rate", rest);
  } else if (first == "hinge") {
    values->emplace("hinge_weight", rest);
  } else if (first == "growth") {
    values->emplace("hinge_growth", rest);
  } else if (first == "distilled") {
    values->emplace("distillation", rest);
  } else if (first == "attention") {
    values->emplace("trained", first);
  } else if (first == "zero-out" || first == "ramp" || first == "solidify") {
    AddGroup(group, kStageFields, values);
  } else if (!first.empty() && first.front() >= '0' && first.front() <= '9') {
    values->emplace(fmt::format("phase {}", ++*n_phases), fmt::format("\"{}\"", group));
  } else {
    values->emplace("model_type", group);
  }
}

Values ValuesOf(std::string_view fingerprint) {
  Values values;
  const std::vector<std::string_view> groups = SplitAt(fingerprint, " | ");
  int n_phases = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    // The run's fields follow the model's in one group.
    if (i == 0) AddGroup(groups[i], kModelFields, &values);
    if (i == 1) AddGroup(groups[i], kRunFields, &values);
    if (i > 1) AddFurtherGroup(groups[i], &n_phases, &values);
  }
  return values;
}

bool IsOfModel(std::string_view name) {
  return name == "model_type" ||
         std::find(kModelFields.begin(), kModelFields.end(), name) != kModelFields.end();
}

}  // namespace

std::string FingerprintOf(const TrainingRecipe& recipe, std::optional<DmcStage> stage) {
  const ModelConfig& c = recipe.model;
  std::string text =
      fmt::format("{} {} {} {} {} {} {} | {} {} {} {}", c.n_layers, c.hidden_dim, c.n_heads,
                  c.n_kv_heads, c.head_dim, c.ffn_dim, c.vocab_size, recipe.optimizer.muon,
                  recipe.batch_tokens, recipe.micro_batch_tokens, recipe.seed);
  if (c.model_type != "llama") text += " | " + c.model_type;
  for (const TrainingPhase& phase : recipe.phases) {
    text += fmt::format(" | {} {}", phase.context, phase.share);
    for (const auto& [name, weight] : phase.mixture) text += fmt::format(" {}:{}", name, weight);
  }
  if (recipe.pool.has_value()) {
    text += fmt::format(" | pool {} {}", recipe.pool->every, recipe.pool->n_sink);
  }
  if (recipe.dms.has_value()) {
    const DmsRecipe& dms = *recipe.dms;
    text += fmt::format(" | dms {} {} {} {} {} {} {} {} {} {} {} {} {} {}", dms.window, dms.n_sink,
                        dms.scale, dms.offset, dms.compression, dms.temperature, dms.hinge_weight,
                        dms.hinge_growth, dms.fit_tokens, dms.fit_ridge, dms.fit_steps,
                        dms.fit_slope, dms.every, recipe.total_tokens);
  }
  if (recipe.trained == TrainedWeights::kAttention) text += " | attention";
  if (recipe.distillation > 0) text += fmt::format(" | distilled {}", recipe.distillation);
  if (stage.has_value()) {
    const DmcRecipe& dmc = *recipe.dmc;
    if (dmc.hinge_weight != 1) text += fmt::format(" | hinge {}", dmc.hinge_weight);
    if (dmc.hinge_growth != 0) text += fmt::format(" | growth {}", dmc.hinge_growth);
    if (dmc.deciding_rate != 1) text += fmt::format(" | rate {}", dmc.deciding_rate);
    text +=
        fmt::format(" | {} {} {} {} {} {} {} {} {} {} {} {}", NameOf(*stage), dmc.config.is_last,
                    dmc.config.offset, dmc.config.weight_offset, static_cast<int>(dmc.hinge),
                    dmc.is_consistent, dmc.variant.shares_decisions, dmc.variant.uniform_weights,
                    dmc.temperature, dmc.window, dmc.compression, recipe.total_tokens);
  }
  return text;
}

FingerprintDifferences CompareFingerprints(std::string_view there, std::string_view here,
                                           FingerprintUse use) {
  const Values of_file = ValuesOf(there), of_run = ValuesOf(here);
  std::set<std::string, std::less<>> names;
  for (const auto& [name, value] : of_file) names.insert(name);
  for (const auto& [name, value] : of_run) names.insert(name);
  const auto value_in = [](const Values& values, std::string_view name) {
    const auto found = values.find(name);
    return found == values.end() ? DefaultOf(name) : std::string_view(found->second);
  };
  FingerprintDifferences differences;
  for (const std::string& name : names) {
    const std::string_view a = value_in(of_file, name), b = value_in(of_run, name);
    const bool matters =
        use == FingerprintUse::kGoOn || IsOfModel(name) || name == "muon" || name == "trained";
    if (a == b || !matters) continue;
    differences.is_of_model = differences.is_of_model || IsOfModel(name);
    differences.what +=
        fmt::format("{}{} is {} there, {} here", differences.what.empty() ? "" : "; ", name, a, b);
  }
  return differences;
}

}  // namespace kvlathe
