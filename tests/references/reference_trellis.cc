#include "references/reference_trellis.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvlathe::testing {
namespace {

// By bits and window.
const std::vector<double> kSought[] = {
    {},
    {-0.69140625,  0.470703125, 0.9921875,   -0.296875,   0.041015625, -0.119140625, 0.65625,
     -1.0703125,   -2.125,      -0.56640625, -0.04296875, 1.328125,    0.361328125,  0.7109375,
     0.271484375,  -1.2578125,  -0.68359375, 0.7734375,   0.9765625,   -0.34765625,  -0.10546875,
     -0.259765625, -0.91015625, 0.70703125,  0.6953125,   2.125,       -1.265625,    -0.203125,
     -0.416015625, 0.04296875,  -0.6171875,  1.1015625},
    {0.462890625,  -0.310546875, 1.34375,     -1.34375,    -1.0546875, 1.203125,  0.1328125,
     -0.376953125, 2.5,          0.91015625,  0.185546875, -0.6171875, 0.09375,   -0.6328125,
     -1.640625,    0.69140625,   -0.59765625, 0.04296875,  -1.8046875, 0.9296875, 0.5390625,
     -0.173828125, 1.578125,     -1.1796875,  -2.53125,    0.71875,    -0.71875,  -0.00390625,
     -0.9765625,   -0.111328125, 0.5078125,   1.71875},
    {2.0,        -1.2890625,  -0.06640625, -0.8125,     -2.296875,  0.4296875,  -0.470703125,
     -1.5703125, 0.306640625, -1.890625,   2.796875,    -1.1015625, 1.921875,   0.609375,
     -1.3203125, -0.765625,   0.56640625,  0.224609375, 1.0546875,  -0.3671875, -0.029296875,
     1.4453125,  -0.93359375, 0.83984375,  0.8359375,   -0.09375,   1.4296875,  -0.51953125,
     1.1328125,  -0.3359375,  0.142578125, -3.03125},
    {2.078125,     0.15234375, 3.328125,    -0.4765625, -0.06640625, -1.71875,   -0.94921875,
     -0.244140625, 1.1171875,  -0.71484375, -2.546875,  1.4921875,   0.6015625,  0.8359375,
     0.35546875,   -1.2578125, -0.5390625,  -1.09375,   -0.80859375, 0.98828125, 0.25,
     0.45703125,   -1.453125,  0.048828125, -2.046875,  -3.34375,    2.546875,   1.7578125,
     -0.14453125,  -0.34375,   1.296875,    0.70703125}};

// A word of codes, from its lowest line on.
struct Number {
  double* x;
  double scale;
};
using Word = std::vector<Number>;

struct Path {
  std::vector<int> windows;
  double cost = 0;
};

class Search {
 public:
  Search(int bits, const Word& word)
      : bits_(bits),
        low_bits_(bits == 3 ? 2 : bits),
        n_windows_(bits == 3 ? 16 : 32),
        n_states_(n_windows_ >> low_bits_),
        word_(word) {}

  Path Best() {
    std::vector<double> costs(n_states_, 0.0);
    costs = Lap(costs);
    costs = Lap(costs);
    int end = 0;
    for (int s = 1; s < n_states_; ++s) {
      if (costs[s] < costs[end]) end = s;
    }
    const int start = Trace(end).second;
    const Path of_start = Closed(start), of_end = Closed(end);
    return of_end.cost < of_start.cost ? of_end : of_start;
  }

  // The window with the high bit of 3 bits, where that is nearer.
  int Nearest(int line, int window) const {
    if (bits_ != 3) return window;
    return ErrorOf(line, window + 16) < ErrorOf(line, window) ? window + 16 : window;
  }

 private:
  double ErrorOf(int line, int window) const {
    return std::pow(*word_[line].x / word_[line].scale - kSought[bits_][window], 2);
  }

  std::vector<double> Lap(std::vector<double> costs) {
    came_by_.assign(word_.size(), std::vector<int>(n_states_, 0));
    for (int line = static_cast<int>(word_.size()) - 1; line >= 0; --line) {
      std::vector<double> next(n_states_, INFINITY);
      const double weight = word_[line].scale * word_[line].scale;
      for (int window = 0; window < n_windows_; ++window) {
        const double cost =
            costs[window >> low_bits_] + weight * ErrorOf(line, Nearest(line, window));
        const int state = window % n_states_;
        if (cost < next[state]) next[state] = cost, came_by_[line][state] = window;
      }
      costs = next;
    }
    return costs;
  }

  std::pair<std::vector<int>, int> Trace(int state) const {
    std::vector<int> windows;
    for (size_t line = 0; line < word_.size(); ++line) {
      windows.push_back(came_by_[line][state]);
      state = windows.back() >> low_bits_;
    }
    return {windows, state};
  }

  Path Closed(int state) {
    std::vector<double> costs(n_states_, INFINITY);
    costs[state] = 0;
    costs = Lap(costs);
    return {Trace(state).first, costs[state]};
  }

  int bits_, low_bits_, n_windows_, n_states_;
  Word word_;
  std::vector<std::vector<int>> came_by_;
};

}  // namespace

bool HasPaths(int bits) { return bits <= 4; }

double UnitLoss(int bits, bool has_token_scales) {
  constexpr double kLosses[2][6] = {{1, 0.414063, 0.150466, 0.0484252, 0.0141481, 0.00386733},
                                    {1, 0.32162, 0.09918, 0.02916, 0.00881, 0.00292413}};
  return bits == 8 ? 1 / 3072.0 : kLosses[has_token_scales ? 1 : 0][bits];
}

double ReadInPlaceOf(int bits, double sought, bool has_token_scales) {
  if (bits == 8) return sought;
  const double loss = UnitLoss(bits, has_token_scales);
  const double value = sought * 4 / (loss + 4 * (1 - loss));
  const double step = std::max(std::ldexp(1.0, std::ilogb(value) - 7), 1 / 512.0);
  return std::copysign(std::floor(std::abs(value) / step + 0.5) * step, value);
}

void EncodePaths(const PathSegment& segment, size_t begin, const std::vector<double>& scales,
                 Matrix* rows) {
  const int lines_per_word = 16 / (segment.bits == 3 ? 2 : segment.bits);
  // Words of each group of lines of the segment: of 16 tokens by 2 channels of K, or of 16 channels
  // by 2 tokens of V.
  const int n_lines = segment.is_key ? 2 * segment.n : 32;
  const int n_columns = segment.is_key ? 1 : segment.n / 16;
  for (int column = 0; column < n_columns; ++column) {
    for (int first_line = 0; first_line < n_lines; first_line += lines_per_word) {
      for (int w = 0; w < 32; ++w) {
        Word word;
        for (int line = first_line; line < first_line + lines_per_word; ++line) {
          const int token = segment.is_key ? line % 4 * 16 + w / 2 : 2 * line + w % 2;
          const int channel = segment.is_key ? line / 4 * 2 + w % 2 : 16 * column + w / 2;
          word.push_back({&(*rows)[begin + token][segment.first + channel], scales[token]});
        }
        Search search(segment.bits, word);
        const Path path = search.Best();
        std::vector<double> values;
        for (size_t i = 0; i < word.size(); ++i) {
          const int window = search.Nearest(static_cast<int>(i), path.windows[i]);
          values.push_back(word[i].scale *
                           ReadInPlaceOf(segment.bits, kSought[segment.bits][window], true));
        }
        for (size_t i = 0; i < word.size(); ++i) *word[i].x = values[i];
      }
    }
  }
}

}  // namespace kvlathe::testing
