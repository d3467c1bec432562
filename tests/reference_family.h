// Families differ in the literal decoder by the projections around attention.
#pragma once

#include <string>
#include <vector>

#include "reference_decoder.h"

namespace kvlathe::testing {

using Vector = std::vector<double>;

const Vector& Tensor(const ReferenceModel& m, const std::string& name);
Vector Slice(const Vector& x, int index, int width);
double Dot(const Vector& a, const Vector& b);

struct Qkv {
  Vector q, k, v;  // heads one after the other
};

// The input of a block's attention or MLP, and its parts. `layer` is the layer's prefix with a dot.
std::string LayerPrefix(const ReferenceModel& m, int layer_idx);
Vector Embed(const ReferenceModel& m, int id, int position);
Vector AttentionNorm(const ReferenceModel& m, const std::string& layer, const Vector& x);
// The MLP's input, from the stream before and after attention was added to it.
Vector MlpNorm(const ReferenceModel& m, const std::string& layer, const Vector& before,
               const Vector& after);
Qkv ProjectQkv(const ReferenceModel& m, const std::string& layer, const Vector& x);
Vector ProjectOutput(const ReferenceModel& m, const std::string& layer, const Vector& x);
// What attention adds to the stream: its output as projected, or the norm of that.
Vector AddedByAttention(const ReferenceModel& m, const std::string& layer, const Vector& x);
Vector Mlp(const ReferenceModel& m, const std::string& layer, const Vector& x);
Vector Logits(const ReferenceModel& m, const Vector& x);

}  // namespace kvlathe::testing
