#include "calibration/attention_moments.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "format/rows/block_layout.h"
#include "kernels/cpu/linear/dense_product.h"

namespace kvlathe {
namespace {

constexpr int kQueryTile = 128;
constexpr int64_t kKeySlice = 256;
// Keys drawn for each query to turn it back by: their positions are strata of its weights, so few
// are enough.
constexpr int kDrawnKeys = 4;

// A query as a key of this position sees it before RoPE: R^T q, where the key turns by R.
void TurnBack(const float* query, const RopeTable& rope, int position, int dim, float* to) {
  const int half = rope.rope_dim() / 2;
  const float *cos = rope.cos(position), *sin = rope.sin(position);
  for (int i = 0; i < half; ++i) {
    const float a = query[i], b = query[i + half];
    to[i] = a * cos[i] + b * sin[i];
    to[i + half] = b * cos[i] - a * sin[i];
  }
  std::copy(query + 2 * half, query + dim, to + 2 * half);
}

// Rows of one KV head side by side.
void GatherRows(const std::vector<float>& rows, Range tokens, int64_t n_heads, int64_t head_idx,
                int64_t dim, std::vector<float>* to) {
  to->resize((tokens.end - tokens.begin) * dim);
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    std::copy_n(&rows[(t * n_heads + head_idx) * dim], dim, &(*to)[(t - tokens.begin) * dim]);
  }
}

// A block's rows lose their mean.
void CentreRows(int64_t n_rows, int64_t dim, float* rows) {
  for (int64_t i = 0; i < dim; ++i) {
    float mean = 0;
    for (int64_t t = 0; t < n_rows; ++t) mean += rows[t * dim + i];
    mean /= static_cast<float>(n_rows);
    for (int64_t t = 0; t < n_rows; ++t) rows[t * dim + i] -= mean;
  }
}

// Adds x to `to` and up.
float AddAndSum(const float* x, int n, float* to) {
  constexpr int kLanes = 16;  // at a time, so that the compiler takes vectors
  float sums[kLanes] = {}, sum = 0;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) sums[j] += x[i + j];
    for (int j = 0; j < kLanes; ++j) to[i + j] += x[i + j];
  }
  for (; i < n; ++i) sum += x[i], to[i] += x[i];
  for (const float part : sums) sum += part;
  return sum;
}

}  // namespace

void AttentionMoments::Sums::Add(const Sums& other) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += other.sum[i];
  for (size_t i = 0; i < gram.size(); ++i) gram[i] += other.gram[i];
}

void AttentionMoments::Sums::Clear() {
  std::ranges::fill(sum, 0.0);
  std::ranges::fill(gram, 0.0);
}

AttentionMoments::AttentionMoments(const StatisticsShape& shape, const Options& options,
                                   ThreadPool* pool, Isa isa)
    : shape_(shape),
      options_(options),
      ropes_(options.attention, options.rope_dim),
      pool_(pool),
      kernels_(&GetElementwiseKernels(isa)),
      rows_(shape.n_layers),
      sums_(int64_t{shape.n_layers} * shape.n_kv_heads, HeadSums(shape.head_dim)),
      query_heads_(shape.n_heads, QueryHead(shape.head_dim)),
      workers_(pool->n_workers(), Worker(isa)) {}

void AttentionMoments::Observe(const QkvView& view) {
  LayerRows& rows = rows_[view.layer_idx];
  if (view.positions[0] == 0) {
    EndSequence(view.layer_idx);
    rows.shift = shifts_.empty() ? nullptr : &shifts_[view.layer_idx];
  }
  const int64_t n_values = int64_t{view.n_tokens} * shape_.n_kv_heads * shape_.head_dim;
  rows.k.insert(rows.k.end(), view.k_post, view.k_post + n_values);
  rows.k_pre.insert(rows.k_pre.end(), view.k_pre, view.k_pre + n_values);
  rows.v.insert(rows.v.end(), view.v, view.v + n_values);
  if (view.is_entry != nullptr) {
    KVL_CHECK(rows.is_entry.empty() && view.positions[0] == 0);
    rows.is_entry.assign(view.is_entry, view.is_entry + int64_t{view.n_tokens} * shape_.n_kv_heads);
  }
  const int64_t of_token = int64_t{shape_.n_heads} * shape_.head_dim;
  for (int t = 0; t < view.n_tokens; ++t) {
    if (!Counts(view.positions[t])) continue;
    const float* const query = view.q_post + t * of_token;
    rows.queries.insert(rows.queries.end(), query, query + of_token);
  }
}

// Of every query_stride positions behind the sinks one, the same in all layers and sequences.
bool AttentionMoments::Counts(int position) const {
  const int behind_sinks = position - kCalibrationSinks, stride = options_.query_stride;
  if (behind_sinks < 0) return false;
  return behind_sinks % stride == static_cast<int>(Random(0, behind_sinks / stride).Below(stride));
}

std::vector<int> AttentionMoments::EntriesOf(int layer_idx, int kv_head_idx) const {
  const std::vector<uint8_t>& is_entry = rows_[layer_idx].is_entry;
  const int64_t n_tokens = std::ssize(is_entry) / shape_.n_kv_heads;
  std::vector<int> entries;
  for (int64_t t = kCalibrationSinks; t < n_tokens; ++t) {
    if (is_entry[kv_head_idx * n_tokens + t] != 0) entries.push_back(static_cast<int>(t));
  }
  return entries;
}

void AttentionMoments::HideMerged(int layer_idx, int kv_head_idx, int position,
                                  float* scores) const {
  constexpr float kUnseen = -1e30f;  // of which softmax leaves nothing
  const std::vector<uint8_t>& is_entry = rows_[layer_idx].is_entry;
  if (is_entry.empty()) return;
  const int64_t first = kv_head_idx * (std::ssize(is_entry) / shape_.n_kv_heads);
  for (int t = 0; t < position; ++t) {
    if (is_entry[first + t] == 0) scores[t] = kUnseen;
  }
}

void AttentionMoments::EndSequence(int layer_idx) {
  LayerRows& rows = rows_[layer_idx];
  if (rows.k.empty()) return;
  const auto n_tokens =
      static_cast<int>(std::ssize(rows.k) / (int64_t{shape_.n_kv_heads} * shape_.head_dim));
  sampled_.clear();
  for (int position = 0; position < n_tokens; ++position) {
    if (Counts(position)) sampled_.push_back(position);
  }
  if (layer_idx == 0) n_queries_ += std::ssize(sampled_);
  ropes_.Extend(n_tokens);
  entries_.clear();
  for (int g = 0; !rows.is_entry.empty() && g < shape_.n_kv_heads; ++g) {
    entries_.push_back(EntriesOf(layer_idx, g));
  }
  std::atomic<int> next_head{0}, next_keys{0};
  pool_->Run([&](int worker_id) {
    for (int h = next_head++; h < shape_.n_heads; h = next_head++) {
      AddQueryHead(layer_idx, h, &workers_[worker_id]);
    }
  });
  pool_->Run([&](int worker_id) {
    const Range heads = ShareOf(shape_.n_kv_heads, 1, worker_id, pool_->n_workers());
    for (int64_t g = heads.begin; g < heads.end; ++g) AddGroup(layer_idx, static_cast<int>(g));
  });
  pool_->Run([&](int worker_id) {  // keys of a head after RoPE, or before it
    for (int i = next_keys++; i < 2 * shape_.n_kv_heads; i = next_keys++) {
      const int g = i / 2;
      // AddGroup leaves the weights of the group with its first query head.
      const KeyWeights& weights = query_heads_[g * shape_.gqa_group()].weights;
      HeadSums& sums = sums_[int64_t{layer_idx} * shape_.n_kv_heads + g];
      Worker* const worker = &workers_[worker_id];
      if (i % 2 == 0) {
        AddKeys({rows.k, rows.shift}, g, weights, &sums.k, &sums.blocks, worker);
      } else {
        AddKeys({rows.k_pre, nullptr}, g, weights, &sums.k_pre, &sums.pre_blocks, worker);
      }
    }
  });
  // Their memory stays for the next sequence.
  for (auto* values : {&rows.k, &rows.k_pre, &rows.v, &rows.queries}) values->clear();
  rows.is_entry.clear();
}

void AttentionMoments::AddQueryHead(int layer_idx, int head_idx, Worker* worker) {
  const int d = shape_.head_dim, n_sampled = static_cast<int>(sampled_.size());
  const LayerRows& rows = rows_[layer_idx];
  const int64_t n_tokens = std::ssize(rows.k) / (int64_t{shape_.n_kv_heads} * d);
  QueryHead* const to = &query_heads_[head_idx];
  for (Sums* sums : {&to->q, &to->v, &to->q_pre}) sums->Clear();
  to->weights.of_keys.assign(n_tokens, 0.0f);
  const int kv_head_idx = head_idx / shape_.gqa_group();
  const int64_t n_behind = entries_.empty() ? std::max<int64_t>(0, n_tokens - kCalibrationSinks)
                                            : std::ssize(entries_[kv_head_idx]);
  to->weights.of_blocks.assign(n_behind / kBlockSize, 0.0);
  for (int first = 0; first < n_sampled; first += kQueryTile) {
    const int n = std::min(kQueryTile, n_sampled - first);
    FindWeights(layer_idx, head_idx, first, n, worker);
    worker->adder.Add(worker->outputs.data(), n, d, to->v.to());
    worker->query_weights.clear();
    worker->turned.clear();
    worker->turned_weights.clear();
    const uint64_t of_all = static_cast<uint64_t>(layer_idx) * shape_.n_heads + head_idx;
    const int64_t n_keys = sampled_[first + n - 1] + 1;
    for (int i = 0; i < n; ++i) {
      const float* const row = &worker->scores[i * n_keys];
      const int position = sampled_[first + i];
      WeighKeys(kv_head_idx, row, position, &to->weights, worker);
      TurnQueryBack(&worker->queries[int64_t{i} * d], row, position, of_all, worker);
    }
    if (rows.shift != nullptr) rows.shift->Apply(n, d, worker->queries.data());
    worker->adder.AddWeighted(worker->queries.data(), worker->query_weights.data(), n, d,
                              to->q.to());
    worker->adder.AddWeighted(worker->turned.data(), worker->turned_weights.data(), n * kDrawnKeys,
                              d, to->q_pre.to());
  }
}

// Queries, what they give to each key up to the position of the last, and what attention puts out.
void AttentionMoments::FindWeights(int layer_idx, int head_idx, int first, int n,
                                   Worker* worker) const {
  const LayerRows& rows = rows_[layer_idx];
  const int window = options_.attention.of(layer_idx).window;
  const int d = shape_.head_dim, kv_head_idx = head_idx / shape_.gqa_group();
  const int n_keys = sampled_[first + n - 1] + 1;
  const int64_t kv_stride = int64_t{shape_.n_kv_heads} * d;
  GatherRows(rows.queries, {first, first + n}, shape_.n_heads, head_idx, d, &worker->queries);
  worker->scores.resize(int64_t{n} * n_keys);
  Multiply({.n_rows = n,
            .n_columns = n_keys,
            .n_inner = d,
            .a = worker->queries.data(),
            .a_stride = d,
            .b = rows.k.data() + int64_t{kv_head_idx} * d,
            .b_stride = kv_stride,
            .is_b_transposed = true,
            .c = worker->scores.data(),
            .c_stride = n_keys});
  for (int i = 0; i < n; ++i) {
    const int end = sampled_[first + i] + 1;
    const int begin = window > 0 ? std::max(0, end - window) : 0;
    float* const row = &worker->scores[int64_t{i} * n_keys];
    HideMerged(layer_idx, kv_head_idx, end - 1, row);
    std::fill(row, row + begin, 0.0f);
    kernels_->softmax(row + begin, end - begin, 1 / std::sqrt(static_cast<float>(d)));
    std::fill(row + end, row + n_keys, 0.0f);
  }
  worker->outputs.resize(int64_t{n} * d);
  Multiply({.n_rows = n,
            .n_columns = d,
            .n_inner = n_keys,
            .a = worker->scores.data(),
            .a_stride = n_keys,
            .b = rows.v.data() + int64_t{kv_head_idx} * d,
            .b_stride = kv_stride,
            .c = worker->outputs.data(),
            .c_stride = d});
}

// What a query gives to the keys behind the sinks, by key and by block; all together is its own
// weight. Leaves what it gives to each stretch of a block's length in block_sums.
void AttentionMoments::WeighKeys(int kv_head_idx, const float* weights, int position,
                                 KeyWeights* to, Worker* worker) const {
  const bool merges = !entries_.empty();
  // Behind which the query is.
  const int n_whole = merges ? 0 : (position - kCalibrationSinks) / kBlockSize;
  worker->block_sums.clear();
  float total = 0;
  for (int begin = kCalibrationSinks; begin <= position; begin += kBlockSize) {
    const int end = std::min(begin + kBlockSize, position + 1);
    const float sum = AddAndSum(weights + begin, end - begin, &to->of_keys[begin]);
    const int block = static_cast<int>(worker->block_sums.size());
    if (block < n_whole) to->of_blocks[block] += sum;
    worker->block_sums.push_back(sum);
    total += sum;
  }
  worker->query_weights.push_back(total);
  if (!merges) return;
  const std::vector<int>& entries = entries_[kv_head_idx];
  for (size_t end = kBlockSize; end <= entries.size() && entries[end - 1] < position;
       end += kBlockSize) {
    double sum = 0;
    for (size_t e = end - kBlockSize; e < end; ++e) sum += weights[entries[e]];
    to->of_blocks[end / kBlockSize - 1] += sum;
  }
}

// Turns a query back by kDrawnKeys positions in the place of all that it looks at, drawn from as
// many strata of its weights.
void AttentionMoments::TurnQueryBack(const float* query, const float* weights, int position,
                                     uint64_t head_idx, Worker* worker) const {
  const RopeTable& rope = ropes_.of(static_cast<int>(head_idx) / shape_.n_heads);
  const float total = worker->query_weights.back();
  const double start = Random(head_idx, position).Uniform();
  const std::vector<float>& block_sums = worker->block_sums;
  size_t block = 0;
  double before = 0;  // what lies before the block
  for (int i = 0; i < kDrawnKeys; ++i) {
    const double target = (i + start) / kDrawnKeys * total;
    while (block + 1 < block_sums.size() && before + block_sums[block] <= target) {
      before += block_sums[block++];
    }
    int at = kCalibrationSinks + static_cast<int>(block) * kBlockSize;
    const int last = std::min(at + kBlockSize - 1, position);
    double sum = before;
    while (at < last && sum + weights[at] <= target) sum += weights[at++];
    const size_t row = worker->turned.size();
    worker->turned.resize(row + shape_.head_dim);
    TurnBack(query, rope, at, shape_.head_dim, &worker->turned[row]);
    worker->turned_weights.push_back(total / kDrawnKeys);
  }
}

void AttentionMoments::AddGroup(int layer_idx, int kv_head_idx) {
  const int group = shape_.gqa_group();
  HeadSums& sums = sums_[int64_t{layer_idx} * shape_.n_kv_heads + kv_head_idx];
  KeyWeights& weights = query_heads_[kv_head_idx * group].weights;
  for (int i = 0; i < group; ++i) {
    const QueryHead& head = query_heads_[kv_head_idx * group + i];
    sums.q.Add(head.q);
    sums.v.Add(head.v);
    sums.q_pre.Add(head.q_pre);
    if (i == 0) continue;
    const KeyWeights& of_head = head.weights;
    for (size_t j = 0; j < weights.of_keys.size(); ++j) weights.of_keys[j] += of_head.of_keys[j];
    for (size_t b = 0; b < weights.of_blocks.size(); ++b) {
      weights.of_blocks[b] += of_head.of_blocks[b];
    }
  }
  const auto sum = [](const auto& x) { return std::accumulate(x.begin(), x.end(), 0.0); };
  sums.k_weight += sum(weights.of_keys);
  sums.block_weight += sum(weights.of_blocks);
}

void AttentionMoments::GatherKeys(const KeyRows& keys, int kv_head_idx, Range tokens,
                                  Worker* worker) const {
  GatherRows(keys.rows, tokens, shape_.n_kv_heads, kv_head_idx, shape_.head_dim, &worker->keys);
  if (keys.shift == nullptr) return;
  keys.shift->Apply(tokens.end - tokens.begin, shape_.head_dim, worker->keys.data());
}

void AttentionMoments::GatherBlock(const KeyRows& keys, int kv_head_idx, int64_t block_idx,
                                   Worker* worker) const {
  if (entries_.empty()) {
    const int64_t begin = kCalibrationSinks + block_idx * kBlockSize;
    return GatherKeys(keys, kv_head_idx, {begin, begin + kBlockSize}, worker);
  }
  const int64_t d = shape_.head_dim;
  worker->keys.resize(kBlockSize * d);
  for (int64_t e = 0; e < kBlockSize; ++e) {
    const int64_t t = entries_[kv_head_idx][block_idx * kBlockSize + e];
    std::copy_n(&keys.rows[(t * shape_.n_kv_heads + kv_head_idx) * d], d, &worker->keys[e * d]);
  }
  if (keys.shift != nullptr) keys.shift->Apply(kBlockSize, d, worker->keys.data());
}

void AttentionMoments::AddKeys(const KeyRows& keys, int kv_head_idx, const KeyWeights& weights,
                               Sums* to, Sums* in_blocks, Worker* worker) const {
  const int64_t d = shape_.head_dim;
  const int64_t n_keys = std::ssize(weights.of_keys);
  for (int64_t begin = 0; begin < n_keys; begin += kKeySlice) {
    const Range slice = {begin, std::min(begin + kKeySlice, n_keys)};
    GatherKeys(keys, kv_head_idx, slice, worker);
    worker->adder.AddWeighted(worker->keys.data(), &weights.of_keys[begin], slice.end - begin, d,
                              to->to());
  }
  for (int64_t b = 0; b < std::ssize(weights.of_blocks); ++b) {
    if (weights.of_blocks[b] == 0) continue;
    GatherBlock(keys, kv_head_idx, b, worker);
    CentreRows(kBlockSize, d, worker->keys.data());
    worker->adder.Add(worker->keys.data(), kBlockSize, d, in_blocks->to(),
                      weights.of_blocks[b] / kBlockSize);
  }
}

void AttentionMoments::Finish(CalibrationStatistics* statistics) {
  for (int l = 0; l < shape_.n_layers; ++l) EndSequence(l);
  const int64_t d = shape_.head_dim;
  const auto put_gram = [d](const Sums& sums, double total, int64_t head_idx,
                            std::vector<float>* to) {
    const double scale = total > 0 ? 1 / total : 0;
    float* const gram = to->data() + head_idx * d * d;
    for (int64_t i = 0; i < d; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        gram[i * d + j] = gram[j * d + i] = static_cast<float>(sums.gram[i * d + j] * scale);
      }
    }
  };
  const auto put = [&](const Sums& sums, double total, int64_t head_idx, HeadMoments* to) {
    const double scale = total > 0 ? 1 / total : 0;
    for (int64_t i = 0; i < d; ++i) {
      to->mean[head_idx * d + i] = static_cast<float>(sums.sum[i] * scale);
    }
    put_gram(sums, total, head_idx, &to->gram);
  };
  const auto n_queries = static_cast<double>(n_queries_);
  for (int64_t h = 0; h < std::ssize(sums_); ++h) {
    const HeadSums& sums = sums_[h];
    put(sums.q, n_queries, h, &statistics->attended_q);
    put(sums.k, sums.k_weight, h, &statistics->attended_k);
    put(sums.q_pre, n_queries, h, &statistics->attended_q_pre);
    put(sums.k_pre, sums.k_weight, h, &statistics->attended_k_pre);
    put(sums.v, n_queries * shape_.gqa_group(), h, &statistics->attended_v);
    put_gram(sums.blocks, sums.block_weight, h, &statistics->k_in_blocks);
    put_gram(sums.pre_blocks, sums.block_weight, h, &statistics->k_pre_in_blocks);
  }
}

}  // namespace kvlathe
