// One layer of the forward: projections, attention, feed-forward; and the logits. Rows are made and
// stored in model_rows.cc and sealed in model_seal.cc.
#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "model/model.h"

namespace kvlathe {

Status Model::RunLayer(int layer_idx, std::span<const SequenceStep> steps, QkvObserver* observer) {
  Normalise(hidden_.as<float>(), weights_->layer(layer_idx).attn_norm, n_tokens_);
  ProjectQkv(layer_idx);
  if (config().qk_norm) NormaliseQueriesAndKeys(layer_idx);
  if (config().dmc.has_value()) TakeDecisions();
  if (observer != nullptr) Observe(layer_idx, observer);
  if (layout_.MergesEntries()) MergeRows(layer_idx, steps);
  if (!needs_no_turn_) RotateQueriesAndKeys(layer_idx);
  if (layout_.GathersQueries()) GatherQueries(layer_idx, steps);
  AppendRows(layer_idx, steps);
  KVL_RETURN_IF_ERROR(Attend(layer_idx, steps));
  if (heads_per_latent_ > 1) ReadOutputs(layer_idx);
  Prune(layer_idx, steps);
  CutKeys(layer_idx, steps);
  SealStep(layer_idx, steps);
  // A parallel MLP reads the stream as it was before attention added to it.
  const ModelConfig& c = config();
  const LayerWeights& layer = weights_->layer(layer_idx);
  if (c.parallel_block && !c.shared_norm) Normalise(hidden_.as<float>(), layer.ffn_norm, n_tokens_);
  const ValueProjection& projection = *projections_[layer_idx];
  const Buffer& outputs = heads_per_latent_ > 1 ? outputs_ : attended_;
  AddToStream(projection.o, projection.o_bias, outputs.data(), layer.attn_out_norm);
  if (!c.parallel_block) Normalise(hidden_.as<float>(), layer.ffn_norm, n_tokens_);
  RunMlp(layer_idx);
  return OkStatus();
}

void Model::Normalise(const float* from, const NormWeights& norm, int64_t n_rows) {
  const ScopedTimer timer(&profile_.other);
  const int64_t hidden = config().hidden_dim, row_bytes = hidden * SizeOf(row_type_);
  ForRowShares(n_rows, [&](Range rows) {
    const float* x = from + rows.begin * hidden;
    std::byte* out = normed_.data() + rows.begin * row_bytes;
    const int64_t n = rows.end - rows.begin;
    const float eps = config().norm_eps;
    if (config().norm == NormKind::kRms) {
      elementwise_->rms_norm(x, norm.weight.data(), eps, n, hidden, row_type_, out);
    } else {
      elementwise_->layer_norm(x, norm.weight.data(), norm.bias.data(), eps, n, hidden, row_type_,
                               out);
    }
  });
}

void Model::Multiply(const PackedMatrix& w, const std::vector<float>& bias, int64_t n_rows,
                     const void* x, void* y, DType y_type, bool accumulate) {
  const ScopedTimer timer(&profile_.linear);
  LinearParams params;
  params.w = &w;
  params.n_rows = n_rows;
  params.x = x;
  params.x_stride = w.n_in();
  params.bias = bias.empty() ? nullptr : bias.data();
  params.y = y;
  params.y_stride = w.n_out();
  params.y_type = y_type;
  params.accumulate = accumulate;
  linear_.Run(params);
}

void Model::AddToStream(const PackedMatrix& w, const std::vector<float>& bias, const void* x,
                        const NormWeights& norm) {
  if (!config().output_norms) {
    Multiply(w, bias, n_tokens_, x, hidden_.data(), DType::kF32, /*accumulate=*/true);
    return;
  }
  Multiply(w, bias, n_tokens_, x, added_.data(), DType::kF32, /*accumulate=*/false);
  const ScopedTimer timer(&profile_.other);
  const int64_t hidden = config().hidden_dim;
  ForRowShares(n_tokens_, [&](Range rows) {
    float* const added = added_.as<float>() + rows.begin * hidden;
    float* const stream = hidden_.as<float>() + rows.begin * hidden;
    const int64_t n = rows.end - rows.begin;
    elementwise_->rms_norm(added, norm.weight.data(), config().norm_eps, n, hidden, DType::kF32,
                           added);
    for (int64_t i = 0; i < n * hidden; ++i) stream[i] += added[i];
  });
}

void Model::NormaliseQueriesAndKeys(int layer_idx) {
  const ScopedTimer timer(&profile_.other);
  const ModelConfig& c = config();
  const LayerWeights& layer = weights_->layer(layer_idx);
  const int64_t d = c.head_dim;
  ForRowShares(n_tokens_, [&](Range tokens) {
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
      float* const q = qk_.as<float>() + t * (c.n_heads + c.n_kv_heads) * d;
      float* const k = q + c.n_heads * d;
      elementwise_->rms_norm(q, layer.q_norm.weight.data(), c.norm_eps, c.n_heads, d, DType::kF32,
                             q);
      elementwise_->rms_norm(k, layer.k_norm.weight.data(), c.norm_eps, c.n_kv_heads, d,
                             DType::kF32, k);
    }
  });
}

void Model::ProjectQkv(int layer_idx) {
  const LayerWeights& layer = weights_->layer(layer_idx);
  const ValueProjection& projection = *projections_[layer_idx];
  const bool is_folded = !folded_qk_.empty();
  Multiply(is_folded ? folded_qk_[layer_idx].qk : layer.qk,
           is_folded ? folded_qk_[layer_idx].bias : layer.qk_bias, n_tokens_, normed_.data(),
           qk_.data(), needs_no_turn_ ? row_type_ : DType::kF32, false);
  Multiply(projection.v, projection.v_bias, n_tokens_, normed_.data(), v_.data(), row_type_, false);
}

LatentHead Model::LatentsOf(int layer_idx, int kv_head_idx, const SequenceCache& cache,
                            const KeyRotation& rotation) const {
  LatentHead head = {.map = bases_[layer_idx].latents[kv_head_idx].view(), .rotation = rotation};
  if (layout_.DropsEntries() && rotation.half > 0) {
    head.positions = cache.entries(layer_idx, kv_head_idx);
    head.cos = ropes_.of(layer_idx).cos(0);
    head.sin = ropes_.of(layer_idx).sin(0);
  }
  return head;
}

PackedHead Model::PackedHeadOf(const CacheLayout& layout, int layer_idx, int kv_head_idx,
                               std::span<const PackedRun> runs, const KeyRotation& rotation) const {
  const int n_heads = layout.n_heads_per_run(), first = kv_head_idx / n_heads * n_heads;
  int layer_rank_v = 0;
  for (int g = first; g < first + n_heads; ++g) layer_rank_v += layout.shape(layer_idx, g).rank_v;
  return {.format = layout.seal->format,
          .kv_head_idx = kv_head_idx - first,
          .n_kv_heads = n_heads,
          .layer_rank_v = layer_rank_v,
          .runs = runs.data(),
          .n_runs = static_cast<int>(runs.size()),
          .codebooks = CodebooksOf(layer_idx),
          .rotation = rotation};
}

Status Model::Attend(int layer_idx, std::span<const SequenceStep> steps) {
  const ScopedTimer timer(&profile_.attention);
  const ModelConfig& c = config();
  const LayerOffsets& offsets = offsets_[layer_idx];
  const int group = c.gqa_group(), d = c.head_dim, n_sink = layout_.n_sink;
  const int64_t element = SizeOf(row_type_);
  int64_t n_blocks = 0;
  for (const SequenceStep& step : steps) {
    n_blocks = std::max(n_blocks, BlocksFor(layout_, step.cache->n_tokens()));
  }
  const KeyRotation rotation = RotationOf(layer_idx, n_blocks);
  jobs_.clear();
  noises_.clear();
  noises_.reserve(steps.size() * c.n_kv_heads);  // jobs point to them
  slices_.clear();
  slices_.reserve(steps.size() * c.n_kv_heads);  // and to these
  int64_t token_idx = 0;
  for (const SequenceStep& step : steps) {
    const int n_new = static_cast<int>(step.token_ids.size());
    const int n_total = step.cache->n_tokens(), first = n_total - n_new;
    // Entries are counted from the first block that the step's first token sees; runs of packed
    // blocks are numbered from the first of all.
    const int first_block = layout_.seal.has_value()
                                ? 0
                                : static_cast<int>(BlocksOutOfWindow(layout_, layer_idx, first));
    for (int g = 0; g < c.n_kv_heads; ++g) {
      const int n_entries = step.cache->n_entries(layer_idx, g) - first_block * kBlockSize;
      HeadJob job;
      job.shape = step.cache->shape(layer_idx, g);
      job.head_dim = d;
      job.gqa_group = group;
      job.n_tokens = n_new;
      const HeadRows q_whole = WholeQueryRows(layer_idx, g);
      const HeadRows q = step.cache->has_whole_keys(layer_idx) ? q_whole : QueryRows(layer_idx, g);
      job.q = q.first + token_idx * group * q.stride * element;
      job.q_stride = q.stride;
      job.q_full = q_whole.first + token_idx * group * q_whole.stride * element;
      job.q_full_stride = q_whole.stride;
      if (layout_.has_latent_keys) {
        job.latents = LatentsOf(layer_idx, g, *step.cache, rotation.From(first_block));
      }
      const std::span<std::byte* const> cache_blocks = step.cache->blocks(layer_idx, g);
      job.blocks = cache_blocks.data() + first_block;
      if (layout_.seal.has_value()) {
        const std::span<const PackedRun> runs = step.cache->runs(layer_idx, g);
        job.packed = PackedHeadOf(step.cache->layout(), layer_idx, g, runs, rotation);
        if (job.shape.has_coded_rows) {
          const int n_sealed = runs.empty() ? 0 : runs.back().first_block + runs.back().n_blocks;
          job.packed.open = {.first_block = n_sealed,
                             .n_blocks = static_cast<int>(cache_blocks.size()) - n_sealed,
                             .is_open = true};
        }
      }
      job.n_entries = std::max(0, n_entries);
      job.first_visible = n_entries - n_new + 1;
      if (layout_.DropsEntries()) ScoreEntries(layer_idx, g, step, &job);
      if (layout_.MergesEntries()) SeeMergedRows(layer_idx, g, token_idx, &job);
      if (layout_.window(layer_idx) > 0) job.window = layout_.window(layer_idx);
      job.n_sink = std::min(n_sink, n_total);
      if (n_sink > 0) {
        job.sink_k = step.cache->sink_k(layer_idx, g);
        job.sink_v = step.cache->sink_v(layer_idx, g);
      }
      job.sink_first_visible = first + 1;
      if (!layout_.SparesSinks()) job.sink_window = job.window;
      const int64_t outputs_per_value = group * heads_per_latent_;
      job.out_stride = offsets.rank_v.back() * outputs_per_value;
      job.out_head_stride = OutputWidth(layer_idx, g);
      job.out = attended_.data() +
                (token_idx * job.out_stride + offsets.rank_v[g] * outputs_per_value) * element;
      jobs_.push_back(job);
      if (heads_per_latent_ > 1) ShareLatents(g);
    }
    token_idx += n_new;
  }
  return attention_.Run(jobs_, 1.0f / std::sqrt(static_cast<float>(d)), schedule_);
}

void Model::ShareLatents(int kv_head_idx) {
  const HeadJob& newest = jobs_.back();
  slices_.push_back({newest.blocks, newest.packed, newest.sink_v});
  const int n = heads_per_latent_;
  if ((kv_head_idx + 1) % n != 0) return;
  for (auto job = jobs_.end() - n; job != jobs_.end(); ++job) {
    job->latents.slices = std::span(slices_).last(n);
  }
}

void Model::ReadOutputs(int layer_idx) {
  const ScopedTimer timer(&profile_.rotate);
  const ModelConfig& c = config();
  const int64_t element = SizeOf(row_type_), group = c.gqa_group();
  const std::vector<int64_t>& offsets = offsets_[layer_idx].rank_v;
  const bool by_head = n_tokens_ < 16 * pool_->n_workers();
  pool_->Run([&](int worker_id) {
    const auto share = [&](int64_t n, int64_t step) {
      return ShareOf(n, step, worker_id, pool_->n_workers());
    };
    const Range tokens = by_head ? Range{0, n_tokens_} : share(n_tokens_, 16);
    const Range heads = by_head ? share(c.n_heads, 1) : Range{0, c.n_heads};
    LinearParams params;
    params.n_rows = tokens.end - tokens.begin;
    params.x_stride = offsets.back() * group * heads_per_latent_;
    params.y_stride = int64_t{c.n_heads} * c.head_dim;
    params.y_type = row_type_;
    if (params.n_rows == 0) return;
    for (int64_t h = heads.begin; h < heads.end; ++h) {
      const auto g = static_cast<int>(h / group);
      const int64_t column =
          offsets[g] * group * heads_per_latent_ + h % group * OutputWidth(layer_idx, g);
      params.w = &bases_[layer_idx].output[g];
      params.x = attended_.data() + (tokens.begin * params.x_stride + column) * element;
      params.y = outputs_.data() + (tokens.begin * params.y_stride + h * c.head_dim) * element;
      linear_.RunOnWorker(params, worker_id);
    }
  });
}

// Reads normed_.
void Model::RunMlp(int layer_idx) {
  const LayerWeights& layer = weights_->layer(layer_idx);
  const int64_t ffn = config().ffn_dim, n_in = config().mlp_rows();
  Multiply(layer.mlp_in, layer.mlp_in_bias, n_tokens_, normed_.data(), mlp_in_.data(), DType::kF32,
           false);
  {
    const ScopedTimer timer(&profile_.other);
    ForRowShares(n_tokens_, [&](Range rows) {
      const float* x = mlp_in_.as<float>() + rows.begin * n_in;
      std::byte* out = gated_.data() + rows.begin * ffn * SizeOf(row_type_);
      const int64_t n = rows.end - rows.begin;
      switch (config().mlp) {
        case MlpKind::kSwiglu:
          return elementwise_->swiglu(x, n, ffn, row_type_, out);
        case MlpKind::kGeglu:
          return elementwise_->geglu_tanh(x, n, ffn, row_type_, out);
        case MlpKind::kGelu:
          return elementwise_->gelu(x, n * ffn, row_type_, out);
        case MlpKind::kGeluTanh:
          return elementwise_->gelu_tanh(x, n * ffn, row_type_, out);
      }
    });
  }
  AddToStream(layer.down, layer.down_bias, gated_.data(), layer.ffn_out_norm);
}

void Model::Observe(int layer_idx, QkvObserver* observer) {
  const ModelConfig& c = config();
  const int d = c.head_dim, n_heads = c.n_heads, n_kv = c.n_kv_heads;
  const int64_t stride = int64_t{n_heads + n_kv} * d, v_width = offsets_[layer_idx].rank_v.back();
  std::vector<int> positions(n_tokens_);
  std::vector<float> q_pre(n_tokens_ * n_heads * d), q_post(q_pre.size());
  std::vector<float> k_pre(n_tokens_ * n_kv * d), k_post(k_pre.size()), v(n_tokens_ * v_width);
  ConvertToFloat(row_type_, v_.data(), n_tokens_ * v_width, v.data());
  const float* qk = qk_.as<float>();
  std::vector<float> widened;
  if (needs_no_turn_) {
    widened.resize(n_tokens_ * stride);
    ConvertToFloat(row_type_, qk_.data(), std::ssize(widened), widened.data());
    qk = widened.data();
  }
  for (int64_t t = 0; t < n_tokens_; ++t) {
    positions[t] = tokens_[t].position;
    const float* row = qk + t * stride;
    std::copy_n(row, n_heads * d, &q_pre[t * n_heads * d]);
    std::copy_n(row + n_heads * d, n_kv * d, &k_pre[t * n_kv * d]);
    for (int h = 0; h < n_heads + n_kv; ++h) {
      float* to =
          h < n_heads ? &q_post[(t * n_heads + h) * d] : &k_post[(t * n_kv + h - n_heads) * d];
      RotateRow(layer_idx, row + h * d, positions[t], DType::kF32, to);
    }
  }
  observer->Observe({layer_idx, static_cast<int>(n_tokens_), positions.data(), q_pre.data(),
                     q_post.data(), k_pre.data(), k_post.data(), v.data()});
}

void Model::ComputeLogits(std::span<const SequenceStep> steps) {
  const int64_t hidden = config().hidden_dim;
  float* rows = hidden_.as<float>();  // the wanted rows move to the front; the rest is done with
  int64_t token_idx = 0, n_rows = 0;
  for (const SequenceStep& step : steps) {
    const int64_t n_new = step.token_ids.size();
    const int64_t n_wanted = step.logits == SequenceStep::Logits::kAll    ? n_new
                             : step.logits == SequenceStep::Logits::kLast ? 1
                                                                          : 0;
    std::memmove(rows + n_rows * hidden, rows + (token_idx + n_new - n_wanted) * hidden,
                 n_wanted * hidden * sizeof(float));
    token_idx += n_new;
    n_rows += n_wanted;
  }
  Normalise(rows, weights_->final_norm(), n_rows);
  Multiply(weights_->lm_head(), {}, n_rows, normed_.data(), logits_.data(), DType::kF32, false);
}

}  // namespace kvlathe
