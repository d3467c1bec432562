#include "cuda/rows/row_verbs.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cuda/kernels/rows/cap.h"
#include "cuda/kernels/rows/gate.h"
#include "cuda/kernels/rows/norm.h"
#include "cuda/kernels/rows/take.h"
#include "cuda/kernels/weights/wide_rows.h"

namespace kvlathe {
namespace {

cuda::NormKind NormOf(NormFunction function) {
  switch (function) {
    case NormFunction::kRms:
      return cuda::NormKind::kRms;
    case NormFunction::kLayer:
      return cuda::NormKind::kLayer;
    case NormFunction::kNone:
      break;
  }
  return cuda::NormKind::kNone;
}

cuda::GateFunction FunctionOf(GateKind kind) {
  using cuda::GateFunction;
  switch (kind) {
    case GateKind::kSwiglu:
      return GateFunction::kSwiglu;
    case GateKind::kGegluTanh:
      return GateFunction::kGegluTanh;
    case GateKind::kGelu:
      return GateFunction::kGelu;
    case GateKind::kGeluTanh:
      return GateFunction::kGeluTanh;
    case GateKind::kRelu2:
      return GateFunction::kRelu2;
    case GateKind::kXielu:
      return GateFunction::kXielu;
    case GateKind::kClampedSwiglu:
      break;
  }
  return GateFunction::kClampedSwiglu;
}

}  // namespace

bool RowVerbs::Hold(MachineBuffer* buffer, int64_t n_bytes, const char* what) {
  const Status status = buffer->EnsureSize(&device_, n_bytes, what);
  stream_.Note(status);
  return status.ok();
}

// The rows of a table that tokens name, gathered on the host; zeros for words that it does not
// hold.
const float* RowVerbs::SendTableRows(const EmbedPlan& plan, const HostTable& table,
                                     bool of_positions) {
  std::vector<float> rows(std::ssize(plan.tokens) * plan.n_dims);
  for (int64_t t = 0; t < std::ssize(plan.tokens); ++t) {
    const TokenPlace& token = plan.tokens[t];
    int64_t row = token.position;
    if (!of_positions) {
      row = token.token_id - plan.held_words.begin;
      if (row < 0 || token.token_id >= plan.held_words.end) continue;
    }
    table.read(row, &rows[t * plan.n_dims]);
  }
  return stream_.Send(std::span<const float>(rows));
}

void RowVerbs::Embed(const EmbedPlan& plan) {
  const int64_t n_tokens = std::ssize(plan.tokens);
  if (n_tokens == 0) return;
  cuda::EmbedParams params = {.n_tokens = n_tokens,
                              .n_dims = plan.n_dims,
                              .scale = plan.scale,
                              .out = device_.As<float>(plan.out)};
  if (const CudaMatrix* const tied = residents_.At(plan.tied_words)) {
    std::vector<int32_t> words;
    std::vector<uint8_t> is_held;
    for (const TokenPlace& token : plan.tokens) {
      const int64_t word = token.token_id - plan.held_words.begin;
      is_held.push_back(word >= 0 && token.token_id < plan.held_words.end);
      words.push_back(is_held.back() ? static_cast<int32_t>(word) : 0);
    }
    const int32_t* const rows = stream_.Send(std::span<const int32_t>(words));
    if (rows == nullptr) return;
    cuda::WidenRows(stream_.get(), {.type = tied->type,
                                    .w = tied->data,
                                    .w_row_bytes = tied->row_bytes,
                                    .rows = rows,
                                    .n_rows = static_cast<int>(n_tokens),
                                    .n_in = static_cast<int>(plan.n_dims),
                                    .out = params.out,
                                    .out_stride = plan.n_dims});
    params.rows = params.out;
    if (std::ranges::find(is_held, 0) != is_held.end()) {
      params.is_held = stream_.Send(std::span<const uint8_t>(is_held));
      if (params.is_held == nullptr) return;
    }
  } else {
    params.rows = SendTableRows(plan, *residents_.At(plan.words), /*of_positions=*/false);
    if (params.rows == nullptr) return;
  }
  if (const HostTable* const positions = residents_.At(plan.positions)) {
    params.positions = SendTableRows(plan, *positions, /*of_positions=*/true);
    if (params.positions == nullptr) return;
  }
  const bool is_done = params.rows == params.out && params.is_held == nullptr &&
                       params.positions == nullptr && params.scale == 1;
  if (!is_done) cuda::Embed(stream_.get(), params);
}

void RowVerbs::TakeRows(const TakeRowsPlan& plan) {
  const int64_t* const from = stream_.Send(plan.from);
  if (from == nullptr) return;
  cuda::TakeRows(stream_.get(), {.rows = device_.At(plan.rows),
                                 .row_bytes = plan.row_bytes,
                                 .from = from,
                                 .n_rows = std::ssize(plan.from)});
}

std::vector<float> RowVerbs::TakeChannel(const TakeChannelPlan& plan) {
  std::vector<float> channel(plan.n_rows * plan.n_channels);
  const int64_t n_bytes = std::ssize(channel) * int64_t{sizeof(float)};
  if (plan.n_rows == 0 || !Hold(&channel_, n_bytes, "a channel of rows")) return channel;
  cuda::TakeChannel(stream_.get(), {.rows = device_.As<float>(plan.rows),
                                    .n_rows = plan.n_rows,
                                    .n_dims = plan.n_dims,
                                    .channel = plan.channel,
                                    .n_channels = plan.n_channels,
                                    .channels_apart = plan.channels_apart,
                                    .taken = device_.As<float>(channel_.place())});
  device_.Download(channel_.place(), std::as_writable_bytes(std::span(channel)));
  return channel;
}

void RowVerbs::Normalise(std::span<const NormPlan> plans) {
  std::vector<cuda::NormParams> norms;
  for (const NormPlan& plan : plans) {
    norms.push_back({.function = NormOf(plan.function),
                     .x = device_.As<const float>(plan.x),
                     .n_rows = plan.n_rows,
                     .n_groups = static_cast<int>(plan.n_groups),
                     .n_dims = static_cast<int>(plan.n_dims),
                     .stride = plan.stride,
                     .weight = device_.As<const float>(plan.weight),
                     .has_group_weights = plan.has_group_weights,
                     .bias = device_.As<const float>(plan.bias),
                     .eps = plan.eps,
                     .out_type = plan.out_type,
                     .out = device_.At(plan.out),
                     .added_to = device_.As<float>(plan.added_to)});
  }
  cuda::Normalise(stream_.get(), norms);
}

void RowVerbs::Gate(const GatePlan& plan) {
  cuda::Gate(stream_.get(), {.function = FunctionOf(plan.kind),
                             .x = device_.As<const float>(plan.x),
                             .n_rows = plan.n_rows,
                             .ffn_dim = plan.ffn_dim,
                             .out_type = plan.out_type,
                             .out = device_.At(plan.out),
                             .xielu = {.positive = plan.xielu.positive,
                                       .negative = plan.xielu.negative,
                                       .beta = plan.xielu.beta,
                                       .eps = plan.xielu.eps}});
}

void RowVerbs::Cap(const CapPlan& plan) {
  cuda::Cap(stream_.get(),
            {.x = device_.As<float>(plan.x), .n_numbers = plan.n_numbers, .cap = plan.cap});
}

}  // namespace kvlathe
