// A head on the device for tests of attention: blocks of other problems copied there, items as a
// host would make them, and results judged against plain attention in double.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cpu/kernels/testing/attend_packed_problem.h"
#include "cpu/kernels/testing/attend_problem.h"
#include "cpu/kernels/testing/split_bits_problem.h"
#include "cuda/kernels/attend/decode.h"
#include "tensor/dtype.h"

namespace kvlathe::cuda {

struct DecodeCase {
  int rank_k = 0, rank_v = 0, gqa_group = 1, n_rows = 0;
  int kv_begin = 0, n_entries = 0;
  int first_visible = 0, window = 0;
  float sm_scale = 1;
  std::vector<Bf16> q;  // [n_rows, rank_k]
  struct Block {
    const std::byte* bytes;  // null: below the window
    int64_t n_bytes;
  };
  std::vector<Block> blocks;
  struct Run {
    DecodeRun run;  // but for records
    AttendLayout layout;
    Block record = {}, layer_record = {};
  };
  std::vector<Run> runs;
  // What blocks hold, [n_entries, rank]; and how much of it roundings act on.
  std::vector<double> k, v, k_rounded, v_rounded;
  std::vector<bool> is_plain;  // by entry
  int width = 0;               // 0: rank_v
  int behind = 0;              // zeros behind the rows of a head
  DType out_type = DType::kF32;
  // Positions that the head keeps apart.
  int n_sinks = 0, head_dim = 64, first_sinks_visible = 0;
  std::vector<Bf16> q_full, sink_k, sink_v;  // [n_rows, head_dim], [n_sinks, head_dim or width]
  // By query head: what the sum of a row has besides its entries. Empty: nothing.
  std::vector<float> sink_logits;
  float score_cap = 0;
  std::vector<float> lost_keys;  // [head_dim], which q_full would meet; empty: nothing
  // Keys have lost a mean (format/mean_angles.h): what that adds to the score of a row and an
  // entry, not scaled.
  int n_pairs = 0, half = 0, n_joined = 1, first_position = 0;
  float way_back = 1;
  std::vector<float> mean, angles, cos, sin;
  std::function<double(int row, int entry)> added_score;
};

// The problem outlives the case, whose blocks are its.
DecodeCase CaseOf(const AttendProblem& problem);
DecodeCase CaseOf(const PackedProblem& problem);
DecodeCase CaseOf(const SplitProblem& problem, int n_tokens, int gqa_group, int window);

// How the host shares the work out, and what a test spoils.
struct DecodeRunning {
  int n_parts = 1;
  int n_warps = 3;
  std::function<void(DecodeJob&)> spoil_job;
  std::function<void(AttendTables&)> spoil_tables;
  std::function<float(float)> spoil_cap;
};

// Runs the kernels and returns how many deviations, of those that roundings may cause, the worst
// number is off: below 6 where all is right.
double WorstDeviation(const DecodeCase& c, const DecodeRunning& running = {});

}  // namespace kvlathe::cuda
