// Rows of the tokens of a window, and their products with the matrices of a layer, forwards and
// back.
#pragma once

#include <cstdint>

#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"
#include "calibration/gradients/products.h"
#include "model/weights.h"
#include "tensor/buffer.h"

namespace kvlathe {

// Rows of one kind, [n_tokens, width] F32.
class TokenRows {
 public:
  Status Prepare(int64_t n_tokens, int64_t width);
  float* data() { return values_.as<float>(); }
  int64_t width() const { return width_; }

 private:
  Buffer values_;
  int64_t width_ = 0;
};

// Which ways of a layer somebody wants to go.
enum class PassWays { kForward, kBoth };

// What a product adds, [n_out] F32: on the host and on the machine. Null: nothing.
struct RowBias {
  const float* values = nullptr;
  ObjectPlace place;

  RowBias() = default;
  // n_before numbers of the table belong to others.
  explicit RowBias(const FloatTable& table, int64_t n_before = 0) {
    if (table.empty()) return;
    values = table.data() + n_before;
    place = table.place() + n_before * static_cast<int64_t>(sizeof(float));
  }
};

// A matrix of a layer, as the machine has it and in F32 where a product takes it so.
struct LayerMatrix {
  const Weight* packed = nullptr;
  FloatMatrix values;
};

// Products of a window's rows. Not for concurrent use.
class LayerProducts {
 public:
  // Both outlive this.
  LayerProducts(const ModelWeights* weights, ThreadPool* pool, Isa isa)
      : weights_(weights), pool_(pool), isa_(isa), packed_(&weights->machine(), pool) {}

  // Makes room for rows of up to `widest` numbers of so many tokens.
  Status Prepare(int64_t n_tokens, int64_t widest);
  // Unpacks what `ways` needs of a matrix.
  Status Load(const Weight& weight, PassWays ways, LayerMatrix* to);
  void Multiply(const LayerMatrix& w, const FloatTable& bias, TokenRows* from, TokenRows* to) {
    MultiplySome(w, RowBias(bias), n_tokens_, from->data(), to->data());
  }
  // From the gradient with respect to what Multiply makes that with respect to its rows, which
  // takes the place of what is in `to` or is added to it.
  void MultiplyBack(const LayerMatrix& w, const float* from, TokenRows* to, bool accumulate) {
    MultiplySomeBack(w, n_tokens_, from, to->data(), accumulate);
  }
  // The same of n_rows dense rows, at most as many as there are tokens.
  void MultiplySome(const LayerMatrix& w, const RowBias& bias, int64_t n_rows, const float* from,
                    float* to);
  void MultiplySomeBack(const LayerMatrix& w, int64_t n_rows, const float* from, float* to,
                        bool accumulate);

  int64_t n_tokens() const { return n_tokens_; }
  ThreadPool* pool() const { return pool_; }
  // fn(Range) on all workers that have tokens.
  template <typename F>
  void ForTokens(const F& fn) {
    pool_->Run([&](int worker_id) {
      const Range tokens = ShareOf(n_tokens_, 1, worker_id, pool_->n_workers());
      if (tokens.begin < tokens.end) fn(tokens);
    });
  }

 private:
  bool TakesPacked(const Weight& w) const {
    return PackedProducts::AreFaster(w.type(), weights_->types().activations, isa_);
  }

  const ModelWeights* weights_;
  ThreadPool* pool_;
  Isa isa_;
  PackedProducts packed_;
  int64_t n_tokens_ = 0;
};

}  // namespace kvlathe
