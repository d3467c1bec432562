// A head with sealed runs for tests: random records written by the documentation of the layout
// (packed_layout.h) with offsets of their own, and the values that they stand for, in double.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "cpu/kernels/attend/attend.h"
#include "tensor/buffer.h"

namespace kvlathe {

struct RunSpec {
  int n_blocks;
  bool is_prompt;
  bool is_repaired = true;
};

struct PackedCase {
  PackedFormat format;
  int rank_k = 64, rank_v = 64;
  std::vector<RunSpec> runs = {{2, true}};
  int hidden_blocks = 0;  // of the first run, that are not among the blocks
  int n_plain = 0;        // entries behind the runs
  int n_tokens = 1, gqa_group = 1;
  int kv_begin = 0;
  int unseen = 0;    // entries at the end that the last row does not see
  int past_end = 0;  // entries at the end that the item does not cover
  int window = kNoWindow;
  int other_rank_v = 48;          // of the head before this one and of the head behind it
  bool has_exact_scales = false;  // powers of two: q * scale needs no rounding
  bool packs_exact = false;  // exact entries into the first tokens of K, the first channels of V

  std::string Describe() const;
};

// What a side of the entries holds, and the scales of its errors.
struct TestMatrix {
  TestMatrix(int64_t n, int rank)
      : width(rank), values(n * rank), centred(n * rank), rounded(n * rank), parts(n * rank) {}
  int64_t At(int64_t row, int r) const { return row * width + r; }

  int width;
  std::vector<double> values;
  std::vector<double> centred;  // of a code, without the middle of the codes
  std::vector<double> rounded;  // what a rounding to Bf16 acts on
  std::vector<double> parts;    // sum of the magnitudes that add up to the value
};

class TestRecord {
 public:
  explicit TestRecord(int64_t n) : buffer_(Buffer::Allocate(n + 64, "test record").value()), n_(n) {
    // What nothing refers to is NaN in F16 and Bf16 alike.
    std::memset(buffer_.data(), 0xff, n + 64);
  }
  std::byte* data() { return buffer_.data(); }
  int64_t n_bytes() const { return n_; }
  void PutU8(int64_t offset, uint8_t x) { Put(offset, x); }
  void PutU16(int64_t offset, uint16_t x) { Put(offset, x); }
  void PutU32(int64_t offset, uint32_t x) { Put(offset, x); }
  // Stores x as F16 and returns what was stored.
  double PutF16(int64_t offset, double x) {
    const F16 half = ToF16(static_cast<float>(x));
    PutU16(offset, half.bits);
    return ToFloat(half);
  }
  uint8_t byte(int64_t offset) const { return static_cast<uint8_t>(buffer_.data()[offset]); }

 private:
  template <typename T>
  void Put(int64_t offset, T x) {
    KVL_CHECK(offset >= 0 && offset + static_cast<int64_t>(sizeof(x)) <= n_);
    std::memcpy(buffer_.data() + offset, &x, sizeof(x));
  }
  Buffer buffer_;
  int64_t n_;
};

// Codes where the documentation puts them; those of values begin `side_begin` bytes in.
int KeyCode(const TestRecord& block, const PackedSide& side, int t, int r);
int ValueCode(const TestRecord& block, int64_t side_begin, const PackedSide& side, int rank, int t,
              int r);

struct TestScale {
  double scale = 1, minimum = 0;
};

// One head in runs and plain blocks. Heads before and behind it share the layer records.
class PackedProblem {
 public:
  PackedProblem(const PackedCase& problem_case, DType row_type, uint64_t seed);
  PackedProblem(const PackedProblem&) = delete;

  // Scores are capped from then on, those of keys that have lost something.
  void DrawCap();

  int LayerRank() const { return c.rank_v + 2 * c.other_rank_v; }
  int KvEnd() const { return n_entries - c.past_end; }
  int FirstVisible() const { return n_entries - c.unseen - c.n_tokens + 1; }
  float SmScale() const { return 1.0f / std::sqrt(static_cast<float>(c.rank_k)); }

  PackedCase c;
  BlockShape shape;
  Random random;
  int n_sealed, n_entries = 0, n_rows = 0;
  TestMatrix k, v;
  std::vector<TestRecord> memory;
  std::vector<PackedRun> runs;
  std::vector<const std::byte*> blocks;
  PackedHead head;
  std::vector<float> q_stored;
  std::vector<Bf16> q_bf16;
  float score_cap = 0;
  std::vector<float> score_offsets;  // [n_rows] with a cap

 private:
  TestRecord& NewBytes(int64_t n) { return memory.emplace_back(n); }
  TestScale RandomScale(const PackedSide& side);
  double RandomBalance();
  // Puts a scale at offset and its minimum min_step bytes behind it.
  TestScale PutScale(TestRecord& to, int64_t offset, int64_t min_step, const PackedSide& side);

  struct RunMemory {
    const RunSpec* spec;
    int64_t first_entry;      // of the matrices; hidden entries are negative
    std::vector<int> blocks;  // indices into memory
    int record = -1, layer_record = -1;
    // In the block.
    int64_t v_begin, k_scales, k_balance, v_scales, k_factor, v_factor, k_counts, v_counts;
    int64_t v_balance;  // in the record
    int lowrank, n_tokens;
  };

  void AddRun(const RunSpec& spec, int first_block);
  void PutKeyCodes(RunMemory& run);
  void PutResiduals(RunMemory& run);
  void PutValueCodes(RunMemory& run);
  void PutKeyOutliers(RunMemory& run, int64_t offset);
  void PutValueOutliers(RunMemory& run, int64_t offset);
  void PutFactors(RunMemory& run, int64_t record_offset);
  void PutFactor(RunMemory& run, TestMatrix& m, int64_t factor, int64_t basis);
  void AddPlainBlocks();
};

}  // namespace kvlathe
