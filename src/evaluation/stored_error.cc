#include "evaluation/stored_error.h"

#include "analysis/statistics/error_spectrum.h"
#include "evaluation/quality.h"
#include "evaluation/stored_rows.h"
#include "kv/blocks/sequence_cache.h"

namespace kvlathe {
namespace {

// Sums over runs and heads.
class ErrorSum {
 public:
  explicit ErrorSum(int head_dim) : error_(head_dim), spectrum_(head_dim) {}

  void BeginRun() { spectrum_.Begin(); }
  // One row of the run: as computed, and as stored.
  void Add(const float* row, const std::vector<float>& stored) {
    for (size_t c = 0; c < error_.size(); ++c) {
      error_[c] = double{row[c]} - stored[c];
      rows_ += double{row[c]} * row[c];
    }
    spectrum_.Add(error_);
  }
  void EndRun() { spectrum_.End(); }
  StoredError Result(WhiteNoise* noise) const {
    return {rows_ > 0 ? spectrum_.squares() / rows_ : 0, spectrum_.Shares(),
            spectrum_.WhiteShares(noise)};
  }

 private:
  std::vector<double> error_;
  double rows_ = 0;
  ErrorSpectrum spectrum_;
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
                     int layer_idx, WhiteNoise* noise) {
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
  return {k.Result(noise), v.Result(noise)};
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
  WhiteNoise noise(layout.head_dim);
  for (int l = 0; l < layout.n_layers; ++l) {
    layers.push_back(ErrorsOf(*model, cache, rows, l, &noise));
  }
  return layers;
}

}  // namespace kvlathe
