#include "evaluation/task_runs/task_predictions.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/crc32c.h"
#include "evaluation/task_runs/task_lines.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

// Of all tokens that the model reads or weighs, each list behind its length.
uint32_t TokensCrc(const PreparedExample& example) {
  uint32_t crc = 0;
  const auto extend = [&](const std::vector<int32_t>& numbers) {
    const auto n = static_cast<uint64_t>(numbers.size());
    crc = ExtendCrc32c(crc, std::as_bytes(std::span(&n, 1)));
    crc = ExtendCrc32c(crc, std::as_bytes(std::span(numbers)));
  };
  extend(example.prompt);
  for (const PreparedQuestion& question : example.questions) {
    for (const std::vector<int32_t>& choice : question.choices) extend(choice);
  }
  return crc;
}

// -1 where the field is missing or null.
StatusOr<int> PickedOf(const TaskLine& line, const char* field, size_t n_choices) {
  if (!line.Has(field) || line.value[field].is_null()) return -1;
  KVL_ASSIGN_OR_RETURN(const int64_t picked, line.Integer(field));
  if (picked < 0 || picked >= static_cast<int64_t>(n_choices)) {
    return line.Refuse("\"{}\" is {}, but there are {} choices", field, picked, n_choices);
  }
  return static_cast<int>(picked);
}

// Nothing where the line has none: predictions of earlier versions.
StatusOr<std::optional<std::vector<int32_t>>> TokensOf(const TaskLine& line) {
  if (!line.Has("tokens")) return std::nullopt;
  const nlohmann::json& list = line.value["tokens"];
  std::vector<int32_t> tokens;
  for (size_t i = 0; list.is_array() && i < list.size(); ++i) {
    const bool is_id = list[i].is_number_unsigned() && list[i].get<uint64_t>() <= INT32_MAX;
    if (!is_id) break;
    tokens.push_back(list[i].get<int32_t>());
  }
  if (!list.is_array() || tokens.size() != list.size()) {
    return line.Refuse("\"tokens\" is no list of token ids");
  }
  return std::optional(std::move(tokens));
}

// Reads the line of one example.
Status ReadPrediction(const TaskLine& line, const PreparedTask& task, std::vector<bool>* is_read,
                      std::vector<TaskPrediction>* predictions) {
  KVL_ASSIGN_OR_RETURN(const int64_t index, line.Integer("index"));
  const size_t n = task.examples.size();
  if (index < 0 || index >= static_cast<int64_t>(n)) {
    return line.Refuse("has example {}, but the task runs {} (0 to {}); give the same --task-count",
                       index, n, n - 1);
  }
  if ((*is_read)[index]) return line.Refuse("has example {} once more", index);
  (*is_read)[index] = true;
  const PreparedExample& example = task.examples[index];
  KVL_ASSIGN_OR_RETURN(const int64_t crc, line.Integer("tokens_crc32c"));
  if (crc != TokensCrc(example)) {
    return line.Refuse(
        "example {} is another than this run's; write the baseline with the same model, task, "
        "--shots, --seed and length",
        index);
  }
  TaskPrediction& prediction = (*predictions)[index];
  KVL_ASSIGN_OR_RETURN(prediction.output, line.Text("output"));
  if (!line.Has("score") || !line.value["score"].is_number()) {
    return line.Refuse("no \"score\"; give it as a number");
  }
  prediction.score = line.value["score"].get<double>();
  KVL_ASSIGN_OR_RETURN(prediction.tokens, TokensOf(line));
  const size_t n_choices = example.text.choices.size();
  KVL_ASSIGN_OR_RETURN(prediction.picked, PickedOf(line, "picked", n_choices));
  KVL_ASSIGN_OR_RETURN(prediction.picked_norm, PickedOf(line, "picked_norm", n_choices));
  const bool takes_norm = task.norm_leads && prediction.picked_norm >= 0;
  prediction.taken = takes_norm ? prediction.picked_norm : prediction.picked;
  return OkStatus();
}

// Text of any bytes as a JSON file gives it back.
std::string AsJsonHasIt(const std::string& text) {
  const std::string line = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  return Json::parse(line).get<std::string>();
}

bool IsSameAnswer(const TaskPrediction& a, const TaskPrediction& b) {
  if (a.taken >= 0 || b.taken >= 0) return a.taken == b.taken;
  return a.output == b.output || AsJsonHasIt(a.output) == AsJsonHasIt(b.output);
}

std::optional<TaskParting> PartingOf(std::span<const TaskPrediction> baseline,
                                     std::span<const TaskPrediction> predictions) {
  TaskParting parting;
  std::vector<double> parted_at;
  for (size_t i = 0; i < predictions.size(); ++i) {
    const std::optional<std::vector<int32_t>>&a = baseline[i].tokens, &b = predictions[i].tokens;
    if (!a.has_value() || !b.has_value()) return std::nullopt;
    parted_at.push_back(static_cast<double>(std::ranges::mismatch(*a, *b).in1 - a->begin()));
    parting.never += *a == *b ? 1 : 0;
  }
  parting.mean = MeanOf(parted_at).mean;
  parting.never /= static_cast<double>(parted_at.size());
  std::ranges::sort(parted_at);
  const size_t n = parted_at.size();
  parting.median = (parted_at[(n - 1) / 2] + parted_at[n / 2]) / 2;
  return parting;
}

}  // namespace

std::string PredictionLine(const PredictionSource& source, size_t index,
                           const PreparedExample& example, const TaskPrediction& prediction) {
  Json json = {{"kv", source.kv},
               {"kv_resolved", source.kv_resolved},
               {"task", source.task},
               {"index", index},
               {"prompt", example.text.prompt},
               {"output", prediction.output},
               {"reference", CanonicalAnswer(example.text)},
               {"score", prediction.score}};
  if (prediction.tokens.has_value()) json["tokens"] = *prediction.tokens;
  if (prediction.picked >= 0) {
    json["loglikelihoods"] = prediction.log_likelihoods;
    json["picked"] = prediction.picked;
    json["picked_norm"] = nullptr;
    if (prediction.picked_norm >= 0) json["picked_norm"] = prediction.picked_norm;
  }
  json["tokens_crc32c"] = TokensCrc(example);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

StatusOr<std::vector<TaskPrediction>> ReadBaseline(const std::string& path,
                                                   std::string_view task_name,
                                                   const PreparedTask& task) {
  const size_t n = task.examples.size();
  std::vector<TaskPrediction> predictions(n);
  std::vector<bool> is_read(n);
  size_t n_read = 0, n_others = 0;
  KVL_RETURN_IF_ERROR(ForEachTaskLine(path, [&](const TaskLine& line) -> Status {
    KVL_ASSIGN_OR_RETURN(const std::string name, line.Text("task"));
    KVL_ASSIGN_OR_RETURN(const std::string kv, line.Text("kv_resolved"));
    if (name != task_name || kv != "none") {
      ++n_others;
      return OkStatus();
    }
    ++n_read;
    return ReadPrediction(line, task, &is_read, &predictions);
  }));
  if (n_read == 0) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: has no predictions of task {} with --kv none ({} of others); write them with "
                 "--task, --kv none and --predictions",
                 path, task_name, n_others);
  }
  if (n_read < n) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: has {} predictions of task {}, but the task runs {} examples; give the same "
                 "--task-count",
                 path, n_read, task_name, n);
  }
  return predictions;
}

TaskChange ChangeFrom(std::span<const TaskPrediction> baseline,
                      std::span<const TaskPrediction> predictions) {
  TaskChange change;
  std::vector<double> differences;
  for (size_t i = 0; i < predictions.size(); ++i) {
    if (!IsSameAnswer(baseline[i], predictions[i])) change.flips += 1;
    differences.push_back(predictions[i].score - baseline[i].score);
  }
  change.flips /= static_cast<double>(predictions.size());
  change.score_change = MeanOf(differences);
  change.parting = PartingOf(baseline, predictions);
  return change;
}

}  // namespace kvlathe
