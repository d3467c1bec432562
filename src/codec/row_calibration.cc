#include "codec/row_calibration.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "analysis/statistics/positive.h"
#include "calibration/calibrate.h"
#include "format/keys.h"

namespace kvlathe {
namespace {

StatisticsShape ShapeOfRows(const ModelConfig& c) {
  return {c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim};
}

}  // namespace

RowCalibration::RowCalibration(const ModelConfig& config, ThreadPool* pool, Isa isa)
    : config_(config),
      pool_(pool),
      ropes_(config_.attention, config_.rope_dim()),
      rows_(ShapeOfRows(config), pool, isa, /*across_heads=*/true),
      joint_(ShapeOfRows(config), MostTurningPairs(config.rope_dim()), config.rope_dim() / 2,
             pool) {}

Status RowCalibration::CheckRows(const CapturedRows& rows) const {
  if (rows.layer_idx != next_layer_) {
    return Error(StatusCode::kInvalidArgument,
                 "layer {}: the next layer is {}; the layers of a piece come one after the other",
                 rows.layer_idx, next_layer_);
  }
  if (rows.n_tokens < 1) return Error(StatusCode::kInvalidArgument, "there are no rows");
  if (rows.layer_idx > 0 && rows.n_tokens != n_new_) {
    return Error(StatusCode::kInvalidArgument, "layer {}: {} rows; the piece began with {}",
                 rows.layer_idx, rows.n_tokens, n_new_);
  }
  if (rows.layer_idx == 0 && rows.first_position != 0 && rows.first_position != n_seen_) {
    return Error(StatusCode::kInvalidArgument,
                 "first_position={}: the sequence goes on at {}, and 0 begins another",
                 rows.first_position, n_seen_);
  }
  if (rows.first_position < 0 || rows.first_position + rows.n_tokens > config_.max_seq_len) {
    return Error(StatusCode::kInvalidArgument,
                 "first_position={}: {} rows from there on are not "
                 "within {} positions",
                 rows.first_position, rows.n_tokens, config_.max_seq_len);
  }
  return OkStatus();
}

// Starts lie all over the context whatever their number (the golden ratio's multiples).
void RowCalibration::BeginSequence(bool is_held_back) {
  const int n_positions = CalibrationPositions(config_.max_seq_len);
  const int n_sequence = CalibrationSequenceTokens(config_.max_seq_len);
  const double place = static_cast<double>(n_sequences_) * 0.6180339887498949;
  const int start = static_cast<int>((place - std::floor(place)) * (n_positions - n_sequence));
  shifts_.clear();
  for (int l = 0; l < config_.n_layers; ++l) {
    const RopeConfig& rope = config_.attention.of(l).rope;
    shifts_.emplace_back(start, RopeFrequencies(rope, config_.rope_dim()), rope.amplitude);
  }
  is_held_back_ = is_held_back;
  has_gradients_.assign(config_.n_layers, false);
  rows_.SetShifts(shifts_);
  joint_.BeginSequence(shifts_, is_held_back);
  ++n_sequences_;
  n_seen_ = 0;
}

void RowCalibration::Turn(const Turning& turning, const float* from, int n_heads,
                          std::vector<float>* to) {
  const int64_t d = config_.head_dim, width = n_heads * d;
  to->assign(from, from + turning.n_tokens * width);
  if (config_.rope_dim() == 0) return;
  const RopeTable& table = ropes_.of(turning.layer_idx);
  const int half = table.rope_dim() / 2;
  const float sign = turning.is_back ? -1 : 1, scale = turning.scale;
  pool_->Run([&](int worker_id) {
    const Range tokens = ShareOf(turning.n_tokens, 8, worker_id, pool_->n_workers());
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
      const auto position = static_cast<int>(turning.first_position + t);
      const float *const cos = table.cos(position), *const sin = table.sin(position);
      for (int h = 0; h < n_heads; ++h) {
        float* const row = to->data() + t * width + h * d;
        for (int i = 0; i < half; ++i) {
          const float x = row[i], y = row[i + half], s = sign * sin[i];
          row[i] = scale * (x * cos[i] - y * s);
          row[i + half] = scale * (x * s + y * cos[i]);
        }
      }
    }
  });
}

float RowCalibration::WayBack(int layer_idx) const {
  return config_.rope_dim() > 0 ? ropes_.of(layer_idx).way_back() : 1;
}

Status RowCalibration::Add(const CapturedRows& rows) {
  KVL_RETURN_IF_ERROR(CheckRows(rows));
  KVL_RETURN_IF_ERROR(rows_.status());
  if (rows.layer_idx == 0) {
    if (rows.first_position == 0) BeginSequence(rows.is_held_back);
    n_new_ = rows.n_tokens;
  }
  if (config_.rope_dim() > 0) {
    ropes_.mutable_of(rows.layer_idx)->Extend(static_cast<int>(rows.first_position + n_new_));
  }
  const Turning turning = {rows.layer_idx, n_new_, rows.first_position, rows.are_turned,
                           rows.are_turned ? WayBack(rows.layer_idx) : 1};
  Turn(turning, rows.q, config_.n_heads, &q_);
  Turn(turning, rows.k, config_.n_kv_heads, &k_);
  std::vector<int> positions(n_new_);
  std::iota(positions.begin(), positions.end(), rows.first_position);
  const bool turned = rows.are_turned;
  const QkvView view = {.layer_idx = rows.layer_idx,
                        .n_tokens = static_cast<int>(n_new_),
                        .positions = positions.data(),
                        .q_pre = turned ? q_.data() : rows.q,
                        .q_post = turned ? rows.q : q_.data(),
                        .k_pre = turned ? k_.data() : rows.k,
                        .k_post = turned ? rows.k : k_.data(),
                        .v = rows.v};
  rows_.Observe(view);
  KVL_RETURN_IF_ERROR(rows_.status());
  joint_.Observe(view);
  if (++next_layer_ < config_.n_layers) return OkStatus();
  next_layer_ = 0;
  n_seen_ = static_cast<int>(rows.first_position + n_new_);
  n_tokens_ += n_new_;
  longest_ = std::max(longest_, n_seen_);
  return OkStatus();
}

Status RowCalibration::CheckGradients(const CapturedGradients& gradients) const {
  const int l = gradients.layer_idx;
  if (l < 0 || l >= config_.n_layers) {
    return Error(StatusCode::kInvalidArgument, "layer {}: there are layers 0 to {}", l,
                 config_.n_layers - 1);
  }
  if (next_layer_ > 0 || n_sequences_ == 0 || gradients.n_tokens != n_seen_) {
    return Error(StatusCode::kInvalidArgument,
                 "layer {}: gradients of {} rows; they come behind all rows of their sequence, and "
                 "of all of them",
                 l, gradients.n_tokens);
  }
  if (has_gradients_[l]) {
    return Error(StatusCode::kInvalidArgument,
                 "layer {}: the sequence has its gradients already; each layer comes once", l);
  }
  return OkStatus();
}

Status RowCalibration::AddGradients(const CapturedGradients& gradients) {
  KVL_RETURN_IF_ERROR(CheckGradients(gradients));
  if (!fisher_.has_value()) {
    fisher_.emplace(ShapeOfRows(config_), MostTurningPairs(config_.rope_dim()), pool_);
  }
  const int l = gradients.layer_idx, n_heads = config_.n_kv_heads;
  const bool turned = gradients.are_turned;
  // A gradient goes through the turn the other way: by its transpose, which is not its inverse
  // where RoPE stretches.
  const float inverse = WayBack(l);
  Turn({l, n_seen_, 0, turned, turned ? inverse : 1}, gradients.k, n_heads, &k_);
  const Turning of_gradients = {l, n_seen_, 0, turned, turned ? 1 : inverse};
  Turn(of_gradients, gradients.to_k, n_heads, &to_k_);
  Turn(of_gradients, gradients.to_k_through_all, n_heads, &to_k_through_all_);
  const auto after = [&](const float* given, const std::vector<float>& other) {
    return turned ? given : other.data();
  };
  const auto before = [&](const float* given, const std::vector<float>& other) {
    return turned ? other.data() : given;
  };
  const RowGradients shown = {.layer_idx = l,
                              .n_tokens = gradients.n_tokens,
                              .k_post = after(gradients.to_k, to_k_),
                              .k_pre = before(gradients.to_k, to_k_),
                              .v = gradients.to_v,
                              .k_post_rows = after(gradients.k, k_),
                              .k_pre_rows = before(gradients.k, k_),
                              .v_rows = gradients.v,
                              .through_all = {after(gradients.to_k_through_all, to_k_through_all_),
                                              before(gradients.to_k_through_all, to_k_through_all_),
                                              gradients.to_v_through_all}};
  fisher_->Add(shown, shifts_[l], joint_.turning_means(), is_held_back_);
  has_gradients_[l] = true;
  if (++n_gradients_ % config_.n_layers == 0) {
    fisher_->CountTokens(gradients.n_tokens, is_held_back_);
  }
  return OkStatus();
}

StatusOr<CalibrationStatistics> RowCalibration::Finish() {
  if (next_layer_ > 0) {
    return Error(StatusCode::kFailedPrecondition,
                 "the piece ends at layer {} of {}; finish behind the last one", next_layer_,
                 config_.n_layers);
  }
  KVL_RETURN_IF_ERROR(rows_.status());
  if (n_gradients_ > 0 && n_gradients_ != n_sequences_ * config_.n_layers) {
    return Error(
        StatusCode::kFailedPrecondition,
        "there are gradients of {} layers of {} sequences with {} each; show those of all, "
        "or none",
        n_gradients_, n_sequences_, config_.n_layers);
  }
  KVL_ASSIGN_OR_RETURN(CalibrationStatistics statistics, rows_.Finish());
  if (fisher_.has_value()) {
    joint_.SettleTurningMeans(fisher_->keys_before_rope());
    KVL_RETURN_IF_ERROR(fisher_->Finish(joint_.turning_means(), &statistics));
  }
  joint_.Finish(&statistics);
  statistics.source.model_hash = "rows";
  statistics.source.rope = config_.DescribePositions();
  statistics.source.token_source = "captured rows";
  statistics.source.n_tokens = n_tokens_;
  statistics.source.sequence_tokens = longest_;
  if (config_.rope_dim() > 0) {
    statistics.source.n_positions = std::max(CalibrationPositions(config_.max_seq_len), longest_);
  }
  KVL_RETURN_IF_ERROR(CheckCovariances(statistics, pool_));
  return statistics;
}

}  // namespace kvlathe
