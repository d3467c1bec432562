// A ModelConfig says what a model is, read from config.json of a Hugging Face model and checked.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvlathe {

// How positions become angles. Angle of pair i at position p: p * frequency_i, with
// frequency_i = theta^(-2i / rope_dim) changed by the scaling below.
struct RopeConfig {
  enum class Scaling {
    kNone,
    kLinear,    // frequency / factor (position interpolation)
    kLlama3,    // Llama 3.1: long wavelengths / factor, short ones unchanged, smooth in between
    kLongRope,  // Phi-3: frequency / a factor of each pair's own, rotations scaled as a whole
  };
  Scaling scaling = Scaling::kNone;
  double theta = 10000;
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_position = 8192;
  // kLongRope, [rope_dim / 2] each: for contexts up to original_max_position, and for longer ones.
  std::vector<double> short_factors;
  std::vector<double> long_factors;
  bool uses_long_factors = false;
  double amplitude = 1;  // multiplies rotated queries and keys

  // One line that identifies the angles, for calibration files.
  std::string Describe() const;
};

// What the attention of a layer sees, and how positions turn its queries and keys.
struct AttentionKind {
  RopeConfig rope;
  int window = 0;  // a query sees the last `window` positions, its own counted; 0: all
};

// The attention of every layer. Most models have one kind; in others layers with a window take
// turns with layers that see everything.
struct AttentionLayers {
  std::vector<AttentionKind> kinds = std::vector<AttentionKind>(1);
  std::vector<int> kind_of_layer;  // [n_layers], indices into `kinds`; empty: all are the first

  int kind_idx(int layer_idx) const { return kind_of_layer.empty() ? 0 : kind_of_layer[layer_idx]; }
  const AttentionKind& of(int layer_idx) const { return kinds[kind_idx(layer_idx)]; }
  bool HasWindow() const;
  // [n_layers]; empty where no layer has a window.
  std::vector<int> Windows(int n_layers) const;
};

enum class PositionKind {
  kRope,
  kLearned,  // a row of a table is added to the embedding; nothing rotates (GPT-2)
};
enum class NormKind {
  kRms,    // x / sqrt(mean(x^2) + eps) * weight
  kLayer,  // mean and variance, weight and bias
};
enum class MlpKind {
  kSwiglu,    // silu(gate x) * (up x)
  kGeglu,     // GELU's tanh approximation of (gate x), times (up x)
  kGelu,      // gelu(up x)
  kGeluTanh,  // the same with GELU's tanh approximation
};
// How tensors are named and which of them are fused or transposed (model/weight_names.h).
enum class WeightLayout {
  kLlama,
  kGpt2,
  kPhi3,
  kFalcon,
  kGemma,      // as kLlama, with more norms, whose weights are stored less one
  kGguf,       // the names of GGUF, rows as Hugging Face has them
  kGgufPairs,  // the same, but rows of W_Q and W_K that rotate together stand side by side
};

// A model retrofitted with Dynamic Memory Compression (arXiv 2403.09636; docs/methods/dmc.md):
// before RoPE one channel of each key says whether its position joins the entry before it, and the
// same channel of the queries how much it counts there. It takes no part in attention.
struct DmcConfig {
  bool is_last = true;      // channel head_dim - 1, as in the released code; or 0 (paper)
  float offset = 5;         // joins: k - offset > 0
  float weight_offset = 5;  // counts: sigmoid(q + weight_offset) + epsilon
  float epsilon = 0.0078125f;
  bool zeroes_after_rope = true;  // what RoPE turned into the channel goes as well
};

// A model that was taught which keys will not be needed (Dynamic Memory Sparsification, arXiv
// 2506.05345; docs/methods/dms.md). For each KV head a number says at a position whether the one
// before it may leave: scale * number - offset > 0. It takes no part in attention.
struct DmsConfig {
  // The number is the last channel of the first query of the KV head, normalised where queries are
  // and before RoPE. It is 0 in that query from then on, under every cache.
  struct QueryChannel {
    bool zeroes_after_rope = true;  // what RoPE turned into the channel goes as well
  };

  int window = 512;  // positions further back than this are not seen once they may leave
  float scale = 100;
  float offset = 5;
  bool is_per_head = true;  // or the first head of a layer decides for all of them
  // Without one, the number is a small product with the normalised residual stream, as it is
  // before the layer's first norm.
  std::optional<QueryChannel> query_channel;
  bool decides_of_itself = false;  // a position says it of itself, not of the one before
};

// What is normalised, and how.
struct NormConfig {
  NormKind kind = NormKind::kRms;  // of what attention and the MLP read, and of the last stream
  float eps = 1e-5f;
  // Queries and keys of each head are normalised (RMS) before RoPE, with weights that all heads of
  // a layer share. Where calibration, bases and caches speak of a row before RoPE, it is
  // normalised.
  bool of_qk = false;
  // What attention and the MLP put out is normalised (RMS) before it is added to the stream.
  bool of_outputs = false;
};

// Which products add a bias.
struct BiasConfig {
  bool qkv = false;
  bool o = false;
  bool mlp = false;
};

struct ModelConfig {
  std::string model_type;  // "llama", "qwen2", ...
  int n_layers = 0;
  int hidden_dim = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int ffn_dim = 0;
  int vocab_size = 0;
  int max_seq_len = 0;
  NormConfig norms;
  PositionKind positions = PositionKind::kRope;
  AttentionLayers attention;
  double rotary_fraction = 1;  // of head_dim; channels behind it do not rotate
  MlpKind mlp = MlpKind::kSwiglu;
  float embedding_scale = 1;  // multiplies the rows of the embedding
  // Multiplies queries, for a model whose scores are not divided by sqrt(head_dim); only models
  // with norms.of_qk may have one.
  float query_scale = 1;
  // Attention and MLP read the same residual stream and both add to it (Falcon).
  bool parallel_block = false;
  // The MLP reads what attention reads, so there is no second norm; only with parallel_block.
  bool shared_norm = false;
  WeightLayout layout = WeightLayout::kLlama;
  bool tie_word_embeddings = false;
  BiasConfig biases;
  std::optional<DmcConfig> dmc;
  std::optional<DmsConfig> dms;
  int bos_id = -1;           // -1: none
  std::vector<int> eos_ids;  // config.json and generation_config.json together

  int gqa_group() const { return n_heads / n_kv_heads; }
  // Channels of a head that rotate, an even number.
  int rope_dim() const;
  // Rows of the first matrix of the MLP: gate and up, or up alone.
  int mlp_rows() const { return has_gate() ? 2 * ffn_dim : ffn_dim; }
  bool has_gate() const { return mlp == MlpKind::kSwiglu || mlp == MlpKind::kGeglu; }
  // Whether a channel of queries decides what leaves a cache.
  bool decides_in_queries() const { return dms.has_value() && dms->query_channel.has_value(); }
  // Describes in one line how positions enter queries and keys, for calibration files.
  std::string DescribePositions() const;
  // Settles what depends on the longest context that will be used, in 1 .. max_seq_len: LongRope
  // takes its long factors when that exceeds original_max_position (as Hugging Face does by the
  // length at hand), and otherwise its short ones, and max_seq_len becomes original_max_position.
  void ChooseContext(int n_positions);
};

// Reads the config of a Hugging Face directory or of a GGUF file (model/families/gguf_config.h).
// kNotFound or kDataLoss when the file is missing or wrong, kUnimplemented (with what is supported)
// for a family or feature that this build does not run. Every number is bounded before use.
// The context is the longest: ChooseContext(max_seq_len).
StatusOr<ModelConfig> LoadModelConfig(const std::string& model);
StatusOr<ModelConfig> ParseModelConfig(const nlohmann::json& config, const std::string& where);

}  // namespace kvlathe
