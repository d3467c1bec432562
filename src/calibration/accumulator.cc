#include "calibration/accumulator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace kvlathe {
namespace {

constexpr int kSliceTokens = 256;

// Splits the view's tokens where they change between sink and body and every kSliceTokens.
void SplitTokens(const QkvView& view, std::vector<Range>* body, std::vector<Range>* sinks) {
  body->clear();
  sinks->clear();
  for (int64_t begin = 0; begin < view.n_tokens;) {
    const bool is_sink = view.positions[begin] < kCalibrationSinks;
    int64_t end = begin + 1;
    while (end < view.n_tokens && end - begin < kSliceTokens &&
           (view.positions[end] < kCalibrationSinks) == is_sink) {
      ++end;
    }
    (is_sink ? sinks : body)->push_back({begin, end});
    begin = end;
  }
}

int64_t TokensIn(const std::vector<Range>& ranges) {
  int64_t n_tokens = 0;
  for (const Range& range : ranges) n_tokens += range.end - range.begin;
  return n_tokens;
}

}  // namespace

StatisticsAccumulator::StatisticsAccumulator(const StatisticsShape& shape, ThreadPool* pool,
                                             Isa isa, bool across_heads)
    : shape_(shape),
      pool_(pool),
      scratch_(pool->n_workers(), Scratch(isa)),
      n_rows_(shape.n_layers),
      n_sink_rows_(shape.n_layers) {
  // The widest products first.
  for (int k = across_heads ? kKinds - 1 : kQueriesBeforeRope; k >= 0; --k) {
    const auto kind = static_cast<Kind>(k);
    sums_[kind] = MakeSums(kind);
    for (int h = 0; h < HeadsOf(kind); ++h) tasks_.push_back({kind, h});
  }
  sink_q_post_ = MakeSums(kQueries);
  sink_k_post_ = MakeSums(kKeys);
  sink_v_ = MakeSums(kValues);
  const int64_t n_channels = int64_t{shape.n_layers} * shape.n_kv_heads * shape.head_dim;
  k_post_histograms_ = ChannelHistograms(n_channels);
  k_pre_histograms_ = ChannelHistograms(n_channels);
  v_histograms_ = ChannelHistograms(n_channels);
}

int StatisticsAccumulator::HeadsOf(Kind kind) const {
  if (kind == kKeysAcrossHeads || kind == kValuesAcrossHeads) return 1;
  return kind == kQueriesBeforeRope ? shape_.n_heads : shape_.n_kv_heads;
}

int StatisticsAccumulator::WidthOf(Kind kind) const {
  const bool is_across = kind == kKeysAcrossHeads || kind == kValuesAcrossHeads;
  return is_across ? shape_.n_kv_heads * shape_.head_dim : shape_.head_dim;
}

StatisticsAccumulator::Sums StatisticsAccumulator::MakeSums(Kind kind) const {
  const int64_t n_heads = HeadsOf(kind), width = WidthOf(kind);
  Sums sums;
  sums.width = static_cast<int>(width);
  sums.n_rows.resize(n_heads * shape_.n_layers);
  sums.mean.resize(sums.n_rows.size() * width);
  sums.scatter.resize(sums.mean.size() * width);
  return sums;
}

void StatisticsAccumulator::Observe(const QkvView& view) {
  if (failure_.load() >= 0) return;
  SplitTokens(view, &body_ranges_, &sink_ranges_);
  std::atomic<size_t> next_task{0};
  pool_->Run([&](int worker_id) {
    for (size_t i = next_task++; i < tasks_.size(); i = next_task++) {
      RunTask(tasks_[i], view, &scratch_[worker_id]);
    }
  });
  n_rows_[view.layer_idx] += TokensIn(body_ranges_);
  n_sink_rows_[view.layer_idx] += TokensIn(sink_ranges_);
}

void StatisticsAccumulator::RunTask(const Task& task, const QkvView& view, Scratch* scratch) {
  const int64_t head_idx = int64_t{view.layer_idx} * HeadsOf(task.kind) + task.head_idx;
  for (const Range& tokens : body_ranges_) {
    const int64_t n_rows = GatherRows(task, view, tokens, scratch);
    if (!shifts_.empty() && (task.kind == kQueries || task.kind == kKeys)) {
      shifts_[view.layer_idx].Apply(n_rows, shape_.head_dim, scratch->rows.data());
    }
    if (!AddRows(n_rows, head_idx, &sums_[task.kind], scratch)) {
      return RecordFailure(view.layer_idx, task.kind);
    }
    if (ChannelHistograms* histograms = HistogramsOf(task.kind)) {
      histograms->Add(scratch->rows.data(), n_rows, head_idx * shape_.head_dim, shape_.head_dim);
    }
  }
  Sums* sink_sums = SinkSums(task.kind);
  if (sink_sums == nullptr) return;
  for (const Range& tokens : sink_ranges_) {
    const int64_t n_rows = GatherRows(task, view, tokens, scratch);
    if (!AddRows(n_rows, head_idx, sink_sums, scratch)) {
      return RecordFailure(view.layer_idx, task.kind);
    }
  }
}

int64_t StatisticsAccumulator::GatherRows(const Task& task, const QkvView& view, Range tokens,
                                          Scratch* scratch) const {
  const float* from = nullptr;
  switch (task.kind) {
    case kQueries:
      from = view.q_post;
      break;
    case kKeys:
      from = view.k_post;
      break;
    case kKeysBeforeRope:
    case kKeysAcrossHeads:
      from = view.k_pre;
      break;
    case kValues:
    case kValuesAcrossHeads:
      from = view.v;
      break;
    default:
      from = view.q_pre;
  }
  const bool is_query = task.kind == kQueries || task.kind == kQueriesBeforeRope;
  const uint8_t* const is_entry = is_query || view.is_entry == nullptr
                                      ? nullptr
                                      : view.is_entry + int64_t{task.head_idx} * view.n_tokens;
  KVL_DCHECK(is_entry == nullptr || WidthOf(task.kind) == shape_.head_dim);
  const int64_t heads_per_token = is_query ? shape_.n_heads : shape_.n_kv_heads;
  const int n_heads = task.kind == kQueries ? shape_.gqa_group() : 1;
  // A group's heads lie side by side, so a token's rows are one piece; so are all KV heads of it.
  const int64_t n_values = int64_t{n_heads} * WidthOf(task.kind);
  scratch->rows.resize((tokens.end - tokens.begin) * n_values);
  int64_t n_gathered = 0;
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    if (is_entry != nullptr && is_entry[t] == 0) continue;
    const int64_t row = t * heads_per_token + int64_t{task.head_idx} * n_heads;
    std::memcpy(&scratch->rows[n_gathered++ * n_values], from + row * shape_.head_dim,
                n_values * sizeof(float));
  }
  return n_gathered * n_heads;
}

bool StatisticsAccumulator::AddRows(int64_t n_rows, int64_t head_idx, Sums* sums,
                                    Scratch* scratch) {
  const int64_t d = sums->width;
  const MomentSums to = {&sums->n_rows[head_idx], &sums->mean[head_idx * d],
                         &sums->scatter[head_idx * d * d]};
  return std::isfinite(scratch->adder.Add(scratch->rows.data(), n_rows, d, to));
}

StatisticsAccumulator::Sums* StatisticsAccumulator::SinkSums(Kind kind) {
  switch (kind) {
    case kQueries:
      return &sink_q_post_;
    case kKeys:
      return &sink_k_post_;
    case kValues:
      return &sink_v_;
    default:
      return nullptr;
  }
}

ChannelHistograms* StatisticsAccumulator::HistogramsOf(Kind kind) {
  switch (kind) {
    case kKeys:
      return &k_post_histograms_;
    case kKeysBeforeRope:
      return &k_pre_histograms_;
    case kValues:
      return &v_histograms_;
    default:
      return nullptr;
  }
}

// The first layer and kind that failed, whatever the order of the workers.
void StatisticsAccumulator::RecordFailure(int layer_idx, Kind kind) {
  const int failure = layer_idx * kKinds + kind;
  int seen = failure_.load();
  while ((seen < 0 || failure < seen) && !failure_.compare_exchange_weak(seen, failure)) {
  }
}

Status StatisticsAccumulator::status() const {
  constexpr const char* kNames[kKinds] = {"queries", "keys", "keys",  "values",
                                          "queries", "keys", "values"};
  const int failure = failure_.load();
  if (failure < 0) return OkStatus();
  return Error(StatusCode::kDataLoss, "layer {}: {} are not finite; the weights are damaged",
               failure / kKinds, kNames[failure % kKinds]);
}

void StatisticsAccumulator::AppendTo(SumBytes* bytes) {
  for (Sums& sums : sums_) sums.AppendTo(bytes);
  for (Sums* sums : {&sink_q_post_, &sink_k_post_, &sink_v_}) sums->AppendTo(bytes);
  for (ChannelHistograms* of_channels : {&k_post_histograms_, &k_pre_histograms_, &v_histograms_}) {
    for (std::vector<float>* values :
         {&of_channels->center, &of_channels->bin_width, &of_channels->min, &of_channels->max,
          &of_channels->counts}) {
      AppendSums(values, bytes);
    }
  }
  AppendSums(&n_rows_, bytes);
  AppendSums(&n_sink_rows_, bytes);
}

HeadMoments StatisticsAccumulator::Normalise(Sums* sums, int rows_per_token) {
  const int64_t d = sums->width;
  HeadMoments moments;
  moments.mean.assign(sums->mean.begin(), sums->mean.end());
  moments.covariance.resize(sums->scatter.size());
  for (int64_t h = 0; h < std::ssize(sums->n_rows); ++h) {
    const double scale = sums->n_rows[h] > 0 ? rows_per_token / sums->n_rows[h] : 0.0;
    ToCovariance(&sums->scatter[h * d * d], scale, d, &moments.covariance[h * d * d]);
  }
  *sums = {};  // halves the peak memory of Finish
  return moments;
}

StatusOr<CalibrationStatistics> StatisticsAccumulator::Finish() {
  KVL_RETURN_IF_ERROR(status());
  for (const int64_t n_rows : n_rows_) KVL_CHECK_EQ(n_rows, n_rows_[0]);
  if (n_rows_[0] == 0) {
    return Error(StatusCode::kInvalidArgument,
                 "calibration saw no token after the first {} positions; give it more text",
                 kCalibrationSinks);
  }
  CalibrationStatistics statistics = MakeStatistics(shape_);
  statistics.n_rows = n_rows_[0];
  statistics.n_sink_rows = n_sink_rows_[0];
  const int group = shape_.gqa_group();
  statistics.q_post = Normalise(&sums_[kQueries], group);
  statistics.k_post = Normalise(&sums_[kKeys], 1);
  statistics.k_pre = Normalise(&sums_[kKeysBeforeRope], 1);
  statistics.v = Normalise(&sums_[kValues], 1);
  statistics.q_pre = Normalise(&sums_[kQueriesBeforeRope], 1);
  statistics.k_pre_across_heads = Normalise(&sums_[kKeysAcrossHeads], 1).covariance;
  statistics.v_across_heads = Normalise(&sums_[kValuesAcrossHeads], 1).covariance;
  statistics.sink_q_post = Normalise(&sink_q_post_, group);
  statistics.sink_k_post = Normalise(&sink_k_post_, 1);
  statistics.sink_v = Normalise(&sink_v_, 1);
  statistics.k_post_histograms = std::move(k_post_histograms_);
  statistics.k_pre_histograms = std::move(k_pre_histograms_);
  statistics.v_histograms = std::move(v_histograms_);
  return statistics;
}

}  // namespace kvlathe
