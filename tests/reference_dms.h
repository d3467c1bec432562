// Dynamic Memory Sparsification is done here literally: entry by entry, in double, after every
// token (docs/methods/dms.md). It shares no code with the engine.
#pragma once

#include <optional>
#include <vector>

#include "reference_decoder.h"

namespace kvlathe::testing {

struct ReferenceDms {
  int window = 20;
  double scale = 100, offset = 5;
  bool is_per_head = true;
  bool has_bias = false;
  // A channel of queries decides, of which the model has the place.
  std::optional<ReferenceQueryChannel> query_channel = std::nullopt;
  bool decides_of_itself = false;
  // When what may leave leaves.
  int run = 256, interval = 64;
  int n_sink = 0, n_prompt = 0;
};

// For ReferenceLogits: what leaves after the newest token of a layer has attended.
class SweepLiterally {
 public:
  SweepLiterally(const ReferenceDms& method, const ReferenceModel& model)
      : m_(method),
        model_(model),
        may_leave_(model.n_layers, std::vector<std::vector<bool>>(model.n_kv_heads)) {}

  void operator()(int layer_idx, ReferenceRows* rows);

  // The share of decisions of a layer's heads that let a position go.
  double ShareOf(int layer_idx) const;

 private:
  bool IsSweep(int n_tokens) const;
  // What the newest token decides, by KV head.
  std::vector<double> Decisions(int layer_idx, const ReferenceRows& rows) const;

  ReferenceDms m_;
  const ReferenceModel& model_;
  std::vector<std::vector<std::vector<bool>>> may_leave_;  // [layer][kv head][position]
};

}  // namespace kvlathe::testing
