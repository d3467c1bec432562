// The kernel of sealing that makes trellis codes (unit_codes.h): for every word of a group of lines
// it looks for the path that loses least, by Viterbi's algorithm from the last line of the group to
// its first. Only files that are compiled for one instruction set may include this.
//
// The windows of the last lines go round the end of the word, so a path must end in the state in
// which it begins. To try every such state would take a lap for each. A lap begins here in any
// state, and a second one with what the first has made of the states: its best path ends in one
// state and began, where the laps meet, in another. Both are tried, which loses 1% more (1 bit) to
// 3% more (2 bits) than trying all of them.
#pragma once

#include "cpu/kernels/seal/seal_kernels.h"
#include "cpu/kernels/seal/seal_vectors.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {
namespace {

// The low bits of a window are the code of a line, those above are the state in which the path
// comes to the line: the low bits of the window of the line behind it.
template <int kBits>
class PathFinder {
 public:
  static constexpr int kLines = LinesPerGroup(kBits);

  explicit PathFinder(StoredUnit unit)
      : sought_(SoughtUnitValues(kBits, unit)), read_(UnitValues(kBits, unit)) {}

  // Sixteen words of the group.
  void Find(const TrellisGroup& group, int first_word) {
    for (int line = 0; line < kLines; ++line) {
      x_[line] = Load(group.x + line * group.line_step + first_word);
      weights_[line] = Load(group.weights + 32 * line + first_word);
    }
    for (Floats& cost : costs_) cost = Splat(0.0f);
    RunLap();
    RunLap();
    const Ints end = BestState();
    Ints windows[2][kLines];
    const Ints start = Trace(end, windows[0]);
    const Floats cost = RunClosedLap(start, windows[0]);
    const Ints is_better = RunClosedLap(end, windows[1]) < cost;
    for (int line = 0; line < kLines; ++line) {
      const Ints window = Select(is_better, windows[1][line], windows[0][line]);
      const Ints high = ShiftedRight(highs_[line], window) & Splat(kHasHigh ? 1 : 0);
      if (group.residual != nullptr) {
        const Ints place = window | high << kWindowBits;
        StoreLosses(x_[line], place, group.residual + line * group.residual_step + first_word);
      }
      const Ints code = (window & Splat(kWays - 1)) | high << kLow;
      Store(ToFloats(code), group.x + line * group.line_step + first_word);
    }
  }

 private:
  static constexpr bool kHasHigh = HasHighBit(kBits);
  static constexpr int kLow = LowBits(kBits), kWindowBits = LowWindowBits(kBits);
  static constexpr int kStates = 1 << (kWindowBits - kLow);
  static constexpr int kWays = 1 << kLow;  // into a state
  static constexpr float kHuge = 3e38f;
  static_assert(kStates * kLow < 32 && 1 << kWindowBits <= 32);

  // What a window of a line costs. Sets its bit of highs_ where the high bit comes nearer.
  KVL_INLINE Floats CostOf(int line, int window) {
    const Floats error = x_[line] - Splat(sought_[window]);
    Floats square = error * error;
    if constexpr (kHasHigh) {
      const Floats with_high = x_[line] - Splat(sought_[window + (1 << kWindowBits)]);
      const Floats other = with_high * with_high;
      const Ints is_high = other < square;
      highs_[line] = highs_[line] | (is_high & Splat(1 << window));
      square = Lower()(other, square);
    }
    return square * weights_[line];
  }

  // Goes on with costs_ through all lines, and notes by which of the ways into it each state is
  // reached at least cost.
  void RunLap() {
    for (int line = kLines - 1; line >= 0; --line) {
      Floats next[kStates];
      Ints choices = Splat(0);
      highs_[line] = Splat(0);
      for (int state = 0; state < kStates; ++state) {
        Floats best = Splat(kHuge);
        Ints best_way = Splat(0);
        for (int way = 0; way < kWays; ++way) {
          const int window = way * kStates + state;
          const Floats cost = costs_[window >> kLow] + CostOf(line, window);
          const Ints is_less = cost < best;
          best = Select(is_less, cost, best);
          best_way = Select(is_less, Splat(way), best_way);
        }
        next[state] = best;
        choices = choices | best_way << (kLow * state);
      }
      choices_[line] = choices;
      for (int state = 0; state < kStates; ++state) costs_[state] = next[state];
    }
  }

  KVL_INLINE Ints BestState() const {
    Floats best = costs_[0];
    Ints best_state = Splat(0);
    for (int state = 1; state < kStates; ++state) {
      const Ints is_less = costs_[state] < best;
      best = Select(is_less, costs_[state], best);
      best_state = Select(is_less, Splat(state), best_state);
    }
    return best_state;
  }

  // The windows of the last lap's path to a state. Returns the state that it comes from.
  KVL_INLINE Ints Trace(Ints state, Ints (&windows)[kLines]) const {
    for (int line = 0; line < kLines; ++line) {
      const Ints way = ShiftedRight(choices_[line], state * Splat(kLow)) & Splat(kWays - 1);
      windows[line] = way * Splat(kStates) + state;
      state = windows[line] >> kLow;
    }
    return state;
  }

  // The windows of the best path from a state to itself. Returns what it costs.
  Floats RunClosedLap(Ints state, Ints (&windows)[kLines]) {
    for (int s = 0; s < kStates; ++s) {
      costs_[s] = Select(state == Splat(s), Splat(0.0f), Splat(kHuge));
    }
    RunLap();
    Trace(state, windows);
    Floats cost = costs_[0];
    for (int s = 1; s < kStates; ++s) cost = Select(state == Splat(s), costs_[s], cost);
    return cost;
  }

  KVL_INLINE void StoreLosses(Floats x, Ints place, float* to) const {
    alignas(64) int32_t places[kLanes];
    alignas(64) float values[kLanes];
    Store(place, places);
    for (int i = 0; i < kLanes; ++i) values[i] = read_[places[i]];
    Store(x - Load(values), to);
  }

  const float *sought_, *read_;
  Floats x_[kLines], weights_[kLines];
  Floats costs_[kStates];
  Ints choices_[kLines], highs_[kLines];
};

template <int kBits>
void EncodeTrellisGroup(const TrellisGroup& group) {
  PathFinder<kBits> finder(StoredUnit::kToken);
  finder.Find(group, 0);
  finder.Find(group, kLanes);
}

void EncodeTrellis(int bits, const TrellisGroup& group) {
  switch (bits) {
    case 1:
      return EncodeTrellisGroup<1>(group);
    case 2:
      return EncodeTrellisGroup<2>(group);
    case 3:
      return EncodeTrellisGroup<3>(group);
    default:
      return EncodeTrellisGroup<4>(group);
  }
}

}  // namespace
}  // namespace kvlathe
