// Attention where positions become entries of several, against plain sums in double.
#include "cpu/attention/merged_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "cpu/attention/attention.h"
#include "cpu/kernels/residents/cpu_residents.h"
#include "cpu/kernels/testing/attend_ref.h"
#include "cpu/memory/host_places.h"

namespace kvlathe {
namespace {

// Where all heads of a test lie.
CpuDevice& Memory() {
  static CpuDevice memory;
  return memory;
}
ObjectPlace At(const void* rows) {
  static const HostPlaces places(&Memory());
  return places(rows);
}

constexpr int kRankK = 32, kRankV = 48, kGroup = 2, kSink = 3;
const float kSmScale = 1.0f / std::sqrt(static_cast<float>(kRankK));
constexpr float kCap = 3;

// One KV head: every position has a row, of which those stay that close their entry.
class MergedHead {
 public:
  MergedHead(int n_total, int n_tokens, double share_merged, uint64_t seed)
      : n_total_(n_total), n_tokens_(n_tokens), random_(seed) {
    q_ = Normal(n_total * kGroup * kRankK, 2);
    k_ = Normal(n_total * kRankK, 1);
    v_ = Normal(n_total * kRankV, 1);
    lost_ = Normal(kRankK, 1);
    out_.assign(n_tokens * kGroup * kRankV, NAN);
    for (int p = 0; p < n_total; ++p) {
      const bool joins = p > kSink && random_.Uniform() < share_merged;
      entry_.push_back(p < kSink ? -1 : entry_.back() + (joins ? 0 : 1));
    }
    n_closed_.assign(entry_.end() - n_tokens, entry_.end());
    Store();
  }

  HeadJob Job() {
    const int first = n_total_ - n_tokens_;
    const float* q = q_.data() + int64_t{first} * kGroup * kRankK;
    return {.device = device_.get(),
            .shape = kShape,
            .head_dim = kRankK,
            .gqa_group = kGroup,
            .n_tokens = n_tokens_,
            .q = At(q),
            .q_stride = kRankK,
            .q_full = At(q),
            .q_full_stride = kRankK,
            .blocks = blocks_,
            .n_entries = std::max(0, n_closed_.back()),
            .first_visible = std::max(0, n_closed_[0]),
            .sinks = {.k = Stored(k_),
                      .v = Stored(v_),
                      .n = std::min(kSink, n_total_),
                      .first_visible = first + 1},
            .lost_keys = At(lost_.data()),
            .out = At(out_.data()),
            .out_stride = kGroup * kRankV,
            .merged = {.n_closed = n_closed_.data(),
                       .k = At(k_.data() + first * kRankK),
                       .k_stride = kRankK,
                       .v = At(v_.data() + first * kRankV),
                       .v_stride = kRankV}};
  }

  // A position sees the sinks, itself, and of every entry before its own the position that closed
  // it.
  void ExpectMatchesReference(std::string_view what) const {
    for (int t = 0; t < n_tokens_; ++t) {
      const int pos = n_total_ - n_tokens_ + t;
      for (int h = 0; h < kGroup; ++h) {
        std::vector<double> want(kRankV);
        double sum = 0;
        for (int p = 0; p <= pos; ++p) {
          const bool is_seen = p < kSink || p == pos || entry_[p + 1] > entry_[p];
          if (!is_seen) continue;
          double score = 0;
          for (int d = 0; d < kRankK; ++d) {
            score += double{q_[(pos * kGroup + h) * kRankK + d]} * (k_[p * kRankK + d] + lost_[d]);
          }
          const double weight = std::exp(CapScoreRef(score * kSmScale, kCap));
          sum += weight;
          for (int r = 0; r < kRankV; ++r) want[r] += weight * v_[p * kRankV + r];
        }
        for (int r = 0; r < kRankV; ++r) {
          ASSERT_NEAR(out_[(t * kGroup + h) * kRankV + r], want[r] / sum, 2e-5)
              << what << ", position " << pos << " of " << n_total_;
        }
      }
    }
  }
  const std::vector<float>& out() const { return out_; }

 private:
  static constexpr BlockShape kShape = {kRankK, kRankV, DType::kF32};

  std::vector<float> Normal(int n, double sigma) {
    std::vector<float> values(n);
    for (float& x : values) x = static_cast<float>(sigma * random_.Normal());
    return values;
  }

  // Slots without an entry are NaN; the last entry has the row of the last position.
  void Store() {
    const int n_blocks = (std::max(0, entry_.back() + 1) + kBlockSize - 1) / kBlockSize;
    const int64_t n_bytes = std::max(1, n_blocks) * BlockBytes(kShape);
    const uint32_t region = device_->Allocate(n_bytes);
    device_->Fill({{region, 0}}, std::byte{0xff}, n_bytes);
    for (int b = 0; b < n_blocks; ++b) {
      blocks_.push_back({region, static_cast<uint32_t>(b * BlockBytes(kShape) / kDeviceAlignment)});
    }
    const CpuAccess access(*device_);
    for (int p = kSink; p < n_total_; ++p) {
      GetAttendKernels(Isa::kScalar, DType::kF32)
          .append({.shape = kShape,
                   .block = access.At(blocks_[entry_[p] / kBlockSize]),
                   .first_slot = entry_[p] % kBlockSize,
                   .n_rows = 1,
                   .k = &k_[p * kRankK],
                   .k_stride = kRankK,
                   .v = &v_[p * kRankV],
                   .v_stride = kRankV});
    }
  }

  // A region of its own with these numbers.
  ObjectPlace Stored(std::span<const float> numbers) {
    const auto bytes = std::as_bytes(numbers);
    const ObjectPlace place = {{device_->Allocate(std::ssize(bytes)), 0}};
    device_->Upload(place, bytes);
    return place;
  }

  std::unique_ptr<CpuDevice> device_ = std::make_unique<CpuDevice>();
  int n_total_, n_tokens_;
  Random random_;
  std::vector<float> q_, k_, v_, lost_, out_;
  std::vector<int> entry_;     // of each position; -1 in the sink
  std::vector<int> n_closed_;  // of the step's tokens
  std::vector<ObjectId> blocks_;
};

// Chunks and decode tokens, short and long enough to be split, from nothing to nearly all merged.
TEST(MergedRowsTest, MatchReferenceForAllInstructionSetsSchedulesAndWorkerCounts) {
  for (const Isa isa : AvailableIsas()) {
    for (const int n_workers : {1, 3}) {
      for (const Schedule schedule : {Schedule::kStatic, Schedule::kLpt, Schedule::kBalanced}) {
        for (const bool is_deterministic : {false, true}) {
          std::vector<MergedHead> heads;
          for (const double share : {0.0, 0.6, 0.97}) {
            for (const auto& [n_total, n_tokens] :
                 {std::pair(2, 2), {9, 8}, {1500, 1}, {400, 390}, {600, 70}, {kSink + 1, 1}}) {
              heads.emplace_back(n_total, n_tokens, share, 7 + heads.size());
            }
          }
          std::vector<HeadJob> jobs;
          for (MergedHead& head : heads) jobs.push_back(head.Job());
          ThreadPool pool(n_workers);
          const CpuResidents residents(&Memory());
          Attention attention(&pool, isa, &Memory(), &residents);
          attention.set_deterministic(is_deterministic);
          ASSERT_TRUE(attention.Run(jobs, {kSmScale, kCap}, schedule).ok());
          for (const MergedHead& head : heads) head.ExpectMatchesReference(IsaName(isa));
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvlathe
