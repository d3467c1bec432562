#include "calibration/gradients/output_head.h"

#include <algorithm>
#include <cmath>

namespace kvlathe {
namespace {

constexpr int64_t kSliceTokens = 256;
constexpr int64_t kPieceBytes = int64_t{128} << 20;  // of the matrix of the vocabulary

}  // namespace

template <typename F>
Status OutputHead::ForVocabulary(const F& fn) {
  const Weight& head = weights_->lm_head();
  const int64_t row_bytes = head.n_in() * static_cast<int64_t>(sizeof(float));
  const int64_t n_rows = std::max<int64_t>(64, kPieceBytes / row_bytes / 64 * 64);
  for (int64_t begin = 0; begin < head.n_out(); begin += n_rows) {
    if (begin != matrix_begin_) {
      matrix_begin_ = -1;
      const Range rows = {begin, std::min(head.n_out(), begin + n_rows)};
      KVL_RETURN_IF_ERROR(matrix_.Unpack(head, rows, pool_));
      matrix_begin_ = begin;
    }
    fn(begin);
  }
  return OkStatus();
}

int32_t OutputHead::Draw(double uniform, float* logits, double* log_likelihood) const {
  const int64_t vocab = weights_->config().vocab_size;
  const float cap = weights_->config().logit_cap;
  std::vector<float> slopes(cap != 0 ? vocab : 0);
  for (size_t i = 0; i < slopes.size(); ++i) {
    const float t = std::tanh(logits[i] / cap);
    logits[i] = cap * t;
    slopes[i] = 1 - t * t;
  }
  kernels_->softmax(logits, vocab, 1);
  double total = 0;
  for (int64_t i = 0; i < vocab; ++i) total += logits[i];
  const double wanted = uniform * total;
  double below = 0;
  int64_t drawn = -1, last_possible = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    if (logits[i] > 0) last_possible = i;
    below += logits[i];
    if (drawn < 0 && below > wanted) drawn = i;
  }
  if (drawn < 0) drawn = last_possible;
  *log_likelihood = std::log(static_cast<double>(logits[drawn]));
  for (int64_t i = 0; i < vocab; ++i) logits[i] = -logits[i];
  logits[drawn] += 1;
  for (size_t i = 0; i < slopes.size(); ++i) logits[i] *= slopes[i];
  return static_cast<int32_t>(drawn);
}

Status OutputHead::MakeLogits(int64_t n, const float* normed, float* logits) {
  const ModelConfig& c = weights_->config();
  const Weight& head = weights_->lm_head();
  if (PackedProducts::AreFaster(head.type(), weights_->types().activations, isa_)) {
    KVL_RETURN_IF_ERROR(packed_.Prepare(n * c.hidden_dim, n * c.vocab_size));
    packed_.Run(head, weights_->lm_head_bias().place(), n, normed, logits);
    return OkStatus();
  }
  const float* const bias = weights_->lm_head_bias().data();
  return ForVocabulary([&](int64_t begin) {
    MultiplyRows({.w = &matrix_,
                  .n_rows = n,
                  .from = normed,
                  .from_stride = c.hidden_dim,
                  .to = logits + begin,
                  .to_stride = c.vocab_size},
                 bias == nullptr ? nullptr : bias + begin, pool_);
  });
}

Status OutputHead::RunSlice(std::span<const double> uniform, float* stream, DrawnTokens* drawn) {
  const ModelConfig& c = weights_->config();
  const int64_t hidden = c.hidden_dim, vocab = c.vocab_size, n = std::ssize(uniform);
  const RowNorm norm = norms_.OfStream(weights_->final_norm());
  float* const normed = normed_.as<float>();
  float* const logits = logits_.as<float>();
  Normalise(*kernels_, norm, n, stream, normed);
  KVL_RETURN_IF_ERROR(MakeLogits(n, normed, logits));
  const size_t first = drawn->ids.size();
  drawn->ids.resize(first + n);
  std::vector<double> log_likelihoods(n);
  pool_->Run([&](int worker_id) {
    const Range tokens = ShareOf(n, 1, worker_id, pool_->n_workers());
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
      drawn->ids[first + t] = Draw(uniform[t], logits + t * vocab, &log_likelihoods[t]);
    }
  });
  for (const double x : log_likelihoods) drawn->log_likelihood += x;
  KVL_RETURN_IF_ERROR(ForVocabulary([&](int64_t begin) {
    MultiplyRowsBack({.w = &matrix_,
                      .n_rows = n,
                      .from = logits + begin,
                      .from_stride = vocab,
                      .to = normed,
                      .to_stride = hidden,
                      .accumulate = begin > 0},
                     pool_);
  }));
  pool_->Run([&](int worker_id) {
    const Range tokens = ShareOf(n, 1, worker_id, pool_->n_workers());
    const int64_t at = tokens.begin * hidden;
    NormaliseBack(norm, tokens.end - tokens.begin, stream + at, normed + at, false, stream + at);
  });
  return OkStatus();
}

StatusOr<DrawnTokens> OutputHead::Run(std::span<const double> uniform, float* stream) {
  const ModelConfig& c = weights_->config();
  const int64_t n_slice = std::min<int64_t>(kSliceTokens, std::ssize(uniform));
  const auto bytes_of = [&](int64_t width) {
    return n_slice * width * static_cast<int64_t>(sizeof(float));
  };
  KVL_RETURN_IF_ERROR(normed_.EnsureSize(bytes_of(c.hidden_dim), "gradients of logits"));
  KVL_RETURN_IF_ERROR(logits_.EnsureSize(bytes_of(c.vocab_size), "gradients of logits"));
  DrawnTokens drawn;
  for (size_t begin = 0; begin < uniform.size(); begin += n_slice) {
    const size_t n = std::min<size_t>(n_slice, uniform.size() - begin);
    KVL_RETURN_IF_ERROR(RunSlice(uniform.subspan(begin, n), stream + begin * c.hidden_dim, &drawn));
  }
  return drawn;
}

}  // namespace kvlathe
