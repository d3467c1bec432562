#include "calibration/gradient_windows.h"

#include <algorithm>

namespace kvlathe {
namespace {

// Windows of the sequences that are held back, or of the others, in the order in which they are
// wanted: first ones before second ones.
std::vector<GradientWindow> Candidates(std::span<const int64_t> sequence_tokens,
                                       bool is_held_back) {
  std::vector<GradientWindow> windows;
  const auto n_sequences = std::ssize(sequence_tokens);
  const int64_t longest = *std::max_element(sequence_tokens.begin(), sequence_tokens.end());
  for (int64_t begin = 0; begin < longest; begin += kGradientWindowTokens) {
    for (int64_t i = 0; i < n_sequences; ++i) {
      const int64_t n = std::min<int64_t>(sequence_tokens[i] - begin, kGradientWindowTokens);
      // What is left of a sequence behind its first window counts if it is worth the way.
      const bool counts = begin == 0 ? n > 0 : n >= kGradientWindowTokens / 2;
      if (!counts || IsHeldBack(i, n_sequences) != is_held_back) continue;
      windows.push_back({i, begin, n, is_held_back});
    }
  }
  return windows;
}

void Choose(std::span<const int64_t> sequence_tokens, bool is_held_back, int64_t n_tokens,
            std::vector<GradientWindow>* chosen) {
  const std::vector<GradientWindow> all = Candidates(sequence_tokens, is_held_back);
  if (all.empty()) return;
  const int64_t window_tokens = std::max_element(all.begin(), all.end(), [](auto& a, auto& b) {
                                  return a.n_tokens < b.n_tokens;
                                })->n_tokens;
  const int64_t n_wanted = (n_tokens + window_tokens - 1) / window_tokens;
  const int64_t n_first =
      std::count_if(all.begin(), all.end(), [](const GradientWindow& w) { return w.begin == 0; });
  const int64_t n = std::min<int64_t>(n_wanted, std::ssize(all));
  const int64_t n_from_first = std::min(n, n_first);
  for (int64_t i = 0; i < n_from_first; ++i) chosen->push_back(all[i * n_first / n_from_first]);
  const int64_t n_more = n - n_from_first, n_left = std::ssize(all) - n_first;
  for (int64_t i = 0; i < n_more; ++i) chosen->push_back(all[n_first + i * n_left / n_more]);
}

}  // namespace

bool IsHeldBack(int64_t sequence_idx, int64_t n_sequences) {
  if (n_sequences < 4) return n_sequences > 1 && sequence_idx == n_sequences - 1;
  return sequence_idx % 4 == 3;
}

std::vector<GradientWindow> ChooseGradientWindows(std::span<const int64_t> sequence_tokens,
                                                  int64_t n_tokens) {
  std::vector<GradientWindow> chosen;
  if (sequence_tokens.empty()) return chosen;
  Choose(sequence_tokens, false, n_tokens, &chosen);
  Choose(sequence_tokens, true, (n_tokens + 5) / 6, &chosen);
  std::sort(chosen.begin(), chosen.end(), [](const GradientWindow& a, const GradientWindow& b) {
    return a.sequence_idx != b.sequence_idx ? a.sequence_idx < b.sequence_idx : a.begin < b.begin;
  });
  return chosen;
}

int64_t GradientTokens(int64_t n_weights) {
  constexpr int64_t kMost = 20480, kLeast = 2048, kWeights = int64_t{3} << 27;
  if (n_weights <= kWeights) return kMost;
  const double share = static_cast<double>(kWeights) / static_cast<double>(n_weights);
  return std::max(kLeast, static_cast<int64_t>(static_cast<double>(kMost) * share));
}

}  // namespace kvlathe
