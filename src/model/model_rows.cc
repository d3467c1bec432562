// From a layer's projections to rows in blocks: rotation, the basis, and appending.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "kernels/cpu/attend/coded_rows.h"
#include "model/model.h"

namespace kvlathe {

std::byte* Model::RowsBehind(Buffer* buffer, int64_t width_before, int rows_per_token) {
  return buffer->data() + n_tokens_ * rows_per_token * width_before * SizeOf(row_type_);
}

Model::HeadRows Model::ProductRows(int layer_idx, int head_idx) {
  const int n_kv_heads = layout_.n_kv_heads;  // as many as query heads
  const std::vector<int64_t>& ranks = offsets_[layer_idx].rank_k;
  const bool is_cut = !folded_qk_.empty() && !NeedsWholeRows();
  const auto first_of = [&](int head) { return is_cut ? ranks[head] : head * layout_.head_dim; };
  const int64_t n_queries = first_of(n_kv_heads);
  const int64_t first = head_idx / n_kv_heads * n_queries + first_of(head_idx % n_kv_heads);
  return {qk_.data() + first * SizeOf(row_type_), 2 * n_queries};
}

Model::HeadRows Model::QueryRows(int layer_idx, int kv_head_idx) {
  if (bases_.empty() || layout_.has_latent_keys) return WholeQueryRows(layer_idx, kv_head_idx);
  const int64_t before = offsets_[layer_idx].rank_k[kv_head_idx];
  return {RowsBehind(&q_rows_, before, config().gqa_group()), KeyWidth(layer_idx, kv_head_idx)};
}

Model::HeadRows Model::WholeQueryRows(int layer_idx, int kv_head_idx) {
  if (needs_no_turn_) return ProductRows(layer_idx, kv_head_idx);
  const int d = layout_.head_dim;
  return {RowsBehind(&q_full_, int64_t{kv_head_idx} * d, config().gqa_group()), d};
}

Model::HeadRows Model::KeyRows(int layer_idx, int kv_head_idx) {
  if (bases_.empty()) return WholeKeyRows(layer_idx, kv_head_idx);
  return {RowsBehind(&k_rows_, offsets_[layer_idx].rank_k[kv_head_idx], 1),
          KeyWidth(layer_idx, kv_head_idx)};
}

Model::HeadRows Model::WholeKeyRows(int layer_idx, int kv_head_idx) {
  if (needs_no_turn_) return ProductRows(layer_idx, layout_.n_kv_heads + kv_head_idx);
  const int d = layout_.head_dim, idx = kv_head_idx % heads_per_latent_;
  std::byte* const rows = RowsBehind(&k_full_, int64_t{kv_head_idx - idx} * d, 1);
  return {rows + idx * d * SizeOf(row_type_), int64_t{heads_per_latent_} * d};
}

KeyRotation Model::RotationOf(int layer_idx, int64_t n_blocks) {
  if (block_rotations_.empty()) return {};
  BlockRotations& rotations = block_rotations_[config().attention.kind_idx(layer_idx)];
  rotations.Extend(n_blocks, ropes_.mutable_of(layer_idx));
  return rotations.rotation();
}

void Model::RotateQueriesAndKeys(int layer_idx) {
  const ScopedTimer timer(&profile_.rotate);
  const int n_kv_heads = layout_.n_kv_heads;
  // Few tokens: a worker takes whole KV heads. Many: all heads of a share of the tokens.
  const bool by_head = n_tokens_ < 16 * pool_->n_workers();
  pool_->Run([&](int worker_id) {
    const Range tokens =
        by_head ? Range{0, n_tokens_} : ShareOf(n_tokens_, 16, worker_id, pool_->n_workers());
    // Latents need the rows of all heads that share them.
    const Range heads = by_head
                            ? ShareOf(n_kv_heads, heads_per_latent_, worker_id, pool_->n_workers())
                            : Range{0, n_kv_heads};
    if (tokens.begin == tokens.end) return;
    for (auto first = static_cast<int>(heads.begin); first < heads.end;
         first += heads_per_latent_) {
      const int end = first + heads_per_latent_;
      for (int g = first; g < end; ++g) RotateRows(layer_idx, g, tokens);
      if (!bases_.empty()) MapRowsInBasis(layer_idx, first, end, tokens, worker_id);
    }
  });
}

void Model::RotateRows(int layer_idx, int kv_head_idx, Range tokens) {
  const ModelConfig& c = config();
  const int d = c.head_dim, group = c.gqa_group();
  const int64_t qk_stride = int64_t{c.n_heads + c.n_kv_heads} * d;
  const int64_t element = SizeOf(row_type_);
  std::byte* q = WholeQueryRows(layer_idx, kv_head_idx).first;
  const HeadRows k = WholeKeyRows(layer_idx, kv_head_idx);
  std::vector<float> centred(d);
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    const float* row = qk_.as<float>() + t * qk_stride;
    for (int h = 0; h < group; ++h) {
      RotateRow(layer_idx, row + (kv_head_idx * group + h) * d, tokens_[t].position, row_type_,
                q + (t * group + h) * d * element);
    }
    RotateKey(layer_idx, kv_head_idx, t, centred.data(), k.first + t * k.stride * element);
  }
}

void Model::MapRowsInBasis(int layer_idx, int first_head, int end_head, Range tokens,
                           int worker_id) {
  const auto first = tokens_.begin() + tokens.begin, end = tokens_.begin() + tokens.end;
  for (auto token = first; token != end;) {
    const auto mapped = std::ranges::find(token, end, false, &TokenPlace::meets_whole_keys);
    token = std::ranges::find(mapped, end, true, &TokenPlace::meets_whole_keys);
    if (mapped == token) return;
    const Range range = {mapped - tokens_.begin(), token - tokens_.begin()};
    for (int g = first_head; g < end_head; ++g) MapRows(layer_idx, g, range, worker_id);
  }
}

void Model::MapRows(int layer_idx, int kv_head_idx, Range tokens, int worker_id) {
  const int64_t element = SizeOf(row_type_), group = config().gqa_group();
  const int64_t rank = KeyWidth(layer_idx, kv_head_idx);
  LinearParams params;
  params.y_stride = rank;
  params.y_type = row_type_;
  if (!layout_.has_latent_keys) {
    const HeadRows q = WholeQueryRows(layer_idx, kv_head_idx);
    params.w = &bases_[layer_idx].query[kv_head_idx];
    params.n_rows = (tokens.end - tokens.begin) * group;
    params.x = q.first + tokens.begin * group * q.stride * element;
    params.x_stride = q.stride;
    params.y = QueryRows(layer_idx, kv_head_idx).first + tokens.begin * group * rank * element;
    linear_.RunOnWorker(params, worker_id);
  }
  params.w = &KeyMap(layer_idx, kv_head_idx);
  // Those of all heads that share latents, from the first of them on.
  const HeadRows k = WholeKeyRows(layer_idx, kv_head_idx / heads_per_latent_ * heads_per_latent_);
  params.n_rows = tokens.end - tokens.begin;
  params.x = k.first + tokens.begin * k.stride * element;
  params.x_stride = k.stride;
  params.y = KeyRows(layer_idx, kv_head_idx).first + tokens.begin * rank * element;
  linear_.RunOnWorker(params, worker_id);
}

void Model::GatherQueries(int layer_idx, std::span<const SequenceStep> steps) {
  const ScopedTimer timer(&profile_.rotate);
  const int n_kv_heads = layout_.n_kv_heads, group = config().gqa_group();
  const int64_t d = layout_.head_dim;
  pool_->Run([&](int worker_id) {
    const Range items = ShareOf(std::ssize(steps) * n_kv_heads, 1, worker_id, pool_->n_workers());
    std::vector<float> rows(kBlockSize * d);
    int64_t token_idx = 0;  // of the sequence's first token in the batch
    for (int64_t item = 0; item < items.end; ++item) {
      const int g = static_cast<int>(item % n_kv_heads);
      const SequenceStep& step = steps[item / n_kv_heads];
      const int64_t n_new = std::ssize(step.token_ids), end = (token_idx + n_new) * group;
      float* const gram = step.cache->query_gram(layer_idx, g);
      const int64_t n_sinks =
          std::clamp<int64_t>(layout_.n_sink - (step.cache->n_tokens() - n_new), 0, n_new);
      const HeadRows q = WholeQueryRows(layer_idx, g);
      int64_t row = (token_idx + n_sinks) * group;
      while (item >= items.begin && gram != nullptr && row < end) {
        const int64_t n = std::min<int64_t>(kBlockSize, end - row);
        for (int64_t i = 0; i < n; ++i) {
          ConvertToFloat(row_type_, q.first + (row + i) * q.stride * SizeOf(row_type_), d,
                         &rows[i * d]);
        }
        elementwise_->add_gram(rows.data(), n, d, gram);
        row += n;
      }
      if (g + 1 == n_kv_heads) token_idx += n_new;
    }
  });
}

void Model::RotateRow(int layer_idx, const float* row, int position, DType out_type,
                      void* out) const {
  const ModelConfig& c = config();
  const RopeTable& rope = ropes_.of(layer_idx);
  elementwise_->rope(row, rope.cos(position), rope.sin(position), c.rope_dim(), c.head_dim,
                     out_type, out);
  if (!c.dmc.has_value() || !c.dmc->zeroes_after_rope) return;
  const int64_t element = SizeOf(out_type);
  const int channel = c.dmc->is_last ? c.head_dim - 1 : 0;
  std::memset(static_cast<std::byte*>(out) + channel * element, 0, static_cast<size_t>(element));
}

void Model::RotateKey(int layer_idx, int kv_head_idx, int64_t token_idx, float* centred,
                      std::byte* out) {
  const ModelConfig& c = config();
  const int d = c.head_dim, key_idx = c.n_heads + kv_head_idx;
  const float* row = qk_.as<float>() + (token_idx * (c.n_heads + c.n_kv_heads) + key_idx) * d;
  const int position = tokens_[token_idx].position;
  const bool is_latent = layout_.has_latent_keys && position >= layout_.n_sink;
  const bool has_offset = !bases_.empty() && !bases_[layer_idx].key_offset[kv_head_idx].empty() &&
                          is_latent == layout_.has_latent_keys;
  if (!has_offset) {
    if (is_latent) return elementwise_->convert(row, d, row_type_, out);
    return RotateRow(layer_idx, row, position, row_type_, out);
  }
  // The offset leaves before the row is rounded.
  if (is_latent) {
    std::copy_n(row, d, centred);
  } else {
    RotateRow(layer_idx, row, position, DType::kF32, centred);
  }
  const std::vector<float>& offset = bases_[layer_idx].key_offset[kv_head_idx];
  for (int i = 0; i < d; ++i) centred[i] -= offset[i];
  elementwise_->convert(centred, d, row_type_, out);
}

void Model::AppendRows(int layer_idx, std::span<const SequenceStep> steps) {
  const ScopedTimer timer(&profile_.append);
  const int n_kv_heads = layout_.n_kv_heads;
  const int n_items = static_cast<int>(steps.size()) * n_kv_heads;
  std::vector<uint8_t> is_finite(n_items, 1);
  pool_->Run([&](int worker_id) {
    const Range items = ShareOf(n_items, 1, worker_id, pool_->n_workers());
    int64_t first_row = 0;  // of the sequence in the batch
    for (int item = 0; item < items.end; ++item) {
      const int g = item % n_kv_heads;
      const SequenceStep& step = steps[item / n_kv_heads];
      if (item >= items.begin) is_finite[item] = AppendRowsOfHead(layer_idx, g, step, first_row);
      if (g + 1 == n_kv_heads) first_row += std::ssize(step.token_ids);
    }
  });
  for (int item = 0; item < n_items; ++item) {
    if (is_finite[item] != 0) continue;
    FailSequence(
        steps, steps[item / n_kv_heads].cache,
        Error(StatusCode::kDataLoss,
              "layer {}: K or V holds NaN or infinity; such rows cannot be compressed", layer_idx));
  }
}

bool Model::AppendRowsOfHead(int layer_idx, int kv_head_idx, const SequenceStep& step,
                             int64_t first_row) {
  const int g = kv_head_idx, n_sink = layout_.n_sink, d = layout_.head_dim;
  const LayerOffsets& offsets = offsets_[layer_idx];
  const int64_t element = SizeOf(row_type_), v_stride = offsets.rank_v.back();
  const BlockShape shape = step.cache->shape(layer_idx, g);
  const int n_new = static_cast<int>(step.token_ids.size());
  const int first = step.cache->n_tokens() - n_new;
  const HeadRows k_whole = WholeKeyRows(layer_idx, g);
  const HeadRows k = step.cache->has_whole_keys(layer_idx) ? k_whole : KeyRows(layer_idx, g);
  const std::byte* v = v_.data() + offsets.rank_v[g] * element;
  bool is_finite = true;
  for (int t = 0; t < n_new;) {
    const int64_t row = first_row + t;
    const int position = first + t;
    if (position < n_sink) {
      std::memcpy(step.cache->sink_k(layer_idx, g) + position * d * element,
                  k_whole.first + row * k_whole.stride * element, d * element);
      std::memcpy(step.cache->sink_v(layer_idx, g) + position * shape.rank_v * element,
                  v + row * v_stride * element, shape.rank_v * element);
      ++t;
      continue;
    }
    int entry = step.cache->n_entries(layer_idx, g) - (n_new - t), n_rows = n_new - t;
    if (layout_.MergesEntries()) {
      // The last row of each entry is the one that holds all of it.
      const int* n_closed = &n_closed_[g * n_tokens_ + row];
      if (t + 1 < n_new && n_closed[1] == n_closed[0]) {
        ++t;
        continue;
      }
      entry = n_closed[0];
      n_rows = 1;
    }
    AppendParams params;
    params.shape = shape;
    params.block = step.cache->blocks(layer_idx, g)[entry / kBlockSize];
    params.first_slot = entry % kBlockSize;
    params.n_rows = std::min(n_rows, kBlockSize - params.first_slot);
    params.k = k.first + row * k.stride * element;
    params.k_stride = k.stride;
    params.v = v + row * v_stride * element;
    params.v_stride = v_stride;
    if (!shape.has_coded_rows) {
      attend_->append(params);
    } else {
      is_finite = AppendCodedRows(params) && is_finite;
    }
    t += params.n_rows;
  }
  return is_finite;
}

}  // namespace kvlathe
