#include "model/model_facts.h"

namespace kvlathe {

ModelFacts FactsOf(const ModelConfig& config, DType row_type, const RankGrid& grid) {
  return {.n_layers = config.n_layers,
          .n_kv_heads = config.n_kv_heads,
          .head_dim = config.head_dim,
          .rope_dim = config.rope_dim(),
          .max_seq_len = config.max_seq_len,
          .windows = config.attention.Windows(config.n_layers),
          .has_dmc = config.dmc.has_value(),
          .dms_window = config.dms.has_value() ? config.dms->window : 0,
          .has_sink_logits = config.has_sink_logits,
          .scores_are_absolute = config.scores_are_absolute(),
          .row_type = row_type,
          .tensor_ranks = grid.n_tensor_ranks,
          .pipeline_stages = grid.n_stages};
}

}  // namespace kvlathe
