// These are the facts about a model that a plan depends on.
#pragma once

#include <vector>

#include "tensor/dtype.h"

namespace kvlathe {

struct ModelFacts {
  int n_layers = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int rope_dim = 0;          // channels of a head that rotate; 0: positions are learned
  int max_seq_len = 0;       // the full context, at which a promised ratio holds
  std::vector<int> windows;  // AttentionLayers::Windows: [n_layers], empty where no layer has one
  bool has_dmc = false;      // it was taught what to merge (Dynamic Memory Compression)
  int dms_window = 0;  // positions that always stay where it was taught what to drop (DMS); 0: not
  // A sink logit takes its share of the probabilities of attention, which add up to less than 1.
  bool has_sink_logits = false;
  // Attention changes where all scores of a query get the same number (sink logits, caps).
  bool scores_are_absolute = false;
  DType row_type = DType::kBf16;  // of the rows of keys and values
  // Among how many processes the KV heads of every layer are divided (DivideHeads), and into how
  // many stages the layers (DivideLayers).
  int tensor_ranks = 1;
  int pipeline_stages = 1;
};

}  // namespace kvlathe
