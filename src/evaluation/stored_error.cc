#include "evaluation/stored_error.h"

#include <algorithm>

#include "analysis/statistics/spectrum.h"
#include "evaluation/quality.h"
#include "evaluation/stored_rows.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {
namespace {

// Sums over runs and heads.
class ErrorSum {
 public:
  explicit ErrorSum(int head_dim) : head_dim_(head_dim), energy_of_first_(head_dim) {}

  void BeginRun() { gram_.assign(int64_t{head_dim_} * head_dim_, 0.0); }
  // One row of the run: as computed, and as stored.
  void Add(const float* row, const std::vector<float>& stored) {
    std::vector<double> error(head_dim_);
    for (int c = 0; c < head_dim_; ++c) {
      error[c] = double{row[c]} - stored[c];
      rows_ += double{row[c]} * row[c];
      errors_ += error[c] * error[c];
    }
    for (int i = 0; i < head_dim_; ++i) {
      for (int j = 0; j < head_dim_; ++j) gram_[i * head_dim_ + j] += error[i] * error[j];
    }
  }
  void EndRun() {
    double sum = 0;
    const Spectrum spectrum = DecomposeGram(gram_, head_dim_);
    for (int r = 0; r < head_dim_; ++r) {
      sum += spectrum.singular_values[r] * spectrum.singular_values[r];
      energy_of_first_[r] += sum;
    }
  }
  StoredError Result() const {
    StoredError result{rows_ > 0 ? errors_ / rows_ : 0, energy_of_first_};
    for (double& share : result.shares) share = errors_ > 0 ? share / errors_ : 1;
    return result;
  }

 private:
  int head_dim_;
  double rows_ = 0, errors_ = 0;
  std::vector<double> gram_;  // of the errors of the run
  std::vector<double> energy_of_first_;
};

Status CheckComparable(const Model& model) {
  const CacheLayout& layout = model.layout();
  if (layout.seal.has_value() && !FactsOf(layout.seal->format.codec).brings_bases &&
      !model.has_basis() && !layout.retention.has_value() && !layout.HasWindow()) {
    return OkStatus();
  }
  return Error(StatusCode::kInvalidArgument,
               "stored errors are measured of a quantizer, with or without repair, but without a "
               "basis, hadamard and retention");
}

LayerErrors ErrorsOf(const Model& model, const SequenceCache& cache, const ComputedRows& rows,
                     int layer_idx) {
  const CacheLayout& layout = model.layout();
  ErrorSum k(layout.head_dim), v(layout.head_dim);
  for (int g = 0; g < layout.n_kv_heads; ++g) {
    StoredRows reader(model, cache, layer_idx, g);
    for (const SealedRun& run : cache.head(layer_idx, g).runs()) {
      k.BeginRun();
      v.BeginRun();
      for (int b = 0; b < run.n_blocks; ++b) {
        reader.Read(run, b);
        const int64_t first = layout.n_sink + int64_t{run.first_block + b} * kBlockSize;
        for (int t = 0; t < kBlockSize; ++t) {
          k.Add(rows.key(layer_idx, first + t) + g * layout.head_dim, reader.Key(t));
          v.Add(rows.value(layer_idx, first + t) + g * layout.head_dim, reader.Value(t));
        }
      }
      k.EndRun();
      v.EndRun();
    }
  }
  return {k.Result(), v.Result()};
}

}  // namespace

StatusOr<std::vector<LayerErrors>> MeasureStoredErrors(Model* model,
                                                       std::span<const int32_t> tokens,
                                                       int64_t kv_budget_bytes) {
  const CacheLayout& layout = model->layout();
  KVL_RETURN_IF_ERROR(CheckComparable(*model));
  BlockPool pool(kv_budget_bytes, &model->machine().memory());
  SequenceCache cache(&layout, &pool);
  ComputedRows rows(layout, layout.seal->format.seals_keys_before_rope());
  KVL_RETURN_IF_ERROR(Prefill(model, &cache, tokens, &rows));
  if (tokens.empty() || cache.head(0, 0).runs().empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "a prompt of {} tokens is not sealed yet; {} are needed at least", tokens.size(),
                 layout.n_sink + kBlockSize);
  }
  std::vector<LayerErrors> layers;
  for (int l = 0; l < layout.n_layers; ++l) layers.push_back(ErrorsOf(*model, cache, rows, l));
  return layers;
}

}  // namespace kvlathe
