// Calibration drives a model over tokens and keeps what it learned: statistics, from which every
// spec makes bases of its own later (docs/basis.md, Calibration).
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "analysis/statistics/statistics.h"
#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"
#include "calibration/gradients/layer_pass.h"
#include "calibration/token_choice.h"
#include "model/config.h"
#include "model/observer.h"

namespace kvlathe {

inline constexpr int64_t kDefaultCalibrationTokens = 8192;  // FDC: bases are stable from 8 K on

// Sequences are this long. They run from position 0; what is learned of rows after RoPE is as if
// they started anywhere in the context (calibration/position_shift.h).
constexpr int CalibrationSequenceTokens(int context) { return context < 2048 ? context : 2048; }

// How many positions calibration spreads its sequences over, so that its statistics of rows after
// RoPE hold for a context: all of it, and up to twice as many, because contexts are rounded up to a
// power of two.
constexpr int CalibrationPositions(int context) {
  if (context <= 2048) return CalibrationSequenceTokens(context);
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(context)));
}

// The context that statistics are made for, so that they serve a program whose caches may have
// `context` positions: this one, or a longer one that takes sequences no shorter than the model
// allows. So all contexts up to 2048 share their statistics.
constexpr int CalibrationContext(int context, int model_context) {
  const int sequence_tokens = CalibrationSequenceTokens(model_context);
  return context < sequence_tokens ? sequence_tokens : context;
}

struct RandomTokens {
  int64_t n_tokens = kDefaultCalibrationTokens;  // in all, BOS included
  uint64_t seed = 0;
  int32_t first_id = 0;    // ids below are special and never drawn
  int32_t vocab_size = 0;  // ids from here on are never drawn either
  int32_t bos_id = -1;     // starts every sequence; -1: the model has none
};

// Uniform ids in [first_id, vocab_size), cut into sequences of at most sequence_tokens, none
// shorter than kCalibrationSinks + 1. kInvalidArgument if a count or range is empty.
StatusOr<TokenSequences> DrawRandomSequences(const RandomTokens& tokens, int sequence_tokens);

// Cuts a text's ids (without BOS) into sequences of at most sequence_tokens that start with bos_id
// (-1: none). A rest too short to count is dropped. kInvalidArgument if nothing is left.
StatusOr<TokenSequences> CutSequences(std::span<const int32_t> token_ids, int sequence_tokens,
                                      int32_t bos_id);

struct CalibrationJob {
  StatisticsShape shape;
  StatisticsSource source;    // its counts of tokens and positions are filled in
  AttentionLayers attention;  // of the model
  int n_positions = 0;        // CalibrationPositions(), or those of the longest sequence
  int rope_dim = 0;
  // Whether a sequence may be taken to stand elsewhere in the context (PositionShift): not where
  // weights multiply queries behind RoPE (QkNormConfig::weighs_turned_queries), whose scores depend
  // on distances all the same but whose rows do not turn on with their position.
  bool turns_on = true;
  TokenSequences sequences;
  bool across_heads = false;  // statistics across the KV heads of a layer too (G- and J-LRD)
  bool outputs = false;       // CalibrationStatistics::outputs too
  bool key_values = false;    // CalibrationStatistics::key_values too
  ThreadPool* pool = nullptr;
  Isa isa = Isa::kScalar;  // of the kernels that sum up
  // Runs one sequence from position 0 on an uncompressed cache and shows every layer to the
  // observer.
  std::function<Status(std::span<const int32_t> token_ids, QkvObserver* observer)> forward;
  // Runs one sequence from position 0 on, forwards and back: shows every layer to the observer
  // (may be null) and its gradients to the sink, of what is drawn with numbers that depend on the
  // seed alone (DecoderGradients::Run). null: no gradients are measured, and JointMoments::fisher
  // is 0. With it `forward` runs only where rows merge.
  std::function<Status(std::span<const int32_t> token_ids, uint64_t seed, QkvObserver* observer,
                       const std::function<void(const RowGradients&)>& sink)>
      gradients;
  // All of these may be null.
  std::function<void(double fraction)> on_progress;  // often
  // Told once, when the first sequence is done: how long the others take, as it goes.
  std::function<void(double seconds)> on_estimate;
  std::function<void(const std::string& line)> on_checkpoint;  // read, refused or not written

  // A file that keeps the sums while this runs; empty: none. Calibrate reads and writes it, the
  // caller removes it once the statistics are kept.
  std::string checkpoint_path = {};
  std::string settings = {};       // what the bits of rows depend on beside all of the above
  double checkpoint_seconds = 20;  // from one to the next, at least; 0: after every sequence
};

// Seconds that parts of calibration took.
struct CalibrationTimes {
  double forward = 0;    // the model alone
  double moments = 0;    // of all rows
  double gradients = 0;  // of stored rows: the way back, and what it makes anew on it
};

// Errors: those of `forward`; kDataLoss naming the layer if the model computes values that are not
// finite, or if sums of squares have lost their digits (CheckCovariances).
StatusOr<CalibrationStatistics> Calibrate(const CalibrationJob& job,
                                          CalibrationTimes* times = nullptr);

}  // namespace kvlathe
