// What a mean KL hides: how it is spread over tokens and over the windows of a text.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvlathe {

struct KlTail {
  // Over all scored tokens, nats per token: the smallest KL with at least half, 99% and 99.9% of
  // the tokens at or below it.
  double median = 0;
  double p99 = 0;
  double p999 = 0;
  // Of the windows one by one: the largest mean KL, and the smallest share of tokens of which both
  // models find the same one likeliest. They may be of different windows.
  double worst_window = 0;
  double worst_window_top1 = 1;
};

// Sums of one window's scored tokens.
struct WindowScores {
  std::vector<float> kl;  // of each token
  int64_t n_agree = 0;    // tokens of which both models find the same one likeliest
};

// All 0, and agreement 1, without tokens; windows without tokens do not count.
KlTail TailOf(std::span<const WindowScores> windows);

}  // namespace kvlathe
