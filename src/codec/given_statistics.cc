#include "codec/given_statistics.h"

#include <filesystem>

#include "analysis/statistics/gram.h"
#include "calibration/calibrate.h"
#include "calibration/statistics_store.h"
#include "io/files.h"

namespace kvlathe {
namespace {

Status NeedsStatistics(std::string_view what) {
  return Error(StatusCode::kInvalidArgument,
               "{} needs statistics of the model's rows; give basis: the file that kvlathe "
               "calibrate writes, or what a Calibrator has made of captured rows",
               what);
}

StatisticsShape ShapeOfConfig(const ModelConfig& c) {
  return {c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim};
}

}  // namespace

StatusOr<const CalibrationStatistics*> GivenStatistics::Statistics(const StatisticsNeed& need) {
  if (given_.statistics == nullptr) return NeedsStatistics("this cache");
  const CalibrationStatistics& statistics = *given_.statistics;
  StatisticsRequest request;
  request.shape = ShapeOfConfig(config_);
  request.model_hash = statistics.source.model_hash;  // rows alone do not tell
  request.rope = config_.DescribePositions();
  request.contents = {.gradients = need.gradients,
                      .across_heads = need.across_heads,
                      .key_values = need.key_values,
                      .outputs = need.outputs};
  request.maps_of = need.maps_of;
  if (need.merge.has_value()) request.merging = NameOf(*need.merge);
  KVL_RETURN_IF_ERROR(CheckServes(statistics, given_.name, request));
  return &statistics;
}

StatusOr<const FisherWeights*> GivenStatistics::Fisher(const Spec& /*spec*/) {
  if (fisher_.has_value()) return &*fisher_;
  if (given_.statistics == nullptr) return NeedsStatistics("ranks=fisher");
  const std::string path = std::filesystem::path(given_.name).parent_path() / "fisher.json";
  if (!FileExists(path)) {
    return Error(StatusCode::kInvalidArgument,
                 "ranks=fisher needs {}, which kvlathe measures on the model itself; take "
                 "ranks=adaptive",
                 path);
  }
  KVL_ASSIGN_OR_RETURN(FisherWeights weights, ReadFisherWeights(path));
  KVL_RETURN_IF_ERROR(
      CheckFisherMatch(weights, path, config_.n_layers, given_.statistics->source.model_hash));
  fisher_ = std::move(weights);
  return &*fisher_;
}

StatusOr<std::vector<std::vector<double>>> GivenStatistics::Grams(const HeadMoments& rows,
                                                                  int n_joined) const {
  if (rows.covariance.empty()) return NeedsStatistics("a basis of rows");
  if (n_joined > 1) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: heads that share latents need the weights, or palu(whiten=on) and statistics "
                 "across heads",
                 given_.name);
  }
  std::vector<std::vector<double>> grams;
  for (int64_t h = 0; h < int64_t{config_.n_layers} * config_.n_kv_heads; ++h) {
    grams.push_back(GramOf(rows, h, config_.head_dim));
  }
  return grams;
}

StatusOr<std::vector<std::vector<double>>> GivenStatistics::GramsOfWeights(
    const std::vector<std::vector<double>>& grams, int n_joined) const {
  if (n_joined == 1) return grams;
  return Error(StatusCode::kUnimplemented,
               "heads that share latents of the weights alone (whiten=off with group={}) are not "
               "planned from given weights; take whiten=on",
               n_joined);
}

StatusOr<std::vector<std::vector<double>>> GivenStatistics::ValueGrams(int n_joined) {
  if (!weights_.value_grams.empty()) return GramsOfWeights(weights_.value_grams, n_joined);
  if (given_.statistics == nullptr) return NeedsStatistics("a basis of values");
  return Grams(given_.statistics->v, n_joined);
}

StatusOr<std::vector<std::vector<double>>> GivenStatistics::KeyGrams(int n_joined) {
  if (!weights_.key_grams.empty()) return GramsOfWeights(weights_.key_grams, n_joined);
  if (given_.statistics == nullptr) return NeedsStatistics("a basis of keys");
  return Grams(given_.statistics->k_pre, n_joined);
}

StatusOr<std::vector<std::vector<double>>> GivenStatistics::OutputGrams() {
  if (!weights_.output_grams.empty()) return weights_.output_grams;
  const int d = config_.head_dim;
  std::vector<double> identity(int64_t{d} * d);
  for (int i = 0; i < d; ++i) identity[i * (d + 1)] = 1;
  return std::vector<std::vector<double>>(int64_t{config_.n_layers} * config_.n_kv_heads, identity);
}

}  // namespace kvlathe
