// What calibration learns about a model's queries, keys and values, and its file basis.safetensors.
// Bases, ranks and codebooks of every method derive from it, so one calibration serves all specs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/statistics/histogram.h"
#include "base/status.h"

namespace kvlathe {

// The first positions of a sequence draw attention whatever they hold; their rows would own the
// first singular vector of a head. They have moments of their own and enter nothing else.
inline constexpr int kCalibrationSinks = 4;

// The newest positions of a cache wait to be compressed, so queries nearer to a row than this read
// it whole. It is what `newest=auto` leaves open of 2048 positions.
inline constexpr int kCalibrationNewest = 64;

struct StatisticsShape {
  int n_layers = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;

  bool operator==(const StatisticsShape&) const = default;
  int gqa_group() const { return n_heads / n_kv_heads; }
};

// A matrix over the rows of several KV heads side by side has at most so many columns, unless one
// head alone is wider.
inline constexpr int kMostJointChannels = 512;

// KV heads of a layer whose rows stand side by side in JointMoments: the largest divisor n of
// n_kv_heads with n * head_dim <= kMostJointChannels; 1 if one head is wider than that.
int JointHeads(const StatisticsShape& shape);

// KV heads whose keys and values stand side by side in CalibrationStatistics::key_values: the
// largest divisor n of JointHeads() with n * head_dim <= kMostKeyValueChannels; 1 if there is none.
inline constexpr int kMostKeyValueChannels = 256;
int KeyValueHeads(const StatisticsShape& shape);

// First and second moments of rows of head_dim values, per head. Second moments are about the mean,
// for keys may have means of hundreds of their deviations (biases of K): moments about zero would
// hold no digit of what rows vary by. GramOf() has those about zero.
struct HeadMoments {
  std::vector<float> mean;  // [n_layers, heads, head_dim]
  // [n_layers, heads, head_dim, head_dim]: (X - mean)^T (X - mean) / rows.
  std::vector<float> covariance;
};

// Moments of the rows of JointHeads() KV heads side by side (a group), and what errors in them
// cost. width = JointHeads() * head_dim, n_groups = n_kv_heads / JointHeads(). Only positions from
// kCalibrationSinks on count.
struct JointMoments {
  std::vector<float> mean;        // [n_layers, n_groups, width]
  std::vector<float> covariance;  // [n_layers, n_groups, width, width], about the mean
  // [n_layers, n_groups, width, width]: F = 1/2 sum_j g_j g_j^T / n_tokens over rows j, where g_j
  // is the gradient with respect to row j of the log-likelihood of tokens that were drawn from what
  // the model itself predicts: the Fisher information of the rows (Amari 1998, "Natural gradient
  // works efficiently in learning"), taken as a metric as Singh and Alistarh 2020 take that of
  // weights (WoodFisher, arXiv 2004.14340). If every such row has an independent error of
  // covariance C, trace(F C) is the KL in nats per predicted token, to second order. Only what
  // queries kCalibrationNewest positions or more behind a row read of it is in its g.
  std::vector<float> fisher;
  // Mean and covariance of the same windows' rows, each weighed by |g_j|^2 of its group: rows that
  // the output hangs on are not like most, so trace(F C) holds where C is of rows weighed so.
  std::vector<float> weighed_mean;        // [n_layers, n_groups, width]
  std::vector<float> weighed_covariance;  // [n_layers, n_groups, width, width], about that mean
};

// Which rows stand for keys.
enum class KeyRows {
  kAfterRope,
  kCentred,  // after RoPE, less the mean from before it (format/keys.h)
  kBlock,    // likewise, in frames
  kBeforeRope,
};
inline constexpr KeyRows kAllKeyRows[] = {KeyRows::kAfterRope, KeyRows::kCentred, KeyRows::kBlock,
                                          KeyRows::kBeforeRope};
// "after", "centred", "block", "before": lathe's `keys`.
const char* NameOf(KeyRows rows);

struct JointStatistics {
  JointMoments k;  // keys after RoPE, turned on with their sequence as those of k_post
  // The same less CalibrationStatistics::turning_mean (format/keys.h). Its `fisher` is that of k.
  JointMoments k_centred;
  JointMoments k_block;  // keys in frames, less the turning mean too
  JointMoments k_pre;    // keys before RoPE
  JointMoments v;
  int64_t n_tokens = 0;  // predicted tokens behind `fisher`; 0: nothing was measured, all is 0

  const JointMoments& keys(KeyRows rows) const {
    switch (rows) {
      case KeyRows::kAfterRope:
        return k;
      case KeyRows::kCentred:
        return k_centred;
      case KeyRows::kBlock:
        return k_block;
      case KeyRows::kBeforeRope:
        break;
    }
    return k_pre;
  }
  JointMoments& keys(KeyRows rows) {
    return const_cast<JointMoments&>(std::as_const(*this).keys(rows));
  }
};

// Where the statistics come from; written into the file as text.
struct StatisticsSource {
  std::string model_hash;    // ModelHash()
  std::string rope;          // the model's RoPE settings: post-RoPE statistics hold only for them
  std::string token_source;  // "random" or "text:<hash of the token ids>"
  uint64_t seed = 0;
  int64_t n_tokens = 0;     // all tokens that went through the model
  int sequence_tokens = 0;  // of the longest sequence
  int n_positions = 0;      // of the context that rows after RoPE are taken from
  // How positions were merged (NameOf(MergePlan)): keys and values are those of entries. Empty: not
  // at all.
  std::string merging = {};
};

struct CalibrationStatistics {
  StatisticsShape shape;
  StatisticsSource source;
  // Of a file of lathe's maps (analysis/bases/lathe_maps.h): `joint` has these keys and values,
  // there is the turning mean, and all other arrays are empty.
  std::optional<KeyRows> maps_of;
  int64_t n_rows = 0;  // tokens behind every moment and histogram; of merged rows, fewer entries
  int64_t n_sink_rows = 0;  // tokens at the first kCalibrationSinks positions

  // "heads" are KV heads, except for q_pre. The rows of a KV head's queries are those of its group
  // of query heads: `mean` is the mean of these, but `covariance` is summed over the group, not
  // averaged, so that it is per token as that of keys is.
  HeadMoments q_post;
  HeadMoments k_post;
  HeadMoments k_pre;
  HeadMoments v;
  HeadMoments q_pre;  // per query head
  // The covariance of the rows of all KV heads of a layer side by side, [n_layers, n_kv_heads *
  // head_dim, n_kv_heads * head_dim]; their means are those of k_pre and v. Empty unless
  // calibration was asked for them.
  std::vector<float> k_pre_across_heads;
  std::vector<float> v_across_heads;
  // What attention makes of values, before W_O: the rows of a KV head are those of its group of
  // query heads, and `mean` and `covariance` are as those of q_post. So GramOf() is V^T S^T S V per
  // token, with S the attention weights of queries from position kCalibrationSinks on. Empty unless
  // calibration was asked for them.
  HeadMoments outputs;
  // Of the calibration text but for its held-back windows, and of those alone. No map, scale or
  // share of bits may come from `held_back`: what a cache loses is predicted by it.
  JointStatistics joint;
  JointStatistics held_back;
  // As `joint`, but with gradients through all queries: for rows that are cut when they are stored.
  // Mean and covariance of rows are those of `joint` (ShareJointRows).
  JointStatistics through_all;
  // Of rows (x, v): keys in frames and values of KeyValueHeads() heads, width = 2 KeyValueHeads() *
  // head_dim and n_groups = n_kv_heads / KeyValueHeads(), of the text but for what is held back.
  // Rows are weighed by the mean of |g_x|^2 and of |g_v|^2, each in units of its mean. Empty unless
  // calibration was asked for them.
  JointMoments key_values;
  // The weighed mean of keys before RoPE, [n_layers, n_kv_heads, head_dim] in BF16, in the fastest
  // pairs of channels alone (MostTurningPairs) and 0 in the others. Of the first rows that were
  // seen where gradients were not asked for.
  std::vector<float> turning_mean;
  HeadMoments sink_q_post;
  HeadMoments sink_k_post;
  HeadMoments sink_v;

  // Channel (layer_idx * n_kv_heads + kv_head_idx) * head_dim + d.
  ChannelHistograms k_post_histograms;
  ChannelHistograms k_pre_histograms;
  ChannelHistograms v_histograms;

  // Index of a KV head's matrices: covariance.data() + HeadIndex(...) * head_dim * head_dim.
  int64_t HeadIndex(int layer_idx, int kv_head_idx) const {
    return int64_t{layer_idx} * shape.n_kv_heads + kv_head_idx;
  }
};

// Returns statistics of zeros in which every array has its size, except those that calibration has
// to be asked for.
CalibrationStatistics MakeStatistics(const StatisticsShape& shape);

// Gives `through_all` what it has in common with `joint`.
void ShareJointRows(CalibrationStatistics* statistics);

// Errors are those of WriteSafetensors.
Status WriteStatistics(const CalibrationStatistics& statistics, const std::string& path);

// Files of format version 15 hold every array of CalibrationStatistics (those across heads, of
// outputs and of keys with values only where they were asked for, what parts have in common once),
// its source and its counts, and a checksum of all that. Version 14 had gradients through all
// queries or through far ones, not both. Version 13 had keys less their turning mean in frames
// alone, version 12 nowhere; second moments of version 11 were about zero; gradients of version 10
// counted from 32 positions on, not from 64; version 9 had moments of rows as attention weighs them
// too, version 8 no joint statistics. kDataLoss if the file is damaged, of another kind, or of
// another format version; the message says how to make a new one.
StatusOr<CalibrationStatistics> ReadStatistics(const std::string& path);

// kInvalidArgument, with the way out, if statistics read from `path` belong to another model, to
// other RoPE settings or to a cache that merges otherwise.
Status CheckStatisticsMatch(const CalibrationStatistics& statistics, const std::string& path,
                            const StatisticsShape& shape, const std::string& model_hash,
                            const std::string& rope, const std::string& merging = {});

}  // namespace kvlathe
