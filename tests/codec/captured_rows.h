// What a small random model computes for a text, captured for a codec that has no weights.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codec/row_codec.h"
#include "loaded_model.h"
#include "model/planned_model.h"
#include "random_model.h"

namespace kvlathe::testing {

// Rows of all layers in the order of positions.
struct CapturedText {
  int n_tokens = 0;
  std::vector<std::vector<float>> q, q_pre, k, k_pre, v, outputs;  // [n_layers]
  std::vector<std::vector<float>> sink_logits;  // [n_layers] of the model; empty: it has none
};

class RowCapture : public QkvObserver {
 public:
  explicit RowCapture(const ModelConfig& config) : config_(config) {
    for (auto* rows : {&text_.q, &text_.q_pre, &text_.k, &text_.k_pre, &text_.v, &text_.outputs}) {
      rows->resize(config.n_layers);
    }
  }
  void Observe(const QkvView& view) override {
    const int64_t q = int64_t{view.n_tokens} * config_.n_heads * config_.head_dim;
    const int64_t k = int64_t{view.n_tokens} * config_.n_kv_heads * config_.head_dim;
    const auto add = [&](std::vector<std::vector<float>>* to, const float* rows, int64_t n) {
      (*to)[view.layer_idx].insert((*to)[view.layer_idx].end(), rows, rows + n);
    };
    add(&text_.q, view.q_post, q);
    add(&text_.q_pre, view.q_pre, q);
    add(&text_.k, view.k_post, k);
    add(&text_.k_pre, view.k_pre, k);
    add(&text_.v, view.v, k);
    if (view.layer_idx == 0) text_.n_tokens += view.n_tokens;
  }
  bool wants_outputs() const override { return true; }
  void ObserveOutputs(const OutputsView& view) override {
    const int64_t n = int64_t{view.n_tokens} * config_.n_heads * config_.head_dim;
    std::vector<float>& to = text_.outputs[view.layer_idx];
    to.insert(to.end(), view.outputs, view.outputs + n);
  }
  const CapturedText& text() const { return text_; }

 private:
  const ModelConfig& config_;
  CapturedText text_;
};

// Has a codec attend to positions [begin, end) of the text, layer by layer, into outputs
// [n_layers], to which they are added.
inline Status AttendTo(const CapturedText& text, int begin, int end, bool are_turned,
                       RowCodec* codec, CodecSequence* sequence,
                       std::vector<std::vector<float>>* outputs) {
  const ModelConfig& c = codec->config();
  const int64_t q = int64_t{c.n_heads} * c.head_dim, k = int64_t{c.n_kv_heads} * c.head_dim;
  outputs->resize(c.n_layers);
  for (int l = 0; l < c.n_layers; ++l) {
    std::vector<float>& to = (*outputs)[l];
    to.resize(to.size() + (end - begin) * q);
    const CodecStep step = {sequence, end - begin};
    std::vector<Status> failures;
    KVL_RETURN_IF_ERROR(
        codec->Run({&step, 1},
                   {.layer_idx = l,
                    .q = (are_turned ? text.q : text.q_pre)[l].data() + begin * q,
                    .k = (are_turned ? text.k : text.k_pre)[l].data() + begin * k,
                    .v = text.v[l].data() + begin * k,
                    .are_turned = are_turned,
                    .scale = {},
                    .sink_logits = text.sink_logits.empty() ? nullptr : text.sink_logits[l].data(),
                    .out = to.data() + to.size() - (end - begin) * q},
                   &failures));
    KVL_RETURN_IF_ERROR(failures.front());
  }
  return OkStatus();
}

inline double LargestDifference(std::span<const float> a, std::span<const float> b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    largest = difference <= largest ? largest : difference;  // NaN counts
  }
  return largest;
}

}  // namespace kvlathe::testing
