// A merging report shows what a cache merges, as JSON and as pictures.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "evaluation/merging/merged_text.h"

namespace kvlathe {

struct ModelMerging {
  std::string name;               // what pictures call the model
  std::vector<MergedText> texts;  // at least one
};

// {"texts", "tokens" of each, "compression", "compression_by_head" [layers][KV heads],
// "compression_by_length", "alpha_by_position"}.
nlohmann::ordered_json MergingJson(const ModelMerging& merging);

// The head whose compression is nearest to that of all heads: layer_idx * n_kv_heads + kv_head_idx.
int TypicalHead(const ModelMerging& merging);

// The first text by the entries of one head.
struct SegmentedHead {
  int head = 0;
  std::vector<std::string> pieces;  // text of each token, UTF-8
};
// {"layer", "kv_head", "entries", "begins": the position at which each entry begins}.
nlohmann::ordered_json SegmentsJson(const ModelMerging& merging, int head);

struct Figure {
  std::string file_name;
  std::string svg;
};
// Models of one shape, at least one, in the order in which they were trained; segments are those of
// the last.
std::vector<Figure> DrawMerging(std::span<const ModelMerging> models,
                                const SegmentedHead& segments);

}  // namespace kvlathe
