#include "model/steps/observe.h"

#include <algorithm>

#include "model/steps/rotate.h"

namespace kvlathe {

void ObserveStep::FindEntries(const Activations& a) {
  const int64_t n_tokens = a.n_tokens;
  is_entry_.assign(a.n_closed.size(), 1);
  for (int64_t i = 0; i + 1 < std::ssize(a.n_closed); ++i) {
    const bool is_last = (i + 1) % n_tokens == 0, is_sink = a.n_closed[i] < 0;
    if (!is_last && !is_sink && a.n_closed[i + 1] == a.n_closed[i]) is_entry_[i] = 0;
  }
}

Status ObserveStep::Run(ForwardState* state) {
  if (state->observer == nullptr) return OkStatus();
  Activations& a = *state->activations;
  const LayerRows& rows = layer_.rows;
  const int d = rows.head_dim, group = rows.gqa_group();
  const int64_t n_tokens = a.n_tokens, stride = rows.QkStride();
  const int64_t q_width = int64_t{rows.n_heads} * d, k_width = int64_t{rows.n_kv_heads} * d;
  const int64_t v_width = rows.v_offsets.back();
  std::vector<int> positions(n_tokens);
  std::vector<float> q_pre(n_tokens * q_width), q_post(q_pre.size());
  std::vector<float> k_pre(n_tokens * k_width), k_post(k_pre.size()), v(n_tokens * v_width);
  ConvertToFloat(a.row_type, a.v.data(), n_tokens * v_width, v.data());
  const float* qk = a.qk.as<float>();
  std::vector<float> widened;
  if (!rows.turn) {
    widened.resize(n_tokens * stride);
    ConvertToFloat(a.row_type, a.qk.data(), std::ssize(widened), widened.data());
    qk = widened.data();
  }
  for (int64_t t = 0; t < n_tokens; ++t) {
    positions[t] = a.tokens[t].position;
    std::copy_n(qk + t * stride, q_width, &q_pre[t * q_width]);
    std::copy_n(qk + t * stride + q_width, k_width, &k_pre[t * k_width]);
  }
  heads_.clear();
  for (int g = 0; g < rows.n_kv_heads; ++g) {
    heads_.push_back(
        {.q = qk + int64_t{g} * group * d,
         .k = qk + q_width + int64_t{g} * d,
         .turned_q = reinterpret_cast<std::byte*>(&q_post[int64_t{g} * group * d]),
         .turned_q_stride = q_width,
         .turned_q_width = d,
         .turned_k = {reinterpret_cast<std::byte*>(&k_post[int64_t{g} * d]), k_width}});
  }
  RotatePlan plan = TurnsOf(layer_, a.tokens);
  plan.heads = heads_;
  plan.out_type = DType::kF32;
  state->backend->RotateAndMap(plan);
  const bool merges = layer_.layout->MergesEntries();
  if (merges) FindEntries(a);
  state->observer->Observe({layer_.idx, static_cast<int>(n_tokens), positions.data(), q_pre.data(),
                            q_post.data(), k_pre.data(), k_post.data(), v.data(),
                            merges ? is_entry_.data() : nullptr});
  return OkStatus();
}

}  // namespace kvlathe
