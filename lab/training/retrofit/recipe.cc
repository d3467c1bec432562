#include "training/retrofit/recipe.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/files.h"
#include "training/retrofit/object_reader.h"

namespace kvlathe {
namespace {

using Json = nlohmann::json;

Status ReadOptimizer(const Json& json, const std::string& where, OptimizerSettings* settings) {
  ObjectReader reader(json, where);
  std::string method = "adamw";
  reader.Text("method", &method);
  if (method != "adamw" && method != "muon") reader.Fail("method", "adamw or muon");
  settings->muon = method == "muon";
  reader.Number("learning_rate", 0, 1, &settings->learning_rate);
  reader.Number("final_share", 0, 1, &settings->final_share);
  reader.Number("warmup_share", 0, 1, &settings->warmup_share);
  reader.Number("beta1", 0, 0.9999, &settings->beta1);
  reader.Number("beta2", 0, 0.99999, &settings->beta2);
  reader.Number("epsilon", 0, 1, &settings->epsilon);
  reader.Number("weight_decay", 0, 10, &settings->weight_decay);
  reader.Number("momentum", 0, 0.9999, &settings->momentum);
  reader.Number("clip_norm", 1e-6, 1e6, &settings->clip_norm);
  return reader.Finish();
}

Status ReadPhase(const Json& json, const std::string& where, int max_context,
                 TrainingPhase* phase) {
  if (!json.is_object()) {
    return Error(StatusCode::kInvalidArgument, "{}: must be an object", where);
  }
  ObjectReader reader(json, where);
  reader.Integer("context", 2, max_context, &phase->context);
  reader.Number("share", 0, 1, &phase->share);
  if (const Json* mixture = reader.Object("mixture")) {
    for (const auto& [source, weight] : mixture->items()) {
      if (!weight.is_number() || !(weight.get<double>() > 0)) {
        reader.Fail("mixture", "of positive numbers by source");
        break;
      }
      phase->mixture[source] = weight.get<double>();
    }
  }
  if (phase->mixture.empty()) reader.Fail("mixture", "at least one source");
  return reader.Finish();
}

Status ReadPhases(const Json& phases, const std::string& where, TrainingRecipe* recipe) {
  double sum = 0;
  for (const Json& json : phases) {
    const std::string place = fmt::format("{}, phase {}", where, recipe->phases.size() + 1);
    TrainingPhase phase;
    KVL_RETURN_IF_ERROR(ReadPhase(json, place, recipe->model.max_seq_len, &phase));
    if (recipe->micro_batch_tokens % phase.context != 0) {
      return Error(StatusCode::kInvalidArgument,
                   "{}: context {} does not divide micro_batch_tokens {}", place, phase.context,
                   recipe->micro_batch_tokens);
    }
    sum += phase.share;
    recipe->phases.push_back(std::move(phase));
  }
  if (recipe->phases.empty() || std::abs(sum - 1) > 1e-6) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: the shares of \"phases\" add up to {:.4f}; they must add up to 1", where,
                 sum);
  }
  return OkStatus();
}

Status ReadPool(const Json& json, const std::string& where, PoolRecipe* pool) {
  ObjectReader reader(json, where);
  reader.Integer("n", 2, 64, &pool->every);
  reader.Integer("sink", 0, 1 << 20, &pool->n_sink);
  return reader.Finish();
}

constexpr int kMaxSteps = 1 << 26;

void ReadSteps(ObjectReader* reader, std::vector<int64_t>* steps) {
  const Json* list = reader->Array("save_at_steps");
  if (list == nullptr) return;
  for (const Json& step : *list) {
    const bool fits =
        step.is_number_integer() && step.get<double>() >= 1 && step.get<double>() <= kMaxSteps;
    if (!fits) {
      return reader->Fail("save_at_steps", fmt::format("a list of steps from 1 to {}", kMaxSteps));
    }
    steps->push_back(step.get<int64_t>());
  }
}

}  // namespace

int TrainingRecipe::PhaseIndexAt(double progress) const {
  double end = 0;
  for (size_t i = 0; i + 1 < phases.size(); ++i) {
    end += phases[i].share;
    if (progress < end) return static_cast<int>(i);
  }
  return static_cast<int>(phases.size()) - 1;
}

double TrainingRecipe::LearningRateAt(double progress) const {
  const OptimizerSettings& o = optimizer;
  if (progress < o.warmup_share) return o.learning_rate * progress / o.warmup_share;
  const double rest = std::max(1e-9, 1 - o.warmup_share);
  const double x = std::clamp((progress - o.warmup_share) / rest, 0.0, 1.0);
  const double cosine = 0.5 * (1 + std::cos(3.141592653589793 * x));
  return o.learning_rate * (o.final_share + (1 - o.final_share) * cosine);
}

StatusOr<TrainingRecipe> ParseRecipe(const Json& json, const std::string& where,
                                     const ModelConfig* base) {
  if (!json.is_object()) {
    return Error(StatusCode::kInvalidArgument, "{}: a recipe is a JSON object", where);
  }
  TrainingRecipe recipe;
  ObjectReader reader(json, where);
  const Json* model = reader.Object("model");
  const Json* optimizer = reader.Object("optimizer");
  const Json* phases = reader.Array("phases");
  const Json* dmc = reader.Object("dmc");
  const Json* dms = reader.Object("dms");
  const Json* pool = reader.Object("pool");
  reader.Integer("total_tokens", dms == nullptr ? 1 : 0, int64_t{1} << 50, &recipe.total_tokens);
  reader.Integer("batch_tokens", 1, 1 << 26, &recipe.batch_tokens);
  recipe.micro_batch_tokens = std::min(recipe.micro_batch_tokens, recipe.batch_tokens);
  reader.Integer("micro_batch_tokens", 1, 1 << 26, &recipe.micro_batch_tokens);
  reader.Integer("seed", 0, INT64_MAX, &recipe.seed);
  reader.Number("distillation", 0, 1000, &recipe.distillation);
  std::string trained = "all";
  reader.Text("trained", &trained);
  if (trained != "all" && trained != "attention") reader.Fail("trained", "all or attention");
  if (trained == "attention") recipe.trained = TrainedWeights::kAttention;
  reader.Text("validation_source", &recipe.validation_source);
  reader.Integer("validation_tokens", 1, 1 << 26, &recipe.validation_tokens);
  reader.Integer("validation_interval", 1, 1 << 26, &recipe.validation_interval);
  ReadSteps(&reader, &recipe.save_at_steps);
  if (model == nullptr && base == nullptr) reader.Fail("model", "a Hugging Face config.json");
  if (phases == nullptr) reader.Fail("phases", "an array");
  KVL_RETURN_IF_ERROR(reader.Finish());
  if (dmc == nullptr && dms == nullptr && recipe.total_tokens == 0) {
    return Error(StatusCode::kInvalidArgument, "{}: \"total_tokens\" is missing", where);
  }
  if (recipe.batch_tokens % recipe.micro_batch_tokens != 0) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: micro_batch_tokens {} does not divide batch_tokens {}", where,
                 recipe.micro_batch_tokens, recipe.batch_tokens);
  }
  if (model != nullptr) {
    KVL_ASSIGN_OR_RETURN(recipe.model, ParseModelConfig(*model, where + ", \"model\""));
  } else {
    recipe.model = *base;
  }
  if (dmc != nullptr) {
    KVL_ASSIGN_OR_RETURN(recipe.dmc, ParseDmcRecipe(*dmc, where + ", \"dmc\""));
    recipe.model.dmc = recipe.dmc->config;
  }
  if ((dmc != nullptr) + (dms != nullptr) + (pool != nullptr) > 1) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: \"dmc\", \"dms\" and \"pool\" do not go together; keep one of them", where);
  }
  if (dms != nullptr) {
    KVL_ASSIGN_OR_RETURN(recipe.dms, ParseDmsRecipe(*dms, where + ", \"dms\""));
  }
  if (pool != nullptr) {
    KVL_RETURN_IF_ERROR(ReadPool(*pool, where + ", \"pool\"", &recipe.pool.emplace()));
  }
  if (optimizer != nullptr) {
    KVL_RETURN_IF_ERROR(ReadOptimizer(*optimizer, where + ", \"optimizer\"", &recipe.optimizer));
  }
  KVL_RETURN_IF_ERROR(ReadPhases(*phases, where, &recipe));
  return recipe;
}

TrainingRecipe RecipeOfStage(const TrainingRecipe& whole, DmcStage stage) {
  TrainingRecipe recipe = whole;
  recipe.total_tokens = whole.dmc->n_steps(stage) * whole.batch_tokens;
  // A constant rate until the target is reached, and then a cosine without a warm-up.
  if (stage == DmcStage::kSolidify) {
    recipe.optimizer.warmup_share = 0;
  } else {
    recipe.optimizer.final_share = 1;
  }
  if (stage == DmcStage::kRamp) recipe.optimizer.warmup_share = 0;
  return recipe;
}

StatusOr<TrainingRecipe> LoadRecipe(const std::string& path, const ModelConfig* base) {
  KVL_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  if (!json.is_object() || !json.contains("training")) {
    return Error(StatusCode::kInvalidArgument, "{}: no object \"training\"", path);
  }
  return ParseRecipe(json["training"], path, base);
}

}  // namespace kvlathe
