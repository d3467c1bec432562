#include "model/steps/observe.h"

#include <algorithm>
#include <span>

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

namespace {

std::vector<float> Downloaded(Device* memory, const ObjectPlace& from, DType type, int64_t n) {
  std::vector<std::byte> bytes(n * SizeOf(type));
  memory->Download(from, bytes);
  std::vector<float> numbers(n);
  ConvertToFloat(type, bytes.data(), n, numbers.data());
  return numbers;
}

}  // namespace

StatusOr<std::vector<float>> ObserveStep::TurnedRows(const std::vector<float>& qk,
                                                     ForwardState* state) {
  const Activations& a = *state->activations;
  const LayerRows& rows = layer_.rows;
  const int64_t stride = rows.QkStride(), f32 = sizeof(float);
  const int64_t d = rows.head_dim, group = rows.gqa_group();
  KVL_ASSIGN_OR_RETURN(
      const MachineBuffer from,
      MachineBuffer::CopyOf(a.memory, std::as_bytes(std::span(qk)), "rows to be observed"));
  KVL_ASSIGN_OR_RETURN(const MachineBuffer to,
                       MachineBuffer::Allocate(a.memory, from.n_bytes(), "rows to be observed"));
  heads_.clear();
  for (int64_t g = 0; g < rows.n_kv_heads; ++g) {
    const int64_t q_at = g * group * d * f32, k_at = (rows.n_heads + g) * d * f32;
    heads_.push_back({.q = from.place() + q_at,
                      .k = from.place() + k_at,
                      .turned_q = to.place() + q_at,
                      .turned_q_stride = stride,
                      .turned_q_width = static_cast<int>(d),
                      .turned_k = {to.place() + k_at, stride}});
  }
  RotatePlan plan = TurnsOf(layer_, a.tokens);
  plan.heads = heads_;
  plan.out_type = DType::kF32;
  state->backend->RotateAndMap(plan);
  return Downloaded(a.memory, to.place(), DType::kF32, std::ssize(qk));
}

Status ObserveStep::Run(ForwardState* state) {
  if (state->observer == nullptr) return OkStatus();
  const Activations& a = *state->activations;
  const LayerRows& rows = layer_.rows;
  const int d = rows.head_dim;
  const int64_t n_tokens = a.n_tokens, stride = rows.QkStride();
  const int64_t q_width = int64_t{rows.n_heads} * d, k_width = int64_t{rows.n_kv_heads} * d;
  const std::vector<float> v =
      Downloaded(a.memory, a.v.place(), a.types.rows, n_tokens * rows.v_offsets.back());
  const std::vector<float> qk =
      Downloaded(a.memory, a.qk.place(), rows.turn ? DType::kF32 : a.types.rows, n_tokens * stride);
  KVL_ASSIGN_OR_RETURN(const std::vector<float> turned, TurnedRows(qk, state));
  std::vector<int> positions(n_tokens);
  std::vector<float> q_pre(n_tokens * q_width), q_post(q_pre.size());
  std::vector<float> k_pre(n_tokens * k_width), k_post(k_pre.size());
  for (int64_t t = 0; t < n_tokens; ++t) {
    positions[t] = a.tokens[t].position;
    std::copy_n(&qk[t * stride], q_width, &q_pre[t * q_width]);
    std::copy_n(&qk[t * stride + q_width], k_width, &k_pre[t * k_width]);
    std::copy_n(&turned[t * stride], q_width, &q_post[t * q_width]);
    std::copy_n(&turned[t * stride + q_width], k_width, &k_post[t * k_width]);
  }
  const bool merges = layer_.layout->MergesEntries();
  if (merges) FindEntries(a);
  state->observer->Observe({layer_.idx, static_cast<int>(n_tokens), positions.data(), q_pre.data(),
                            q_post.data(), k_pre.data(), k_post.data(), v.data(),
                            merges ? is_entry_.data() : nullptr});
  return OkStatus();
}

Status ObserveOutputsStep::Run(ForwardState* state) {
  if (state->observer == nullptr || !state->observer->wants_outputs()) return OkStatus();
  const Activations& a = *state->activations;
  const std::vector<float> outputs = Downloaded(a.memory, a.attended.place(), a.types.activations,
                                                a.n_tokens * layer_.rows.OutputStride());
  std::vector<int> positions(a.n_tokens);
  for (int64_t t = 0; t < a.n_tokens; ++t) positions[t] = a.tokens[t].position;
  state->observer->ObserveOutputs(
      {layer_.idx, static_cast<int>(a.n_tokens), positions.data(), outputs.data()});
  return OkStatus();
}

}  // namespace kvlathe
