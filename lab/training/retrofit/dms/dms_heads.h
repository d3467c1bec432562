// Files of the heads of Dynamic Memory Sparsification: safetensors with
// model.layers.{i}.self_attn.dms_proj_alpha.weight [n_kv_heads, hidden] in BF16, its .bias
// [n_kv_heads] in F32, and model.layers.{i}.self_attn.dms_proj_alpha_norm.weight [hidden] in BF16.
// The metadata dms_window_size, dms_alpha_scale, dms_initial_alpha_offset, dms_alpha_per ("head")
// and dms_separate_alpha ("true") say how decisions follow (training/retrofit/dms/dms_pass.h).
#pragma once

#include <string>

#include "base/status.h"
#include "training/retrofit/decoder.h"
#include "training/retrofit/dms/dms_recipe.h"

namespace kvlathe {

// The heads of a decoder that has some. The file appears whole or not at all.
Status WriteDmsHeads(const Decoder& decoder, const DmsRecipe& recipe, const std::string& path);

// Into a decoder that has heads, which decide as the file's do: an offset that is not the recipe's
// goes into their biases. kInvalidArgument where window or scale are not those of the recipe,
// kDataLoss where shapes are not those of the decoder.
Status ReadDmsHeads(const std::string& path, const DmsRecipe& recipe, Decoder* decoder);

}  // namespace kvlathe
