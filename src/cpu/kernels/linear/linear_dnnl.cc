#include "cpu/kernels/linear/linear_dnnl.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <dnnl.hpp>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tensor/buffer.h"

namespace kvlathe {
namespace {

using dnnl::matmul;
using dnnl::memory;

// oneDNN's OpenMP team would spin beside our pool: one thread per call, and the caller's setting
// back afterwards.
class OneOmpThread {
 public:
  OneOmpThread() : n_threads_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneOmpThread() { omp_set_num_threads(n_threads_); }
  OneOmpThread(const OneOmpThread&) = delete;
  OneOmpThread& operator=(const OneOmpThread&) = delete;

 private:
  int n_threads_;
};

struct Shape {
  DType x_type = DType::kBf16;
  DType y_type = DType::kF32;
  int64_t n_rows = 0;
  int64_t n_out = 0;
  int64_t n_in = 0;
  int64_t x_stride = 0;
  int64_t w_stride = 0;
  int64_t y_stride = 0;
  bool has_bias = false;
  bool accumulate = false;

  friend bool operator==(const Shape&, const Shape&) = default;
};

Shape ShapeOf(const LinearPart& part) {
  return {.x_type = part.x_type,
          .y_type = part.y_type,
          .n_rows = part.n_rows,
          .n_out = part.n_out,
          .n_in = part.n_in,
          .x_stride = part.x_stride,
          .w_stride = part.w_stride,
          .y_stride = part.y_stride,
          .has_bias = part.bias != nullptr,
          .accumulate = part.accumulate};
}

memory::data_type DnnlType(DType dtype) {
  return dtype == DType::kBf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

matmul::primitive_desc DescribeMatmul(const Shape& s, const dnnl::engine& engine) {
  const auto type = DnnlType(s.x_type);
  const memory::desc x({s.n_rows, s.n_in}, type, memory::dims{s.x_stride, 1});
  const memory::dims w_dims = {s.n_in, s.n_out};
  const memory::desc w = s.x_type == DType::kBf16
                             ? memory::desc(w_dims, type, memory::format_tag::BA16a64b2a)
                             : memory::desc(w_dims, type, memory::dims{s.w_stride, 1});
  const memory::desc bias =
      s.has_bias ? memory::desc({1, s.n_out}, memory::data_type::f32, memory::format_tag::ab)
                 : memory::desc();
  const memory::desc y({s.n_rows, s.n_out}, DnnlType(s.y_type), memory::dims{s.y_stride, 1});
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.accumulate) {
    dnnl::post_ops post_ops;
    post_ops.append_sum();
    attr.set_post_ops(post_ops);
  }
#if DNNL_VERSION_MAJOR >= 3
  return matmul::primitive_desc(engine, x, w, bias, y, attr);
#else
  return matmul::primitive_desc(matmul::desc(x, w, bias, y), attr, engine);
#endif
}

// A primitive with the memory objects of its arguments; their addresses are set at every call.
struct Product {
  Shape shape;
  int64_t last_use = 0;
  dnnl::primitive primitive;  // empty: oneDNN has only its reference for this shape
  std::unordered_map<int, memory> args;
  int64_t scratchpad_bytes = 0;
};

Product MakeProduct(const Shape& shape, const dnnl::engine& engine) {
  Product product;
  product.shape = shape;
  const matmul::primitive_desc pd = DescribeMatmul(shape, engine);
  // The reference is a thousand times slower than any other way.
  if (std::string_view(pd.impl_info_str()).starts_with("ref")) return product;
  const auto add = [&](int arg, const memory::desc& desc) {
    product.args.emplace(arg, memory(desc, engine, DNNL_MEMORY_NONE));
  };
  add(DNNL_ARG_SRC, pd.src_desc());
  add(DNNL_ARG_WEIGHTS, pd.weights_desc());
  if (shape.has_bias) add(DNNL_ARG_BIAS, pd.bias_desc());
  add(DNNL_ARG_DST, pd.dst_desc());
  add(DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc());
  product.scratchpad_bytes = static_cast<int64_t>(pd.scratchpad_desc().get_size());
  product.primitive = matmul(pd);
  return product;
}

// A model has about ten shapes of weights, and a server a few row counts at a time. A miss costs
// about 0.4 ms.
constexpr size_t kMaxProducts = 128;

// Rows at a time that pass through scratch memory, so that they stay in L2.
constexpr int64_t kScratchRows = 128;

}  // namespace

struct DnnlLinear::State {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::vector<Product> products;
  int64_t n_uses = 0;
  Buffer scratchpad;
  Buffer dense_x;
  Buffer dense_y;

  Product& FindProduct(const Shape& shape) {
    ++n_uses;
    for (Product& p : products) {
      if (p.shape == shape) {
        p.last_use = n_uses;
        return p;
      }
    }
    Product made{.shape = shape};
    try {
      made = MakeProduct(shape, engine);
    } catch (const dnnl::error&) {  // no implementation: remembered as no primitive
    }
    made.last_use = n_uses;
    if (products.size() < kMaxProducts) return products.emplace_back(std::move(made));
    const auto oldest =
        std::min_element(products.begin(), products.end(),
                         [](const auto& a, const auto& b) { return a.last_use < b.last_use; });
    *oldest = std::move(made);
    return *oldest;
  }

  bool RunInPlace(const LinearPart& part) {
    Product& product = FindProduct(ShapeOf(part));
    if (!product.primitive) return false;
    if (!scratchpad.EnsureSize(product.scratchpad_bytes, "a matrix product").ok()) return false;
    const auto set = [&](int arg, const void* data) {
      product.args.at(arg).set_data_handle(const_cast<void*>(data));
    };
    set(DNNL_ARG_SRC, part.x);
    set(DNNL_ARG_WEIGHTS, part.w);
    if (part.bias != nullptr) set(DNNL_ARG_BIAS, part.bias);
    set(DNNL_ARG_DST, part.y);
    set(DNNL_ARG_SCRATCHPAD, scratchpad.data());
    try {
      product.primitive.execute(stream, product.args);
      stream.wait();
    } catch (const dnnl::error&) {  // out of memory before it computes
      return false;
    }
    return true;
  }

  // A panel of rows with x and y copied to and from dense memory where they are not dense.
  bool RunPanel(LinearPart part, bool copy_x, bool copy_y) {
    if (copy_x) {
      const int64_t row_bytes = part.n_in * SizeOf(part.x_type);
      if (!dense_x.EnsureSize(part.n_rows * row_bytes, "rows of a matrix product").ok()) {
        return false;
      }
      const std::byte* from = static_cast<const std::byte*>(part.x);
      for (int64_t r = 0; r < part.n_rows; ++r) {
        std::memcpy(dense_x.data() + r * row_bytes, from + r * part.x_stride * SizeOf(part.x_type),
                    row_bytes);
      }
      part.x = dense_x.data();
      part.x_stride = part.n_in;
    }
    if (!copy_y) return RunInPlace(part);
    const int64_t n_bytes = part.n_rows * part.n_out * SizeOf(DType::kF32);
    if (!dense_y.EnsureSize(n_bytes, "rows of a matrix product").ok()) return false;
    LinearPart dense = part;
    dense.y = dense_y.data();
    dense.y_stride = part.n_out;
    dense.y_type = DType::kF32;
    dense.accumulate = false;
    if (!RunInPlace(dense)) return false;
    StoreRowsAvx2({.from = dense_y.as<float>(),
                   .n_rows = part.n_rows,
                   .n_out = part.n_out,
                   .y = part.y,
                   .y_stride = part.y_stride,
                   .y_type = part.y_type,
                   .accumulate = part.accumulate});
    return true;
  }
};

DnnlLinear::DnnlLinear() : state_(std::make_unique<State>()) {}
DnnlLinear::~DnnlLinear() = default;

bool DnnlLinear::Run(const LinearPart& part) {
  const OneOmpThread one_thread;
  // oneDNN 2 runs BF16 matmul with strides between rows through its reference only, and has no F32
  // product with a BF16 result.
  const bool is_bf16 = part.x_type == DType::kBf16;
  const bool copy_x = is_bf16 && part.x_stride != part.n_in && part.n_rows > 1;
  const bool copy_y =
      is_bf16 ? part.y_stride != part.n_out && part.n_rows > 1 : part.y_type != DType::kF32;
  if (!copy_x && !copy_y) {
    LinearPart dense = part;
    if (part.n_rows == 1) {
      dense.x_stride = part.n_in;
      dense.y_stride = part.n_out;
    }
    return state_->RunInPlace(dense);
  }
  for (int64_t row = 0; row < part.n_rows; row += kScratchRows) {
    LinearPart panel = part;
    panel.n_rows = std::min(kScratchRows, part.n_rows - row);
    panel.x = static_cast<const std::byte*>(part.x) + row * part.x_stride * SizeOf(part.x_type);
    panel.y = static_cast<std::byte*>(part.y) + row * part.y_stride * SizeOf(part.y_type);
    if (state_->RunPanel(panel, copy_x, copy_y)) continue;
    if (row == 0) return false;
    // Earlier panels may have been added to y already.
    is_bf16 ? MultiplyBf16Avx2(panel) : MultiplyF32Avx2(panel);
  }
  return true;
}

}  // namespace kvlathe
