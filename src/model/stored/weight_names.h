// WeightNames says where the weights of a layer are stored: the names of each family, and its fused
// and transposed tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "model/config.h"
#include "model/stored/weight_tables.h"
#include "model/tensor_source.h"

namespace kvlathe {

// Some output channels of a stored projection y = x W^T + b, of all of its inputs or of some.
struct Projection {
  struct Run {
    int64_t begin, n;  // stored output channels [begin, begin + n)
  };
  std::string tensor;  // its matrix is tensor + ".weight", its bias tensor + ".bias"
  int64_t n_stored = 0;
  int64_t n_in = 0;
  bool is_transposed = false;  // stored [n_in, n_stored] instead of [n_stored, n_in]
  std::vector<Run> runs;       // in the order wanted
  // The inputs that are wanted; none: all of them. The bias belongs to no input.
  std::optional<Range> inputs = std::nullopt;
  // Of a tensor that holds the matrices of n_stacked experts one behind the other, and their biases
  // likewise, that of number stacked_idx; 0: the tensor is the matrix.
  int64_t n_stacked = 0;
  int64_t stacked_idx = 0;
  bool has_bare_name = false;  // the matrix is `tensor`, its bias tensor + "_bias"

  std::string matrix_name() const { return has_bare_name ? tensor : tensor + ".weight"; }
  std::string bias_name() const { return tensor + (has_bare_name ? "_bias" : ".bias"); }

  int64_t n_out() const;
  int64_t first_in() const { return inputs.has_value() ? inputs->begin : 0; }
  // Columns of the matrix that is wanted.
  int64_t n_columns() const { return inputs.has_value() ? inputs->end - inputs->begin : n_in; }
};

// Some numbers of a stored vector.
struct VectorPart {
  std::string name;
  int64_t n_stored = 0;
  int64_t n_rows = 0;                 // it is stored as a matrix of so many rows; 0: as a vector
  std::vector<Projection::Run> runs;  // in the order wanted
};

// The rows in `wanted`, rising, of the matrices of `parts` below each other; parts without any
// stay, empty.
std::vector<Projection> TakeRows(std::vector<Projection> parts, std::span<const Range> wanted);

class WeightNames {
 public:
  // Some files of GPT-2 leave the prefix "transformer." out, and a GGUF file may have Q, K and V in
  // one tensor or in three; the source tells.
  WeightNames(const ModelConfig& config, const TensorSource& source);

  std::string embedding() const;
  std::string position_embedding() const;  // with PositionKind::kLearned
  Projection output_head() const;          // the embedding where they are tied

  // Tensors without ".weight" and ".bias".
  std::string final_norm() const;
  std::string attn_norm(int layer_idx) const;
  std::string ffn_norm(int layer_idx) const;  // not with shared_norm
  // With norms.of_qk: the weights of all heads that have weights of their own, one head after the
  // other, or what heads share.
  std::vector<VectorPart> q_norm(int layer_idx) const;
  std::vector<VectorPart> k_norm(int layer_idx) const;
  // What stands before ".alpha_p", ".alpha_n", ".beta" and ".eps", with MlpKind::kXielu.
  std::string xielu(int layer_idx) const;
  std::string sink_logits(int layer_idx) const;    // with has_sink_logits: [n_heads]
  std::string attn_out_norm(int layer_idx) const;  // with output_norms
  std::string ffn_out_norm(int layer_idx) const;
  // What a norm multiplies by is what is stored plus this.
  float norm_offset() const { return table_.norm_offset; }

  // Matrices made of several parts come one below the other: all heads of Q before those of K, the
  // gate before up.
  std::vector<Projection> qk(int layer_idx) const;
  Projection v(int layer_idx) const;
  Projection o(int layer_idx) const;
  std::vector<Projection> mlp_in(int layer_idx) const;
  Projection mlp_out(int layer_idx) const;

  // Of layers with experts (ModelConfig::has_experts).
  Projection router(int layer_idx) const;  // [n_experts, hidden_dim]
  std::string choice_bias(int layer_idx) const;
  std::vector<Projection> expert_in(int layer_idx, int expert_idx) const;
  Projection expert_out(int layer_idx, int expert_idx) const;
  // The MLP that every token goes through besides, and the row whose product gates it.
  std::vector<Projection> shared_in(int layer_idx) const;
  Projection shared_out(int layer_idx) const;
  std::string shared_router(int layer_idx) const;

 private:
  enum class Role { kQk, kValue };
  std::string Layer(int layer_idx, const char* suffix) const;
  // A matrix of an expert, [n_out, n_in], by its name in ExpertTable.
  Projection OfExpert(int layer_idx, int expert_idx, const char* name, int64_t n_out,
                      int64_t n_in) const;
  // All output channels of a stored [n_out, n_in] matrix (GPT-2: [n_in, n_out]).
  Projection Whole(int layer_idx, const char* suffix, int64_t n_out, int64_t n_in) const;
  Projection FusedQkv(int layer_idx, Role role) const;
  // The rows of heads that rotate, in the order of Hugging Face, from row `begin` of a tensor on.
  std::vector<Projection::Run> RotatingRows(int64_t begin, int n_heads) const;
  Projection RotatingHeads(int layer_idx, const char* suffix, int n_heads) const;

  std::vector<VectorPart> QkNorm(int layer_idx, const char* suffix, int n_heads) const;

  ModelConfig config_;
  WeightTable table_;
};

}  // namespace kvlathe
