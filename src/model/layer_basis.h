// A LayerBasis is what a basis adds to a layer if it is not folded into weights.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/bases/basis.h"
#include "base/status.h"
#include "machine/machine.h"
#include "machine/machine_buffer.h"
#include "machine/residents.h"
#include "model/number_types.h"
#include "tensor/dtype.h"

namespace kvlathe {

// The way from latents to keys, and what the host knows of it.
struct LatentsOfHead {
  Resident<LatentMapId> map;
  int key_dim = 0;  // LatentMapView::head_dim
  int64_t n_bytes = 0;
};

// All vectors are empty if the basis is folded. If there is none there may be offsets of keys alone
// (docs/quantization.md, Biases of keys).
struct LayerBasis {
  // "Heads" are KV heads of the cache but for `query` and `output`, which are the model's.
  // D^T [rank_k, head_dim] per KV head; none with latents.
  std::vector<Weight> query;
  std::vector<Weight> key;               // E^T [rank_k, row] per KV head; empty: same as query
  std::vector<FloatTable> key_offset;    // [row] per KV head, or empty
  std::vector<FloatTable> turning_mean;  // likewise (HeadBasis::turning_mean)
  std::vector<LatentsOfHead> latents;    // per KV head, where keys are stored before RoPE
  // B^T [head_dim, heads_per_latent * rank_v] per KV head, where heads share latents or a map, and
  // where nothing else maps values.
  std::vector<Weight> output;
  // A^T [rank_v, heads_per_latent * row] per KV head, where nothing else maps values.
  std::vector<Weight> value;
  // What makes rows of the model of those of blocks (RebuildIds), per KV head of the model: D, of
  // keys, and the pseudo-inverses of `output`. Empty where it would save no time.
  std::vector<Weight> rebuilt_key, rebuilt_output;

  bool empty() const { return key.empty(); }
  // The map of keys. Where heads share latents, it takes the keys of all of them side by side.
  const Weight& KeyMap(int kv_head_idx) const {
    return key[kv_head_idx].n_out() > 0 ? key[kv_head_idx] : query[kv_head_idx];
  }
  int64_t n_bytes() const;
};

// Whether the values of a layer change on their way to the cache: some head maps them or takes an
// offset off.
bool MapsValues(const ModelBasis& basis, int layer_idx);

// The maps of values and of outputs stay apart where rows come from outside, so that there are no
// weights to fold them into. kResourceExhausted when the system has no memory.
StatusOr<LayerBasis> PackLayerBasis(const ModelBasis& basis, int layer_idx,
                                    const NumberTypes& types, Machine* machine,
                                    bool has_weights = true);

}  // namespace kvlathe
