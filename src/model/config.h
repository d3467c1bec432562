// A ModelConfig says what a model is, read from config.json of a Hugging Face model and checked.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "machine/xielu_numbers.h"

namespace kvlathe {

// How positions become angles. Angle of pair i at position p: p * frequency_i, with
// frequency_i = theta^(-2i / rope_dim) changed by the scaling below.
struct RopeConfig {
  enum class Scaling {
    kNone,
    kLinear,    // frequency / factor (position interpolation)
    kLlama3,    // Llama 3.1: long wavelengths / factor, short ones unchanged, smooth in between
    kLongRope,  // Phi-3: frequency / a factor of each pair's own, rotations scaled as a whole
    kYarn,      // YaRN (arXiv 2309.00071): as kLlama3 by how often a pair turns in the original
                // context, on a ramp of pairs; rotations scaled as a whole
    kDynamic,   // NTK-aware: a larger theta where the context is longer than the original one
    kStill,     // all frequencies are 0, so that whatever turns rows leaves them as they are
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
  // kYarn: pairs that turn more than beta_fast times in the original context keep their frequency,
  // those that turn less than beta_slow times have it divided by `factor`. Whether the ends of the
  // ramp between them are whole pairs.
  double beta_fast = 32;
  double beta_slow = 1;
  bool has_whole_ramp = true;
  // kDynamic: the context that ChooseContext has settled.
  double chosen_context = 0;

  // One line that identifies the angles, for calibration files.
  std::string Describe() const;
};

// What the attention of a layer sees, and how positions turn its queries and keys.
struct AttentionKind {
  RopeConfig rope;
  int window = 0;  // a query sees the last `window` positions, its own counted; 0: all
  // Queries of position p are multiplied by 1 + growth ln(1 + floor(p / growth_context)), as
  // Llama 4 and Ministral 3 do; 0: by 1.
  double query_growth = 0;
  double growth_context = 0;

  // That number at a position.
  double GrowthAt(int position) const;
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
  kRms,        // x / sqrt(mean(x^2) + eps) * weight
  kLayer,      // (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias
  kLayerBare,  // the same without a bias
};
enum class MlpKind {
  kSwiglu,         // silu(gate x) * (up x)
  kGeglu,          // GELU's tanh approximation of (gate x), times (up x)
  kGelu,           // gelu(up x)
  kGeluTanh,       // the same with GELU's tanh approximation
  kRelu2,          // max(0, up x)^2 (Nemotron, Arcee)
  kXielu,          // xIELU of (up x), with numbers of each layer's own (Apertus; XieluNumbers)
  kClampedSwiglu,  // g sigmoid(1.702 g) (u + 1) with g <= 7 and u in [-7, 7] (gpt-oss)
};
// How tensors are named and which of them are fused or transposed (model/stored/weight_tables.h).
enum class WeightLayout {
  kLlama,
  kGpt2,
  kPhi3,
  kFalcon,
  kGemma,  // as kLlama, with more norms, whose weights are stored less one (Nemotron's too)
  kStarcoder2,
  kStableLm,
  kGptNeox,
  kPhi,
  kHunyuan,
  kInternLm2,
  kApertus,
  kMixtral,     // as kLlama, with a router and experts of other names
  kGraniteMoe,  // as kLlama, with experts that stand in one tensor
  kGptOss,      // the same, with gate and up row by row in turn
  kErnieMoe,    // as kLlama, with biases of the choice of experts elsewhere
  kBailingMoe,
  kExaone,
  kQwen,  // the first
  kGlm,   // gate and up in one tensor, and names of norms of its own
  kGguf,  // the names of GGUF
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

// Norms of queries and keys, before RoPE. Where calibration, bases and caches speak of a row before
// RoPE, it is normalised.
struct QkNormConfig {
  enum class Over {
    kHead,      // each head by itself, with weights that all heads of a layer share
    kHeadOwn,   // each head by itself, with weights of its own (Cohere, StableLM)
    kAllHeads,  // the heads of queries together, and those of keys (OLMo 2): of one rank only
  };
  Over over = Over::kHead;
  NormKind kind = NormKind::kRms;
  // The weights multiply rows behind RoPE (Hunyuan). As turning keeps a norm, rows are normalised
  // before it all the same, without weights; those of queries and of keys together multiply queries
  // behind it.
  bool weighs_turned_queries = false;
};

// What is normalised, and how.
struct NormConfig {
  NormKind kind = NormKind::kRms;  // of what attention and the MLP read, and of the last stream
  float eps = 1e-5f;
  bool has_weights = true;  // where not (OLMo), they are 1; those of of_qk and of_outputs have some
  // Whether what attention and the MLP read is normalised. Where not (OLMo 2, EXAONE 4), they read
  // the stream as it is.
  bool of_inputs = true;
  std::optional<QkNormConfig> of_qk;
  // What attention and the MLP put out is normalised (RMS) before it is added to the stream.
  bool of_outputs = false;
};

// Which products add a bias.
struct BiasConfig {
  bool qkv = false;
  bool o = false;
  bool mlp = false;
  bool head = false;  // of the logits (Phi-2)
};

// Layers whose MLP is a router and experts (docs/models.md, Experts). The scores of a token are
// those of all experts; the n_used largest, with choice_bias added, are chosen, the one with the
// lower number of two equal ones.
struct ExpertsConfig {
  enum class Score {
    kSoftmax,          // over all experts
    kSigmoid,          // of each logit
    kSoftmaxOfChosen,  // logits choose, and their softmax over the chosen ones is what they weigh
    kSparseMixer,      // Phi-3.5-MoE: one expert after the other (arXiv 2409.12136)
  };
  int n_experts = 0;
  int n_used = 0;
  int ffn_dim = 0;  // of each expert
  // Of the MLP that every token goes through besides; 0: there is none. Several shared experts are
  // one with as many times the width.
  int shared_ffn_dim = 0;
  bool has_shared_gate = false;  // the shared MLP is multiplied by sigmoid of a product (Qwen2-MoE)
  Score score = Score::kSoftmax;
  bool normalises = false;  // weights of the chosen ones are divided by their sum
  float min_sum = 0;        // which is at least this, or has this added where adds_min_sum
  bool adds_min_sum = false;
  float scale = 1;  // multiplies them then
  // Experts stand in groups; only those of the n_used_groups best groups may be chosen. A group is
  // as good as the sum of its two best, or as its best one.
  int n_groups = 1;
  int n_used_groups = 1;
  bool groups_sum_two = true;
  bool has_choice_bias = false;  // a number of each expert, added to its score for choosing alone
  bool has_router_bias = false;  // added to its logit
  bool has_biases = false;       // of the products of experts
  float mixer_jitter = 0.01f;    // kSparseMixer: how far below the largest logit still counts
  std::vector<bool> of_layer;    // [n_layers]; others have an MLP of ModelConfig::ffn_dim
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
  // With kXielu, [n_layers]; empty: tensors of the layers have them.
  std::vector<XieluNumbers> xielu;
  float embedding_scale = 1;  // multiplies the rows of the embedding
  // Multiplies scores; 0: 1 / sqrt(head_dim) does.
  float score_scale = 0;
  float score_cap = 0;  // scores become cap tanh(score / cap) (Gemma 2); 0: stay as they are
  // Multiplies logits. A final norm is loaded with it, so hidden states behind it have it too until
  // they are given out.
  float logit_scale = 1;
  float logit_cap = 0;  // logits become cap tanh(logit / cap); 0: stay as they are
  // A learned number for each query head and layer counts in the sum that probabilities are divided
  // by, as a score would that has no value (gpt-oss).
  bool has_sink_logits = false;
  // Whether attention changes where all scores of a query get the same number.
  bool scores_are_absolute() const { return has_sink_logits || score_cap > 0; }
  // Attention and MLP read the same residual stream and both add to it (Falcon).
  bool parallel_block = false;
  // The MLP reads what attention reads, so there is no second norm; only with parallel_block.
  bool shared_norm = false;
  WeightLayout layout = WeightLayout::kLlama;
  // Rows of W_Q and W_K that turn together are stored side by side (GPT-J's way), not half a head
  // apart. They are put apart when they are read, and so are their biases and norms.
  bool has_neighbour_pairs = false;
  bool tie_word_embeddings = false;
  BiasConfig biases;
  std::optional<ExpertsConfig> experts;
  std::optional<DmcConfig> dmc;
  std::optional<DmsConfig> dms;
  int bos_id = -1;           // -1: none
  std::vector<int> eos_ids;  // config.json and generation_config.json together

  int gqa_group() const { return n_heads / n_kv_heads; }
  // What queries times keys are multiplied by.
  float scale_of_scores() const;
  bool has_experts(int layer_idx) const {
    return experts.has_value() && experts->of_layer[layer_idx];
  }
  // Channels of a head that rotate, an even number.
  int rope_dim() const;
  // Rows of the first matrix of the MLP: gate and up, or up alone.
  int mlp_rows() const { return has_gate() ? 2 * ffn_dim : ffn_dim; }
  bool has_gate() const {
    return mlp == MlpKind::kSwiglu || mlp == MlpKind::kGeglu || mlp == MlpKind::kClampedSwiglu;
  }
  // Whether a channel of queries decides what leaves a cache.
  bool decides_in_queries() const { return dms.has_value() && dms->query_channel.has_value(); }
  // Describes in one line how positions enter queries and keys, for calibration files.
  std::string DescribePositions() const;
  // Settles what depends on the longest context that will be used, in 1 .. longest_context().
  // LongRope takes its long factors when that exceeds original_max_position (as Hugging Face does
  // by the length at hand), and otherwise its short ones, and max_seq_len becomes
  // original_max_position.
  // Dynamic scaling takes the theta of texts of that length, or that of original_max_position where
  // it is shorter, and max_seq_len becomes the length that it took.
  void ChooseContext(int n_positions);
  // The longest context that may be chosen: max_seq_len, but with dynamic scaling `factor` times as
  // many positions as the model was trained on.
  int longest_context() const;
};

// Reads the config of a Hugging Face directory or of a GGUF file
// (model/families/gguf/gguf_config.h). kNotFound or kDataLoss when the file is missing or wrong,
// kUnimplemented (with what is supported) for a family or feature that this build does not run.
// Every number is bounded before use. The context is the longest: ChooseContext(max_seq_len).
StatusOr<ModelConfig> LoadModelConfig(const std::string& model);
StatusOr<ModelConfig> ParseModelConfig(const nlohmann::json& config, const std::string& where);

}  // namespace kvlathe
