// The search for trellis codes (cpu/kernels/seal/seal_trellis_kernels.h) by one thread for a word
// of a group of lines: costs of the states are in registers, what differs by line is in shared
// memory. The order of sums and what is taken of equal costs are those of the CPU.
#pragma once

#include "cuda/simt/simt.h"
#include "format/codes/code_lines.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe::cuda {

// Of 1 bit.
inline constexpr int kMostLines = LinesPerGroup(1);

// What a warp keeps of the lines of its words. Each lane uses its own column alone.
struct TrellisLines {
  float x[kMostLines][simt::kWarp];
  float weights[kMostLines][simt::kWarp];
  uint32_t choices[kMostLines][simt::kWarp];
};

// The codes of a word: the low bits of all lines as they lie in it, and by line the high bits.
struct WordOfCodes {
  uint32_t word = 0, highs = 0;
};

template <int kBits>
class PathFinder {
 public:
  static constexpr int kLines = LinesPerGroup(kBits);

  // `sought` by window. `lines` has x and the weights of the lane's word.
  KVL_DEVICE PathFinder(const float* sought, TrellisLines* lines)
      : sought_(sought), lines_(*lines), lane_(simt::Lane()) {}

  KVL_DEVICE WordOfCodes Find() {
    for (int state = 0; state < kStates; ++state) costs_[state] = 0.0f;
    int start = 0, end = 0;
    float least = 0;
    WordOfCodes codes;
    // Laps 0 and 1 begin in any state, 2 and 3 end where they begin. In one loop, because the code
    // of a lap is long.
    KVL_NO_UNROLL
    for (int lap = 0; lap < 4; ++lap) {
      if (lap >= 2) BeginAt(lap == 2 ? start : end);
      RunLap();
      if (lap == 0) continue;
      if (lap == 1) end = BestState();
      WordOfCodes found;
      const int traced = lap == 2 ? start : end;
      const int before = Trace(traced, &found);
      const float cost = CostAt(traced);
      if (lap == 1) start = before;
      if (lap == 2 || cost < least) codes = found;
      if (lap == 2) least = cost;
    }
    return codes;
  }

 private:
  static constexpr bool kHasHigh = HasHighBit(kBits);
  static constexpr int kLow = LowBits(kBits), kWindowBits = LowWindowBits(kBits);
  static constexpr int kStates = 1 << (kWindowBits - kLow);
  static constexpr int kWays = 1 << kLow;  // into a state
  static constexpr float kHuge = 3e38f;
  // Choices of a line have kStates * kLow bits, and behind them lie those of the high bits, by
  // window.
  static constexpr int kHighShift = 16;
  static_assert(kStates * kLow <= kHighShift && (!kHasHigh || 1 << kWindowBits <= 16));

  // What a window of a line costs. Sets its bit of `highs` where the high bit comes nearer.
  KVL_DEVICE float CostOf(float x, float weight, int window, uint32_t* highs) const {
    const float error = x - sought_[window];
    float square = error * error;
    if constexpr (kHasHigh) {
      const float with_high = x - sought_[window + (1 << kWindowBits)];
      const float other = with_high * with_high;
      const bool is_high = other < square;
      *highs |= is_high ? 1u << window : 0u;
      square = is_high ? other : square;
    }
    return square * weight;
  }

  // Goes on with costs_ through all lines, and notes by which of the ways into it each state is
  // reached at least cost.
  KVL_DEVICE void RunLap() {
    KVL_NO_UNROLL
    for (int line = kLines - 1; line >= 0; --line) {
      const float x = lines_.x[line][lane_], weight = lines_.weights[line][lane_];
      float next[kStates];
      uint32_t choices = 0, highs = 0;
      KVL_UNROLL
      for (int state = 0; state < kStates; ++state) {
        float best = kHuge;
        uint32_t best_way = 0;
        KVL_UNROLL
        for (int way = 0; way < kWays; ++way) {
          const int window = way * kStates + state;
          const float cost = costs_[window >> kLow] + CostOf(x, weight, window, &highs);
          const bool is_less = cost < best;
          best = is_less ? cost : best;
          best_way = is_less ? static_cast<uint32_t>(way) : best_way;
        }
        next[state] = best;
        choices |= best_way << (kLow * state);
      }
      lines_.choices[line][lane_] = choices | highs << kHighShift;
      for (int state = 0; state < kStates; ++state) costs_[state] = next[state];
    }
  }

  KVL_DEVICE int BestState() const {
    float best = costs_[0];
    int best_state = 0;
    for (int state = 1; state < kStates; ++state) {
      const bool is_less = costs_[state] < best;
      best = is_less ? costs_[state] : best;
      best_state = is_less ? state : best_state;
    }
    return best_state;
  }

  // The codes of the last lap's path to a state. Returns the state that it comes from.
  KVL_DEVICE int Trace(int state, WordOfCodes* codes) const {
    *codes = {};
    KVL_NO_UNROLL
    for (int line = 0; line < kLines; ++line) {
      const uint32_t choices = lines_.choices[line][lane_];
      const int way = static_cast<int>(choices >> (state * kLow)) & (kWays - 1);
      const int window = way * kStates + state;
      codes->word |= static_cast<uint32_t>(window & (kWays - 1)) << (kLow * line);
      if (kHasHigh) codes->highs |= (choices >> (kHighShift + window) & 1u) << line;
      state = window >> kLow;
    }
    return state;
  }

  KVL_DEVICE void BeginAt(int state) {
    for (int s = 0; s < kStates; ++s) costs_[s] = state == s ? 0.0f : kHuge;
  }

  // By bits, or a compiler makes it an index into memory.
  KVL_DEVICE float CostAt(int state) const {
    uint32_t bits = 0;
    KVL_UNROLL
    for (int s = 0; s < kStates; ++s) {
      bits |= state == s ? std::bit_cast<uint32_t>(costs_[s]) : 0u;
    }
    return std::bit_cast<float>(bits);
  }

  const float* sought_;
  TrellisLines& lines_;
  int lane_;
  float costs_[kStates];
};

}  // namespace kvlathe::cuda
