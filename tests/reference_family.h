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
// W x + b for a stored [n_out, n_in] matrix; the bias is used where it exists.
Vector Project(const ReferenceModel& m, const std::string& name, const Vector& x);

// Heads one after the other. Channels that turn together are half of what turns apart, also where a
// family has them side by side: that is how caches store keys.
struct Qkv {
  Vector q, k, v;
};

// The input of a block's attention or MLP, and its parts. `layer` is the layer's prefix with a dot.
std::string LayerPrefix(const ReferenceModel& m, int layer_idx);
Vector Embed(const ReferenceModel& m, int id, int position);
Vector AttentionNorm(const ReferenceModel& m, const std::string& layer, const Vector& x);
// The MLP's input, from the stream before and after attention was added to it.
Vector MlpNorm(const ReferenceModel& m, const std::string& layer, const Vector& before,
               const Vector& after);
Qkv ProjectQkv(const ReferenceModel& m, const std::string& layer, const Vector& x);
// The row of the stored matrix that makes row i of Qkv::k.
int StoredRow(const ReferenceModel& m, int i);
// [head_dim]: what multiplies queries behind RoPE, where norms of queries and keys stand behind it
// (Hunyuan): as turning keeps a norm, rows are normalised before it, and what multiplies a query
// and what multiplies a key multiplies the query. Empty: nothing does.
Vector TurnedQueryWeights(const ReferenceModel& m, const std::string& layer);
Vector ProjectOutput(const ReferenceModel& m, const std::string& layer, const Vector& x);
// What attention adds to the stream: its output as projected, or the norm of that.
Vector AddedByAttention(const ReferenceModel& m, const std::string& layer, const Vector& x);
Vector Mlp(const ReferenceModel& m, const std::string& layer, const Vector& x);
Vector Logits(const ReferenceModel& m, const Vector& x);

}  // namespace kvlathe::testing
