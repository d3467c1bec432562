// Products of RowVerbs.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/units.h"
#include "cuda/kernels/rows/take.h"
#include "cuda/kernels/weights/wide_rows.h"
#include "cuda/rows/row_verbs.h"

namespace kvlathe {
namespace {

// Up to here weights in blocks are read as they are: every eight rows read them once.
constexpr int64_t kFewRows = 16;
// Up to here all maps of heads are one launch.
constexpr int64_t kFewRowsOfHeads = 64;
// Of weights in blocks that are made wider at a time.
constexpr int64_t kFewestOuts = 64;
constexpr int64_t kMostWideBytes = int64_t{32} << 20;
constexpr int64_t kShareOfFreeBytes = 64;

DType RowsOf(WeightType type) { return type == WeightType::kF32 ? DType::kF32 : DType::kBf16; }

}  // namespace

RowVerbs::RowVerbs(CudaStream* stream, CudaDevice* device, const CudaResidents* residents)
    : stream_(*stream), device_(*device), residents_(*residents) {
  auto dense = CublasltProduct::Create(device);
  stream_.Note(dense.status());
  if (dense.ok()) dense_ = *std::move(dense);
  const int64_t wide_bytes = std::min(kMostWideBytes, device_.n_free_bytes() / kShareOfFreeBytes);
  if (wide_bytes > 0) Hold(&wide_, wide_bytes, "weights out of blocks");
}

PlacedProduct RowVerbs::Resolve(const ProductPlan& plan) const {
  const CudaMatrix* const w = residents_.At(plan.w);
  KVL_CHECK(w != nullptr);
  return {.type = w->type,
          .w = w->data,
          .w_row_bytes = w->row_bytes,
          .n_rows = plan.n_rows,
          .n_out = w->n_out,
          .n_in = w->n_in,
          .x_type = plan.x_type,
          .x = device_.At(plan.x),
          .x_stride = plan.x_stride,
          .bias = device_.As<const float>(plan.bias),
          .y = device_.At(plan.y),
          .y_stride = plan.y_stride,
          .y_type = plan.y_type,
          .accumulate = plan.accumulate};
}

void RowVerbs::MultiplyDense(const PlacedProduct& p) {
  if (dense_ == nullptr) return;  // the stream has noted it
  DenseProduct product = {.type = RowsOf(p.type),
                          .w = p.w,
                          .w_stride = p.w_row_bytes / SizeOf(RowsOf(p.type)),
                          .x = p.x,
                          .x_stride = p.x_stride,
                          .y_type = p.y_type,
                          .y = p.y,
                          .y_stride = p.y_stride,
                          .n_rows = p.n_rows,
                          .n_out = p.n_out,
                          .n_in = p.n_in,
                          .accumulate = p.accumulate};
  const bool is_rounded_later = p.bias != nullptr && p.y_type == DType::kBf16;
  if (is_rounded_later) {
    if (!Hold(&sums_, p.n_rows * p.n_out * int64_t{sizeof(float)}, "products")) return;
    product.y = device_.At(sums_.place());
    product.y_stride = p.n_out;
    product.y_type = DType::kF32;
  }
  if (p.bias != nullptr) {
    cuda::PutBias(stream_.get(), {.y = static_cast<float*>(product.y),
                                  .y_stride = product.y_stride,
                                  .bias = p.bias,
                                  .n_rows = p.n_rows,
                                  .n_out = p.n_out,
                                  .adds = p.accumulate});
    product.accumulate = true;
  }
  const Status status = dense_->Multiply(product);
  stream_.Note(status);
  if (!status.ok()) return;
  if (is_rounded_later) {
    cuda::RoundRows(stream_.get(), {.from = static_cast<const float*>(product.y),
                                    .to = p.y,
                                    .to_stride = p.y_stride,
                                    .n_rows = p.n_rows,
                                    .n_dims = p.n_out});
  }
}

// Weights in blocks, of which some outputs at a time become the type of the rows.
void RowVerbs::MultiplyWidened(const PlacedProduct& p) {
  const int64_t row_bytes = RoundUp(p.n_in * SizeOf(p.x_type), int64_t{16});
  if (!Hold(&wide_, std::min(p.n_out, kFewestOuts) * row_bytes, "weights out of blocks")) return;
  const int64_t n_together = std::min(p.n_out, wide_.n_bytes() / row_bytes);
  for (int64_t first = 0; first < p.n_out; first += n_together) {
    PlacedProduct part = p;
    part.type = DenseWeights(p.x_type);
    part.w = device_.At(wide_.place());
    part.w_row_bytes = row_bytes;
    part.n_out = std::min(n_together, p.n_out - first);
    part.y = p.y + first * SizeOf(p.y_type);
    if (p.bias != nullptr) part.bias = p.bias + first;
    cuda::WidenRows(stream_.get(), {.type = p.type,
                                    .w = p.w + first * p.w_row_bytes,
                                    .w_row_bytes = p.w_row_bytes,
                                    .n_rows = static_cast<int>(part.n_out),
                                    .n_in = static_cast<int>(p.n_in),
                                    .out_type = p.x_type,
                                    .out = device_.At(wide_.place()),
                                    .out_stride = row_bytes / SizeOf(p.x_type)});
    Multiply(part);
  }
}

void RowVerbs::MultiplyFew(const PlacedProduct& p) {
  const cuda::RowProduct product = p.ToRowProduct();
  cuda::MultiplyRows(stream_.get(),
                     {.type = p.type, .y_type = p.y_type, .accumulate = p.accumulate},
                     {&product, 1});
}

void RowVerbs::Multiply(const PlacedProduct& p) {
  if (p.n_rows == 0) return;
  const bool are_rows_of_type = p.x_type == RowsOf(p.type);
  const bool reads_blocks = are_rows_of_type && cuda::InQuads(p.ToRowProduct()) &&
                            (p.n_rows <= kFewRows || deterministic_);
  if (HasBlocks(p.type) && !reads_blocks) return MultiplyWidened(p);
  KVL_CHECK(are_rows_of_type);
  if (HasBlocks(p.type) || deterministic_) return MultiplyFew(p);
  MultiplyDense(p);
}

void RowVerbs::Project(const ProductPlan& plan) { Multiply(Resolve(plan)); }

void RowVerbs::MultiplyHeads(std::span<const PlacedProduct> products) {
  if (products.empty()) return;
  const PlacedProduct& first = products.front();
  const bool go_together = std::ranges::all_of(products, [&](const PlacedProduct& p) {
    return p.type == first.type && p.x_type == RowsOf(p.type) && !HasBlocks(p.type) &&
           (p.n_rows <= kFewRowsOfHeads || deterministic_);
  });
  if (!go_together) {
    for (const PlacedProduct& p : products) Multiply(p);
    return;
  }
  std::vector<cuda::RowProduct> together;
  for (const PlacedProduct& p : products) together.push_back(p.ToRowProduct());
  cuda::MultiplyRows(stream_.get(), {.type = first.type, .y_type = first.y_type}, together);
}

// Experts of few rows read their weights as they are, all in one launch.
void RowVerbs::ProjectExperts(const ExpertProductsPlan& plan) {
  std::vector<cuda::RowProduct> together;
  WeightType type = WeightType::kF32;  // of these
  for (const ExpertProductsPlan::Item& item : plan.items) {
    const PlacedProduct p =
        Resolve({.w = item.w,
                 .n_rows = item.n_rows,
                 .x = plan.x + item.first_x * plan.n_in * SizeOf(plan.x_type),
                 .x_stride = plan.n_in,
                 .x_type = plan.x_type,
                 .bias = item.bias,
                 .y = plan.y + item.first_y * plan.n_out * int64_t{sizeof(float)},
                 .y_stride = plan.n_out});
    const bool has_kernel =
        p.x_type == RowsOf(p.type) && (!HasBlocks(p.type) || cuda::InQuads(p.ToRowProduct()));
    const int64_t most = HasBlocks(p.type) ? kFewRows : kFewRowsOfHeads;
    const bool is_alike = together.empty() || p.type == type;
    if (!has_kernel || !is_alike || (p.n_rows > most && !deterministic_)) {
      Multiply(p);
      continue;
    }
    type = p.type;
    together.push_back(p.ToRowProduct());
  }
  cuda::MultiplyRows(stream_.get(), {.type = type}, together);
}

void RowVerbs::ProjectHeads(const HeadProductsPlan& plan) {
  std::vector<PlacedProduct> products;
  for (const HeadProductsPlan::Head& head : plan.heads) {
    products.push_back(Resolve({.w = head.w,
                                .n_rows = plan.n_tokens,
                                .x = head.x,
                                .x_stride = plan.x_stride,
                                .x_type = plan.type,
                                .y = head.y,
                                .y_stride = plan.y_stride,
                                .y_type = plan.type}));
  }
  MultiplyHeads(products);
}

}  // namespace kvlathe
