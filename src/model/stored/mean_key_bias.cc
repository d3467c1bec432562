#include "model/stored/mean_key_bias.h"

#include <utility>
#include <variant>

#include "model/rope.h"

namespace kvlathe {
namespace {

// Whether keys of such a cache are stored less their mean bias: where they are sealed in codes,
// turned, and no basis comes before. Adding one vector to all keys of a head changes no probability
// of its attention, and a scale that channels share is not taken up by a few of them that hardly
// differ from token to token (docs/decisions/mean-key-bias-subtracted.md).
bool StoresKeysLessMeanBias(const ModelConfig& config, const CacheLayout& layout) {
  if (config.norms.of_qk || config.dmc.has_value()) return false;
  if (config.rope_dim() == 0 || !layout.seal.has_value() || FactsOf(layout.keys).are_mapped) {
    return false;
  }
  const Codec& codec = layout.seal->format.codec;
  return std::holds_alternative<UniformCodec>(codec) || std::holds_alternative<TableCodec>(codec);
}

}  // namespace

StatusOr<std::vector<FloatTable>> MeanKeyBiases(const ModelConfig& config,
                                                const CacheLayout& layout, int layer_idx,
                                                std::span<const float> key_biases, Device* memory) {
  std::vector<FloatTable> offsets;
  if (key_biases.empty() || !StoresKeysLessMeanBias(config, layout)) return offsets;
  const int64_t d = config.head_dim;
  for (int g = 0; g < config.n_kv_heads; ++g) {
    KVL_ASSIGN_OR_RETURN(FloatTable offset,
                         FloatTable::Make(memory,
                                          MeanTurned(key_biases.subspan(g * d, d),
                                                     config.attention.of(layer_idx).rope,
                                                     config.rope_dim(), config.max_seq_len),
                                          "offsets of keys"));
    offsets.push_back(std::move(offset));
  }
  return offsets;
}

}  // namespace kvlathe
