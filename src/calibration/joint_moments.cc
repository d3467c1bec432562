#include "calibration/joint_moments.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "calibration/moment_sums.h"

namespace kvlathe {
namespace {

int64_t JointWidth(const StatisticsShape& shape) {
  return int64_t{JointHeads(shape)} * shape.head_dim;
}

// 0 where nothing was added.
void Normalise(JointSums* sums, int64_t width, std::vector<float>* mean,
               std::vector<float>* covariance) {
  mean->assign(sums->mean.begin(), sums->mean.end());
  for (int64_t m = 0; m < std::ssize(sums->weight); ++m) {
    const double scale = sums->weight[m] > 0 ? 1 / sums->weight[m] : 0;
    const int64_t first = m * width * width;
    ToCovariance(&sums->scatter[first], scale, width, &(*covariance)[first]);
  }
  *sums = {};  // halves the peak memory
}

}  // namespace

JointMomentSums::JointMomentSums(const StatisticsShape& shape, int n_pairs, int half,
                                 ThreadPool* pool)
    : shape_(shape),
      width_(JointWidth(shape)),
      n_groups_(shape.n_kv_heads / JointHeads(shape)),
      turning_means_(shape, n_pairs, half),
      adder_(pool) {
  for (Part& part : parts_) {
    for (int kind = 0; kind < kKinds; ++kind) {
      part.of_kind[kind] =
          MakeJointSums(shape.n_layers * n_groups_, WidthOf(static_cast<Kind>(kind)));
    }
  }
}

void JointMomentSums::BeginSequence(std::span<const PositionShift> shifts, bool is_held_back) {
  shifts_ = shifts;
  is_held_back_ = is_held_back;
}

void JointMomentSums::Observe(const QkvView& view) {
  const int64_t stride = int64_t{shape_.n_kv_heads} * shape_.head_dim;
  int64_t n_sinks = 0;
  while (n_sinks < view.n_tokens && view.positions[n_sinks] < kCalibrationSinks) ++n_sinks;
  const int64_t n_rows = view.n_tokens - n_sinks;
  if (n_rows == 0) return;
  const float* const k_pre = view.k_pre + n_sinks * stride;
  turning_means_.See(view.layer_idx, k_pre, n_rows);
  const PositionShift none;
  const PositionShift& shift = shifts_.empty() ? none : shifts_[view.layer_idx];
  const TurningMeans::Keys keys = {view.layer_idx, shift,
                                   std::span(view.positions + n_sinks, n_rows)};
  turning_means_.RowsWithAngles(keys, view.k_post + n_sinks * stride, &turned_);
  turning_means_.FrameRowsWithAngles(keys, k_pre, &in_frames_);
  if (key_values_ != nullptr && !is_held_back_) {
    key_values_->AddRows({.layer_idx = view.layer_idx,
                          .n_rows = n_rows,
                          .keys_with_angles = in_frames_.data(),
                          .values = view.v + n_sinks * stride});
  }
  Part& part = parts_[is_held_back_ ? 1 : 0];
  const std::pair<Kind, const float*> kinds[] = {{kKeys, turned_.data()},
                                                 {kKeysInFrames, in_frames_.data()},
                                                 {kKeysBeforeRope, k_pre},
                                                 {kValues, view.v + n_sinks * stride}};
  for (const auto& [kind, rows] : kinds) {
    const int64_t width = WidthOf(kind);
    for (int64_t group = 0; group < n_groups_; ++group) {
      adder_.Add(rows + group * width, n_rows, n_groups_ * width, nullptr, width,
                 view.layer_idx * n_groups_ + group, &part.of_kind[kind]);
    }
  }
}

void JointMomentSums::AppendTo(SumBytes* bytes) {
  for (Part& part : parts_) {
    for (JointSums& sums : part.of_kind) sums.AppendTo(bytes);
  }
  turning_means_.AppendTo(bytes);
}

void JointMomentSums::Finish(CalibrationStatistics* statistics) {
  const std::pair<Part*, JointStatistics*> parts[] = {{&parts_[0], &statistics->joint},
                                                      {&parts_[1], &statistics->held_back}};
  for (const auto& [part, to] : parts) {
    const auto finish = [&](JointSums sums, JointMoments* moments) {
      Normalise(&sums, width_, &moments->mean, &moments->covariance);
    };
    finish(turning_means_.WithSettledMeans(part->of_kind[kKeys]), &to->k_centred);
    finish(turning_means_.WithoutMeans(std::exchange(part->of_kind[kKeys], {})), &to->k);
    finish(turning_means_.WithSettledMeans(std::exchange(part->of_kind[kKeysInFrames], {})),
           &to->k_block);
    Normalise(&part->of_kind[kKeysBeforeRope], width_, &to->k_pre.mean, &to->k_pre.covariance);
    Normalise(&part->of_kind[kValues], width_, &to->v.mean, &to->v.covariance);
  }
  ShareJointRows(statistics);
  statistics->turning_mean = turning_means_.settled();
}

FisherSums::FisherSums(const StatisticsShape& shape, int n_pairs, ThreadPool* pool)
    : shape_(shape),
      width_(JointWidth(shape)),
      n_groups_(shape.n_kv_heads / JointHeads(shape)),
      adder_(pool) {
  const int64_t n_matrices = shape.n_layers * n_groups_;
  for (Part& part : parts_) {
    for (KindSums* sums : {&part.k, &part.k_block, &part.k_pre, &part.v}) {
      const bool have_angles = sums == &part.k || sums == &part.k_block;
      const int64_t n_angles = have_angles ? 2 * n_pairs : 0;
      sums->rows = MakeJointSums(n_matrices, width_ + n_angles);
      sums->fisher.resize(n_matrices * width_ * width_);
    }
  }
}

void FisherSums::AppendTo(SumBytes* bytes) {
  for (Part& part : parts_) {
    for (KindSums* sums : {&part.k, &part.k_block, &part.k_pre, &part.v}) {
      sums->rows.AppendTo(bytes);
      AppendSums(&sums->fisher, bytes);
    }
    AppendSums(&part.n_tokens, bytes);
  }
}

void FisherSums::Add(const RowGradients& gradients, const PositionShift& shift,
                     const TurningMeans& means, bool is_held_back) {
  const Turns turns = {shift, means};
  AddThrough({gradients.k_post, gradients.k_pre, gradients.v}, gradients, turns,
             is_held_back ? nullptr : key_values_, &parts_[is_held_back ? 1 : 0]);
  if (is_held_back || gradients.through_all.k_post == nullptr) return;
  AddThrough(gradients.through_all, gradients, turns, nullptr, &parts_[kThroughAll]);
}

void FisherSums::AddThrough(const RowGradients::ThroughAll& gradients, const RowGradients& of,
                            const Turns& turns, KeyValueSums* key_values, Part* part) {
  const int64_t n_tokens = of.n_tokens;
  const int64_t n_rows = n_tokens * shape_.n_kv_heads, n = n_rows * shape_.head_dim;
  const auto& [shift, means] = turns;
  turned_.assign(gradients.k_post, gradients.k_post + n);
  shift.Apply(n_rows, shape_.head_dim, turned_.data());
  const int layer_idx = of.layer_idx;
  const auto rows_of = [&](const float* rows) { return GroupRows{rows, width_, n_tokens}; };
  std::vector<int> positions(n_tokens);
  std::iota(positions.begin(), positions.end(), 0);
  const TurningMeans::Keys keys = {layer_idx, shift, positions};
  const auto with_angles = [&] {
    return GroupRows{turned_rows_.data(), means.RowWidth(), n_tokens};
  };
  means.RowsWithAngles(keys, of.k_post_rows, &turned_rows_);
  AddRows(turned_.data(), with_angles(), layer_idx, &part->k);
  shift.TurnGradientsInFrames({positions, shape_.n_kv_heads, shape_.head_dim, gradients.k_pre},
                              turned_.data());
  means.FrameRowsWithAngles(keys, of.k_pre_rows, &turned_rows_);
  AddRows(turned_.data(), with_angles(), layer_idx, &part->k_block);
  if (key_values != nullptr) {
    const int64_t skipped = kCalibrationSinks * n_groups_, of_values = skipped * width_;
    key_values->AddGradients({.layer_idx = layer_idx,
                              .n_rows = n_tokens - kCalibrationSinks,
                              .keys_with_angles = turned_rows_.data() + skipped * means.RowWidth(),
                              .values = of.v_rows + of_values,
                              .key_gradients = turned_.data() + of_values,
                              .value_gradients = gradients.v + of_values});
  }
  AddRows(gradients.k_pre, rows_of(of.k_pre_rows), layer_idx, &part->k_pre);
  AddRows(gradients.v, rows_of(of.v_rows), layer_idx, &part->v);
}

void FisherSums::AddRows(const float* gradients, const GroupRows& of, int layer_idx,
                         KindSums* sums) {
  const int64_t stride = width_ * n_groups_, n = of.n_tokens - kCalibrationSinks;
  if (n <= 0) return;
  gradients += kCalibrationSinks * stride;
  const int64_t row_stride = of.row_width * n_groups_;
  const float* const rows = of.rows + kCalibrationSinks * row_stride;
  weights_.resize(n);
  for (int64_t group = 0; group < n_groups_; ++group) {
    const int64_t at = layer_idx * n_groups_ + group;
    for (int64_t t = 0; t < n; ++t) {
      const float* const g = gradients + t * stride + group * width_;
      weights_[t] = std::inner_product(g, g + width_, g, 0.0f);
    }
    adder_.Add(rows + group * of.row_width, n, row_stride, weights_.data(), of.row_width, at,
               &sums->rows);
    adder_.AddSquares({gradients + group * width_, n, stride, width_},
                      sums->fisher.data() + at * width_ * width_);
  }
}

void FisherSums::CountTokens(int64_t n_tokens, bool is_held_back) {
  parts_[is_held_back ? 1 : 0].n_tokens[0] += n_tokens;
}

Status FisherSums::FinishMoments(int64_t n_tokens, KindSums* sums, JointMoments* moments) const {
  const double scale = 0.5 / static_cast<double>(n_tokens);
  Normalise(&sums->rows, width_, &moments->weighed_mean, &moments->weighed_covariance);
  moments->fisher = std::move(sums->fisher);
  const int64_t n_matrices = shape_.n_layers * n_groups_, square = width_ * width_;
  for (int64_t m = 0; m < n_matrices; ++m) {
    float* const f = moments->fisher.data() + m * square;
    const float* const covariance = moments->weighed_covariance.data() + m * square;
    const std::vector<double> sum(f, f + square);
    ToCovariance(sum.data(), scale, width_, f);
    const auto is_finite = [](float x) { return std::isfinite(x); };
    if (!std::all_of(f, f + square, is_finite) ||
        !std::all_of(covariance, covariance + square, is_finite)) {
      return Error(StatusCode::kDataLoss,
                   "layer {}: gradients are not finite; the weights are damaged", m / n_groups_);
    }
  }
  return OkStatus();
}

Status FisherSums::Finish(const TurningMeans& means, CalibrationStatistics* statistics) {
  parts_[kThroughAll].n_tokens = parts_[0].n_tokens;
  const std::pair<Part*, JointStatistics*> parts[] = {
      {&parts_[0], &statistics->joint},
      {&parts_[1], &statistics->held_back},
      {&parts_[kThroughAll], &statistics->through_all}};
  for (const auto& [part, to] : parts) {
    to->n_tokens = part->n_tokens[0];
    if (to->n_tokens == 0) continue;
    KindSums centred = {means.WithSettledMeans(part->k.rows), part->k.fisher};
    KVL_RETURN_IF_ERROR(FinishMoments(to->n_tokens, &centred, &to->k_centred));
    part->k.rows = means.WithoutMeans(part->k.rows);
    KVL_RETURN_IF_ERROR(FinishMoments(to->n_tokens, &part->k, &to->k));
    part->k_block.rows = means.WithSettledMeans(part->k_block.rows);
    KVL_RETURN_IF_ERROR(FinishMoments(to->n_tokens, &part->k_block, &to->k_block));
    KVL_RETURN_IF_ERROR(FinishMoments(to->n_tokens, &part->k_pre, &to->k_pre));
    KVL_RETURN_IF_ERROR(FinishMoments(to->n_tokens, &part->v, &to->v));
  }
  return OkStatus();
}

}  // namespace kvlathe
