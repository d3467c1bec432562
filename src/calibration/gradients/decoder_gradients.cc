#include "calibration/gradients/decoder_gradients.h"

#include <algorithm>
#include <vector>

#include "base/random.h"
#include "machine/machine_buffer.h"

namespace kvlathe {

DecoderGradients::DecoderGradients(ModelWeights* weights, ThreadPool* pool, Isa isa, int newest,
                                   int64_t kept_bytes)
    : weights_(weights),
      layer_(weights, pool, isa, newest, kept_bytes),
      head_(weights, pool, isa) {}

Status DecoderGradients::CheckWindow(std::span<const int32_t> token_ids) const {
  const ModelConfig& c = weights_->config();
  const auto n_tokens = std::ssize(token_ids);
  if (n_tokens == 0) {
    return Error(StatusCode::kInvalidArgument, "gradients of a window without tokens");
  }
  if (c.positions == PositionKind::kLearned && n_tokens > c.max_seq_len) {
    return Error(StatusCode::kInvalidArgument,
                 "a window of {} tokens is longer than the {} positions that the model has learned",
                 n_tokens, c.max_seq_len);
  }
  for (const int32_t id : token_ids) {
    if (id >= 0 && id < c.vocab_size) continue;
    return Error(StatusCode::kInvalidArgument, "token {} is not one of the {} of the model", id,
                 c.vocab_size);
  }
  return OkStatus();
}

Status DecoderGradients::Embed(std::span<const int32_t> token_ids, float* stream) const {
  Machine& machine = weights_->machine();
  const int64_t n_values = std::ssize(token_ids) * weights_->config().hidden_dim;
  KVL_ASSIGN_OR_RETURN(const MachineBuffer rows,
                       MachineBuffer::Allocate(&machine.memory(), n_values * SizeOf(DType::kF32),
                                               "the stream of a window"));
  std::vector<TokenPlace> tokens;
  for (const int32_t id : token_ids) {
    tokens.push_back({.token_id = id, .position = static_cast<int>(tokens.size())});
  }
  machine.backend().Embed(weights_->PlanEmbedding(tokens, rows.place()));
  machine.memory().Download(rows.place(), std::as_writable_bytes(std::span(stream, n_values)));
  return OkStatus();
}

StatusOr<DrawnTokens> DecoderGradients::Run(std::span<const int32_t> token_ids, uint64_t seed,
                                            const Sink& sink, QkvObserver* observer) {
  KVL_RETURN_IF_ERROR(CheckWindow(token_ids));
  const ModelConfig& c = weights_->config();
  const int64_t n_tokens = std::ssize(token_ids), n_values = n_tokens * c.hidden_dim;
  KVL_RETURN_IF_ERROR(streams_.EnsureSize(
      (c.n_layers + 1) * n_values * static_cast<int64_t>(sizeof(float)), "the stream of a window"));
  KVL_RETURN_IF_ERROR(layer_.Prepare(n_tokens));
  float* const streams = streams_.as<float>();
  KVL_RETURN_IF_ERROR(Embed(token_ids, streams));
  for (int l = 0; l < c.n_layers; ++l) {
    KVL_RETURN_IF_ERROR(weights_->CheckInterrupt());
    KVL_RETURN_IF_ERROR(layer_.Load(l, PassWays::kForward));
    float* const next = streams + (l + 1) * n_values;
    std::copy_n(streams + l * n_values, n_values, next);
    KVL_RETURN_IF_ERROR(layer_.Run(next, observer));
  }
  Random random(seed);
  std::vector<double> uniform(n_tokens);
  for (double& u : uniform) u = random.Uniform();
  float* const gradient = streams + c.n_layers * n_values;
  KVL_ASSIGN_OR_RETURN(DrawnTokens drawn, head_.Run(uniform, gradient));
  for (int l = c.n_layers - 1; l >= 0; --l) {
    KVL_RETURN_IF_ERROR(weights_->CheckInterrupt());
    KVL_RETURN_IF_ERROR(layer_.Load(l, PassWays::kBoth));
    KVL_ASSIGN_OR_RETURN(const RowGradients rows, layer_.RunBack(streams + l * n_values, gradient));
    sink(rows);
  }
  KVL_RETURN_IF_ERROR(weights_->machine().backend().Finish().status());
  return drawn;
}

}  // namespace kvlathe
