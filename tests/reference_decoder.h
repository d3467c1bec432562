// The reference decoder is literal, in double and plain loops, for tests: it shares no code with
// the engine. The families as Hugging Face defines them, from tensors as their files store them,
// and optionally a basis per KV head applied to rows (never folded into weights), with plain keys
// for the first n_sink positions.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kvlathe::testing {

using Matrix = std::vector<std::vector<double>>;
Matrix Columns(const Matrix& m, size_t begin, size_t end);
std::vector<float> Flat(const Matrix& m);  // row-major

struct ReferenceRope {
  double theta = 10000;
  std::string scaling;  // "", "linear", "llama3", "longrope"
  double factor = 1, low = 1, high = 4, original = 8192;
  // longrope
  std::vector<double> short_factors, long_factors;
  bool uses_long_factors = false;
  double max_position = 0;  // of the model; with `original` it makes the amplitude
  bool is_still = false;    // nothing turns
};

// What families have beside attention with RoPE and an MLP. The numbers of ReferenceModel and
// testing::RandomModelShape.
struct ReferenceFeatures {
  double score_scale = 0;  // multiplies scores; 0: 1 / sqrt(query_scalar or head_dim)
  double score_cap = 0, logit_cap = 0;
  double embedding_scale = 1, residual_scale = 1, logit_scale = 1;
  int still_every = 0;  // every so many layers do not turn (SmolLM3)
  // With experts: how many, how many of them a token has, and their width.
  int n_experts = 0, n_used_experts = 0, expert_ffn = 0;
  int n_dense_layers = 0;  // the first ones, which have none
  double experts_scale = 1;
};

// A model that decides which positions merge (docs/methods/dmc.md).
struct ReferenceDmc {
  bool is_last = true;  // channel of the decisions: last or first
  double offset = 5, weight_offset = 5, epsilon = 0.0078125;
  bool zeroes_after_rope = true;
};

// A model of which the last channel of the first query of each KV head decides what leaves, and is
// 0 in it (docs/methods/dms.md).
struct ReferenceQueryChannel {
  bool zeroes_after_rope = true;
};

struct ReferenceModel {
  std::string model_type = "llama";
  int n_layers = 0, hidden = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  double eps = 1e-5;
  bool tied = false;
  ReferenceRope rope;
  int rotary_dim = 0;  // channels that rotate
  int window = 0;      // 0: none
  // Gemma, EXAONE: every so many layers one sees everything; the others turn by local_rope. 0: all
  // layers are alike.
  int whole_every = 0;
  ReferenceRope local_rope;
  double query_scalar = 0;  // Gemma: scores are divided by its root; 0: by that of head_dim
  int window_spares = 0;    // first positions that never leave it
  std::string activation;   // gpt2: "gelu_new" or "gelu"
  std::string prefix;       // gpt2: of all names
  bool parallel = true;     // falcon
  int n_norms = 1;          // falcon, in a parallel block
  ReferenceFeatures features;
  std::optional<ReferenceDmc> dmc;
  std::optional<ReferenceQueryChannel> query_channel;
  std::map<std::string, std::vector<double>> tensors;  // Hugging Face names, row-major
};

// How positions past the sinks become entries.
struct ReferenceMerging {
  int every = 0;   // so many make one; 0: as the model decides
  int window = 0;  // newest positions of an entry that count in its mean; 0: all
};

// Maps of one KV head, row-major: query, key [head_dim][rank_k]; value [head_dim][rank_v];
// output [rank_v][head_dim]. Heads that share latents have key and value maps of as many times
// head_dim rows, from the rows of all of them, and ways back from what all of them store.
struct ReferenceBasis {
  Matrix query, key, value, output;
  // Rows lose it before they are compressed and have it again in what is read from them; empty: 0.
  std::vector<double> key_offset, value_offset;
  // [rank_k][head_dim], or empty. If not, keys are stored from before RoPE, and what is read from
  // them turns to its position; queries stay as they are.
  Matrix key_way_back;
  bool codes_rows = false;  // what is stored past the sink has codes of 8 bits and scales
};

// The rows of one layer as they are stored: of a basis where there is one, but for the keys of the
// first n_sink positions.
struct ReferenceRows {
  int layer_idx = 0;
  std::vector<Matrix> keys, values;         // [kv head][row][rank]
  std::vector<std::vector<int>> positions;  // [kv head][row]
  // Of the newest token: its queries, at their position and in no basis, [query head][head_dim],
  // its scaled and capped scores, [query head][row], and the probabilities that these become.
  Matrix queries, scores, weights;
  std::vector<double> stream;   // the residual stream of the newest token, as the layer got it
  std::vector<double> channel;  // what decides of the newest token, by KV head, before it is 0
  // Positions that the last row is made of, where they merge: [kv head][position].
  struct Merged {
    double weight;
    std::vector<double> key, value;  // before RoPE and any basis
  };
  std::vector<std::vector<Merged>> open;
};

// What turns the rows of a layer.
const ReferenceRope& RopeOf(const ReferenceModel& model, int layer_idx);
// The first n_channels of x turned to `position`; the others stay.
std::vector<double> RotateRow(const ReferenceRope& rope, int n_channels,
                              const std::vector<double>& x, int position);
// The row that was turned to `position`.
std::vector<double> RotateRowBack(const ReferenceRope& rope, int n_channels,
                                  const std::vector<double>& x, int position);

// Changes the rows after the newest token has attended: what a lossy cache loses. Without a window
// rows may go as well.
using ReferenceLoss = std::function<void(int layer_idx, ReferenceRows* rows)>;

// Logits after every token, [n_tokens][vocab]. bases: empty, or [n_layers * n_kv_heads]. Keys of
// the first n_whole_keys positions are stored as they are; behind the last of them `loss` maps what
// is left of them in its layer (MapKeys).
Matrix ReferenceLogits(const ReferenceModel& model, const std::vector<int>& ids,
                       const std::vector<ReferenceBasis>& bases = {}, int n_sink = 0,
                       const ReferenceLoss& loss = nullptr,
                       const ReferenceMerging* merging = nullptr, int n_whole_keys = 0);

// Keys past the first n_sink, which were stored as they are.
void MapKeys(const ReferenceModel& model, int layer, const std::vector<ReferenceBasis>& bases,
             int n_sink, ReferenceRows* rows);

// Of the differences of two matrices of one shape.
double RootMeanSquare(const Matrix& a, const Matrix& b);

}  // namespace kvlathe::testing
