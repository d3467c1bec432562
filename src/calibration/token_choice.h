// How much of a text calibration reads, which parts of it, and which of these are held back.
#pragma once

#include <cstdint>
#include <vector>

namespace kvlathe {

using TokenSequences = std::vector<std::vector<int32_t>>;

// Where gradients are taken, sequences have so many tokens at most.
inline constexpr int kGradientWindowTokens = 1024;

// Whether a sequence is held back, so that no map, scale or share of bits is made from it. Every
// fifth is, and of two to four sequences the last; a sequence alone is not.
bool IsHeldBack(int64_t sequence_idx, int64_t n_sequences);

// How many tokens calibration reads of a text, in a model with n_weights weights in its matrices:
// 24,576 up to 2^27 weights; with more weights fewer, by the root of their number, but at least
// 3,072. docs/basis.md, Tokens, has what they are chosen by.
int64_t CalibrationTokens(int64_t n_weights);

// Chooses sequences of n_tokens tokens in all, to the nearest number of sequences as long as the
// first, from all over the text: evenly spread and in its order. All of them where there are no
// more, and one at least.
TokenSequences ChooseSequences(TokenSequences sequences, int64_t n_tokens);

}  // namespace kvlathe
