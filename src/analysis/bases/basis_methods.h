// Each method of the basis axis is a table of functions (BasisMethod), which stands in the header
// of the method. The row of the method in src/kv/spec/spec_table.cc names it.
#pragma once

#include <span>
#include <vector>

#include "analysis/bases/basis.h"
#include "analysis/ranks/ranks.h"
#include "analysis/statistics/statistics.h"
#include "base/status.h"
#include "base/threads.h"

namespace kvlathe {

// What a spec can ask of a method's bases besides ranks.
struct BasisOptions {
  // zack, fdc: the first kCalibrationSinks positions are rows like any other. For caches that keep
  // none of them whole.
  bool counts_first_positions = false;
  bool is_normalised = false;     // zack: blocks weigh alike whatever their norm
  bool is_centred = true;         // lathe, spectral: rows lose their mean first
  bool keys_before_rope = false;  // lathe: keys are latents from before RoPE
  bool has_frames = false;        // lathe: keys are turned inside frames (MappedKeys)
  int turning_pairs = 0;          // likewise
  // lathe: gradients count through all queries, for rows are cut when they are stored.
  bool counts_all_queries = false;
  bool joins_values = false;  // lathe: keys and values have one map (MappedKeys)
  bool is_whitened = true;    // palu, fdc: weights count by the Gram matrix of their inputs
  // Values may lose their mean or bias. It is added to outputs as it is, which is right where the
  // probabilities of attention add up to 1.
  bool has_value_offsets = true;
  // spectral: is_centred holds only for models whose keys or values have biases.
  bool centres_biases_alone = false;
  bool shares_heads = false;  // spectral: the KV heads of a layer have one rotation
  int heads_per_latent = 1;   // palu: KV heads that share a latent
  // lathe: the KV heads of a layer have one map together, as many as have so many channels; 0: each
  // has its own.
  int joint_channels = 0;
  bool operator==(const BasisOptions&) const = default;
};

struct BasisInputs {
  const CalibrationStatistics* statistics = nullptr;
  // W_V,h^T W_V,h [head_dim, head_dim] of each KV head, [n_layers * n_kv_heads]; needed unless
  // BasisOptions::is_whitened.
  std::span<const std::vector<double>> value_grams;
  // Sum of W_O,h W_O,h^T over the query heads of each KV head, of the same shape.
  std::span<const std::vector<double>> output_grams;
  BasisOptions options = {};
  ThreadPool* pool = nullptr;  // analyses heads side by side; null: one after the other
  // palu. W_K,h W_K,h^T as value_grams, both of the heads that share a latent, [n head_dim,
  // n head_dim] for every n of them. Biases of K and V
  // [head_dim] of each KV head, or none of a model without.
  std::span<const std::vector<double>> key_grams = {};
  std::span<const std::vector<float>> key_biases = {};
  std::span<const std::vector<float>> value_biases = {};
};

// The maps of one KV head at full width, row-major [head_dim, head_dim] f32, in the roles of
// HeadBasis. Where keys and values have one map (MappedKeys::joins_values) maps are [head_dim, 2
// head_dim], the way back of values is [2 head_dim, head_dim], and what is said of keys' channels
// is of those of both. Column i matters more than column i + 1 (in output_basis: row i), and a rank
// is a cut after that many columns.
struct HeadAnalysis {
  std::vector<float> query_basis;
  std::vector<float> key_basis;
  std::vector<float> value_basis;
  std::vector<float> output_basis;
  std::vector<float> key_offset = {};  // [head_dim] or empty
  std::vector<float> value_offset = {};
  std::vector<float> turning_mean = {};  // as HeadBasis has it
  std::vector<float> key_way_back = {};  // latents have no query_basis
  // The standard deviations of the stored channels about their offsets, mixed as CutBasis does, in
  // text like that of the calibration. Empty for methods that do not split bits.
  std::vector<float> key_deviations = {};
  std::vector<float> value_deviations = {};
};

struct BasisAnalysis {
  StatisticsShape shape;              // of the heads below
  std::vector<HeadAnalysis> heads;    // [n_layers * n_kv_heads]
  std::vector<HeadSpectra> spectra;   // [n_layers * n_kv_heads]: what ranks are chosen by
  std::vector<HeadNoise> noise = {};  // [n_layers * n_kv_heads]: what bits are chosen by, if any
  // If KV heads share latents (heads_per_latent), this many of them count as one head above, of as
  // many times head_dim. If a map joins KV heads of the model (heads_per_map), they are one head of
  // `shape`, whose head_dim is then as many times larger.
  Keys keys = MappedKeys{};
  // Whether values are made in all columns of the basis, of which only sinks keep those that the
  // cache cuts (HeadBasis::stored_rank_v).
  bool keeps_sink_values = false;

  const HeadSpectra& SpectraOf(size_t head_idx) const {
    return spectra[head_idx / HeadsPerLatent(keys)];
  }
};

struct BasisMethod {
  // Does not depend on the rate, so one analysis serves every spec of the method. kDataLoss for
  // statistics or weights that are not finite.
  StatusOr<BasisAnalysis> (*analyse)(const BasisInputs& inputs);
  StatusOr<RankAllocation> (*allocate)(const BasisAnalysis& analysis, const RankRequest& request);
  // Chooses ranks and the bits of each channel, by ratio. Null if the method leaves bits to the
  // quantizer axis.
  StatusOr<RankAllocation> (*allocate_bits)(const BasisAnalysis& analysis,
                                            const RankRequest& request) = nullptr;
  bool wants_text = false;       // statistics of random tokens suit it badly
  bool wants_gradients = false;  // prices errors by gradients of rows, which take time
  bool wants_outputs = false;    // reads moments of what attention makes of values
};

// Cuts the analysis to the allocation's ranks. Where these split bits, the maps mix the channels of
// each group of as many bits by a Hadamard matrix and take their deviations as well: stored
// channels have unit variance. With s_i the mean squares of both sides in channel i, an error of a
// step costs the sum of s_i^2 in a group of n channels unmixed, mixed n times the square of their
// mean, which is never more.
ModelBasis CutBasis(const BasisAnalysis& analysis, const std::vector<HeadRanks>& ranks);

}  // namespace kvlathe
