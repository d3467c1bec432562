// Queries and keys that turn and are mapped on a GPU, against the CPU.
#include <gtest/gtest.h>

#include <vector>

#include "cuda/rows/row_verbs_fixture.h"

namespace kvlathe {
namespace {

// What differs between caches in how queries and keys come there.
struct TurnCase {
  DType type = DType::kF32;
  int rope_dim = 16;
  bool has_offset = false, has_mean = false, has_maps = false, joins_two = false;
  bool adds_values = false;
  int first_unturned = RotatePlan::kAllTurn;
  int first_less_offset = 0;
  int zeroed_channel = -1;
  bool zeroes_first_query_only = false;
  bool weighs_queries = false;
};

// Buffers and plan of two KV heads with three query heads each.
class Turn {
 public:
  Turn(const TurnCase& c, const Side& side, int n_tokens)
      : case_(c),
        side_(side),
        n_tokens_(n_tokens),
        n_joined_(c.joins_two ? 2 : 1),
        width_(kDim * n_joined_),
        qk_(side.Put(Drawn(n_tokens * kStride, 1))),
        turned_q_(Rows(kHeads * kGroup * width_)),
        turned_k_(Rows(kHeads * kDim)),
        mapped_q_(Rows(kHeads * kGroup * kRank)),
        mapped_k_(Rows(kHeads * kRank)),
        v_(Rows(kRank)),
        cos_(side.Put(Drawn(kPositions * kDim / 2, 2))),
        sin_(side.Put(Drawn(kPositions * kDim / 2, 3))),
        offset_(side.Put(Drawn(kHeads * kDim, 4))),
        mean_(side.Put(Drawn(kHeads * kDim, 5))),
        query_weights_(side.Put(Drawn(kDim, 10))) {
    const WeightType weights = DenseWeights(c.type);
    for (int h = 0; h < kHeads; ++h) {
      query_maps_.push_back(side.Matrix(Drawn(kRank * kDim, 6 + h, 0.3f), kRank, weights));
      key_maps_.push_back(side.Matrix(Drawn(kRank * width_, 8 + h, 0.3f), kRank, weights));
    }
    for (int t = 0; t < n_tokens; ++t) {
      // Two sequences, whose first tokens meet whole keys.
      const int position = t < n_tokens / 2 ? t : t - n_tokens / 2;
      tokens_.push_back({.token_id = 0, .position = position, .meets_whole_keys = position < 2});
    }
  }

  RotatePlan Plan() {
    for (int h = 0; h < kHeads; ++h) heads_.push_back(HeadOf(h));
    return {.tokens = tokens_,
            .heads = heads_,
            .gqa_group = kGroup,
            .head_dim = kDim,
            .stride = kStride,
            .query_weights = case_.weighs_queries ? query_weights_.place() : ObjectPlace(),
            .cos = cos_.place(),
            .sin = sin_.place(),
            .key_cos = sin_.place(),
            .key_sin = cos_.place(),
            .rope_dim = case_.rope_dim,
            .first_unturned = case_.first_unturned,
            .first_less_mean = 3,
            .first_less_offset = case_.first_less_offset,
            .zeroed_channel = case_.zeroed_channel,
            .zeroes_first_query_only = case_.zeroes_first_query_only,
            .keys_per_map = n_joined_,
            .out_type = case_.type};
  }
  std::vector<float> TurnedRows() const {
    std::vector<float> all = Got(turned_q_, kHeads * kGroup * width_);
    const std::vector<float> keys = Got(turned_k_, kHeads * kDim);
    all.insert(all.end(), keys.begin(), keys.end());
    return all;
  }
  std::vector<float> MappedRows() const {
    std::vector<float> all = Got(mapped_q_, kHeads * kGroup * kRank);
    const std::vector<float> keys = Got(mapped_k_, kHeads * kRank);
    all.insert(all.end(), keys.begin(), keys.end());
    return all;
  }

 private:
  static constexpr int kHeads = 2, kGroup = 3, kDim = 16, kRank = 12, kPositions = 160;
  static constexpr int kStride = kHeads * (kGroup + 1) * kDim;

  MachineBuffer Rows(int64_t width) const {
    return side_.Put(Drawn(n_tokens_ * width, 9), case_.type);
  }
  std::vector<float> Got(const MachineBuffer& rows, int64_t width) const {
    return side_.Get(rows, n_tokens_ * width, case_.type);
  }
  HeadTurn HeadOf(int h) const {
    const int64_t element = SizeOf(case_.type), part = h % n_joined_;
    const int64_t f32_row = kDim * int64_t{sizeof(float)};
    HeadTurn head = {.q = qk_.place() + h * kGroup * f32_row,
                     .k = qk_.place() + (kHeads * kGroup + h) * f32_row,
                     .turned_q = turned_q_.place() + h * kGroup * width_ * element,
                     .turned_q_stride = kHeads * kGroup * width_,
                     .turned_q_width = width_,
                     .turned_q_place = static_cast<int>(part * kDim),
                     .turned_k = {turned_k_.place() + h * kDim * element, kHeads * kDim}};
    if (case_.has_offset) head.key_offset = offset_.place() + h * f32_row;
    if (case_.has_mean) head.turning_mean = mean_.place() + h * f32_row;
    if (!case_.has_maps) return head;
    head.query_map = query_maps_[h].id();
    head.mapped_q = mapped_q_.place() + h * kGroup * kRank * element;
    head.mapped_q_stride = kHeads * kGroup * kRank;
    if (part > 0) return head;
    head.key_map = key_maps_[h].id();
    head.joined_k = head.turned_k;
    head.mapped_k = mapped_k_.place() + h * n_tokens_ * kRank * element;
    if (case_.adds_values) head.added_v = {v_.place(), kRank};
    return head;
  }

  TurnCase case_;
  Side side_;
  int n_tokens_, n_joined_, width_;
  MachineBuffer qk_, turned_q_, turned_k_, mapped_q_, mapped_k_, v_, cos_, sin_, offset_, mean_;
  MachineBuffer query_weights_;
  std::vector<Weight> query_maps_, key_maps_;
  std::vector<TokenPlace> tokens_;
  std::vector<HeadTurn> heads_;
};

using RowTurnsTest = RowVerbsTest;
TEST_F(RowTurnsTest, QueriesAndKeysTurnAndAreMapped) {
  const TurnCase cases[] = {
      {},
      {.type = DType::kBf16, .zeroed_channel = 15},
      {.has_maps = true, .joins_two = true, .zeroed_channel = 15, .zeroes_first_query_only = true},
      {.type = DType::kBf16, .zeroed_channel = 7, .zeroes_first_query_only = true},
      {.rope_dim = 8, .has_offset = true, .first_less_offset = 4},
      {.has_offset = true, .first_unturned = 3, .zeroed_channel = 0},
      {.has_offset = true, .has_mean = true, .has_maps = true},
      {.type = DType::kBf16, .has_offset = true, .has_maps = true, .adds_values = true},
      {.rope_dim = 12, .has_mean = true, .has_maps = true, .joins_two = true, .adds_values = true},
      {.type = DType::kBf16, .has_offset = true, .has_maps = true, .joins_two = true},
      {.rope_dim = 8, .joins_two = true, .zeroed_channel = 3, .weighs_queries = true},
      {.type = DType::kBf16, .weighs_queries = true},
  };
  for (const TurnCase& c : cases) {
    for (const int n_tokens : {1, 12, 80, 300}) {
      const auto rows_of = [&](bool mapped) {
        return [&, mapped](const Side& side, auto& verbs) {
          Turn turn(c, side, n_tokens);
          verbs.RotateAndMap(turn.Plan());
          return mapped ? turn.MappedRows() : turn.TurnedRows();
        };
      };
      ExpectLikeCpu(rows_of(false), 0);
      ExpectLikeCpu(rows_of(true), c.type == DType::kBf16 ? 2 * kBf16Bound : kF32Bound);
    }
  }
}

}  // namespace
}  // namespace kvlathe
