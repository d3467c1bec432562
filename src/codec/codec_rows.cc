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

template <typename F>
void RowCodec::ForTokens(int64_t n_tokens, const F& fn) {
  ThreadPool& threads = machine_->host_threads();
  if (n_tokens < 16) return fn(int64_t{0}, n_tokens);
  threads.Run([&](int worker_id) {
    const Range range = ShareOf(n_tokens, 8, worker_id, threads.n_workers());
    if (range.begin < range.end) fn(range.begin, range.end);
  });
}

void RowCodec::FillRows(std::span<const Piece> pieces, const CodecRows& rows) {
  CodecLayer& layer = *layers_[rows.layer_idx];
  Activations& a = activations_;
  const int64_t d = config_.head_dim, q_width = config_.n_heads * d;
  const int64_t k_width = config_.n_kv_heads * d, stride = q_width + k_width;
  const int64_t element = SizeOf(types_.rows), n_tokens = a.n_tokens;
  std::vector<int64_t> from;  // the row of each token among those of the call
  for (const Piece& piece : pieces) {
    for (int t = 0; t < piece.step.n_new; ++t) from.push_back(piece.first_row + t);
  }
  qk_.resize(n_tokens * stride);
  values_.resize(n_tokens * k_width * element);
  const double of_engine = 1 / std::sqrt(static_cast<double>(d));
  const auto factor =
      static_cast<float>(rows.scale.has_value() ? *rows.scale / of_engine : config_.query_scale);
  const bool turns_back = rows.are_turned && layer.needs_unturned_rows() && config_.rope_dim() > 0;
  const RopeTable& table = layer.kind().ropes.of(0);
  const std::vector<float>& offset = layer.value_offset();
  ForTokens(n_tokens, [&](int64_t begin, int64_t end) {
    std::vector<float> v(offset.empty() ? 0 : k_width);
    for (int64_t t = begin; t < end; ++t) {
      float* const q = &qk_[t * stride];
      float* const k = q + q_width;
      if (rows.q != nullptr) {
        const float* const given = rows.q + from[t] * q_width;
        if (factor == 1) {
          std::copy_n(given, q_width, q);
        } else {
          std::transform(given, given + q_width, q, [factor](float x) { return x * factor; });
        }
      }
      std::copy_n(rows.k + from[t] * k_width, k_width, k);
      for (int64_t at = rows.q != nullptr ? 0 : q_width; turns_back && at < stride; at += d) {
        TurnBack(table, a.tokens[t].position, q + at);
      }
      const float* value = rows.v + from[t] * k_width;
      if (!offset.empty()) {
        std::transform(value, value + k_width, offset.begin(), v.begin(),
                       [](float x, float less) { return x - less; });
        value = v.data();
      }
      ConvertFromFloat(types_.rows, value, k_width, &values_[t * k_width * element]);
    }
  });
  Device& memory = *a.memory;
  memory.Upload(a.qk.place(), std::as_bytes(std::span(qk_)));
  memory.Upload(layer.layer().rows.maps_values ? a.values.place() : a.v.place(), values_);
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
  std::vector<int64_t> to;  // the row of each token among those of the call
  for (const Piece& piece : pieces) {
    for (int t = 0; t < piece.step.n_new; ++t) to.push_back(piece.first_row + t);
  }
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
