// Rows on their way from the caller to the activations of a layer, and back.
#include <algorithm>
#include <cmath>
#include <span>

#include "codec/row_codec.h"

namespace kvlathe {
namespace {

// Turns a row back from its position: the way back of the half layout, channel i beside i + half.
void TurnBack(const RopeTable& table, int position, float* row) {
  const int half = table.rope_dim() / 2;
  const float *const cos = table.cos(position), *const sin = table.sin(position);
  const float way_back = table.way_back();
  for (int i = 0; i < half; ++i) {
    const float x = row[i], y = row[i + half];
    row[i] = way_back * (x * cos[i] + y * sin[i]);
    row[i + half] = way_back * (y * cos[i] - x * sin[i]);
  }
}

}  // namespace

std::vector<int64_t> RowCodec::RowsOfCall(std::span<const Piece> pieces) {
  std::vector<int64_t> rows;
  for (const Piece& piece : pieces) {
    for (int t = 0; t < piece.step.n_new; ++t) rows.push_back(piece.first_row + t);
  }
  return rows;
}

template <typename F>
void RowCodec::ForTokens(int64_t n_tokens, const F& fn) {
  ThreadPool& threads = machine_->host_threads();
  if (n_tokens < 16) return fn(int64_t{0}, n_tokens);
  threads.Run([&](int worker_id) {
    const Range range = ShareOf(n_tokens, 8, worker_id, threads.n_workers());
    if (range.begin < range.end) fn(range.begin, range.end);
  });
}

// Rows that do not change on their way are uploaded from where the caller has them.
void RowCodec::FillRows(std::span<const Piece> pieces, const CodecRows& rows) {
  CodecLayer& layer = *layers_[rows.layer_idx];
  Activations& a = activations_;
  const int64_t d = config_.head_dim, q_width = config_.n_heads * d;
  const int64_t k_width = config_.n_kv_heads * d, f32 = sizeof(float);
  const int64_t stride = (q_width + k_width) * f32, v_stride = k_width * SizeOf(types_.rows);
  if (rows.sink_logits != nullptr) {
    layer.SetSinkLogits({rows.sink_logits, static_cast<size_t>(config_.n_heads)});
  }
  const std::vector<int64_t> from = RowsOfCall(pieces);
  const auto factor =
      static_cast<float>(rows.scale.has_value() ? *rows.scale / config_.scale_of_scores() : 1);
  const bool turns_back = rows.are_turned && layer.needs_unturned_rows() && config_.rope_dim() > 0;
  const RopeTable& table = layer.kind().ropes.of(0);
  const AttentionKind& kind = config_.attention.of(rows.layer_idx);
  const std::vector<float>& offset = layer.value_offset();
  const ObjectPlace values = layer.layer().rows.maps_values ? a.values.place() : a.v.place();
  Device& memory = *a.memory;
  ForTokens(a.n_tokens, [&](int64_t begin, int64_t end) {
    std::vector<float> changed(std::max(q_width, k_width));
    std::vector<std::byte> converted(v_stride);
    const auto upload = [&](const float* row, int64_t width, float times, int64_t t, int64_t at) {
      if (times != 1 || turns_back) {
        std::transform(row, row + width, changed.begin(), [times](float x) { return x * times; });
        for (int64_t i = 0; turns_back && i < width; i += d) {
          TurnBack(table, a.tokens[t].position, changed.data() + i);
        }
        row = changed.data();
      }
      memory.Upload(a.qk.place() + (t * stride + at * f32),
                    std::as_bytes(std::span(row, static_cast<size_t>(width))));
    };
    for (int64_t t = begin; t < end; ++t) {
      if (rows.q != nullptr) {
        // Queries that turn back grow again when they are turned once more.
        const double growth = turns_back ? kind.GrowthAt(a.tokens[t].position) : 1;
        upload(rows.q + from[t] * q_width, q_width, static_cast<float>(factor / growth), t, 0);
      }
      upload(rows.k + from[t] * k_width, k_width, 1, t, q_width);
      const float* value = rows.v + from[t] * k_width;
      if (!offset.empty()) {
        std::transform(value, value + k_width, offset.begin(), changed.begin(),
                       [](float x, float less) { return x - less; });
        value = changed.data();
      }
      std::span<const std::byte> bytes =
          std::as_bytes(std::span(value, static_cast<size_t>(k_width)));
      if (types_.rows != DType::kF32) {
        ConvertFromFloat(types_.rows, value, k_width, converted.data());
        bytes = converted;
      }
      memory.Upload(values + t * v_stride, bytes);
    }
  });
}

void RowCodec::FetchOutputs(std::span<const Piece> pieces, const CodecRows& rows) {
  CodecLayer& layer = *layers_[rows.layer_idx];
  const int64_t d = config_.head_dim, width = config_.n_heads * d, group = config_.gqa_group();
  const int64_t element = SizeOf(types_.activations), n_tokens = activations_.n_tokens;
  const ObjectPlace place = OutputsOf(layer.layer(), activations_).place();
  Device& memory = *activations_.memory;
  const std::byte* from = memory.HostView(place);
  if (from == nullptr) {
    outputs_.resize(n_tokens * width * element);
    memory.Download(place, outputs_);
    from = outputs_.data();
  }
  const std::vector<int64_t> to = RowsOfCall(pieces);
  const std::vector<float>& offset = layer.value_offset();
  ForTokens(n_tokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* const out = rows.out + to[t] * width;
      ConvertToFloat(types_.activations, from + t * width * element, width, out);
      for (int64_t h = 0; !offset.empty() && h < config_.n_heads; ++h) {
        const float* const add = &offset[h / group * d];
        for (int64_t i = 0; i < d; ++i) out[h * d + i] += add[i];
      }
    }
  });
}

}  // namespace kvlathe
