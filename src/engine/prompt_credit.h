// Prompts wait until the sequences that decode have gone far enough for them to begin.
//
// A step reads up to max_batch_tokens of prompts, and whoever decodes gets one token in that time,
// in which without prompts it would get tens of them. Where memory holds many requests and prompts
// are long, prompts would be read all of the time, and each request would wait for those that came
// long after it: all of them would end late, where a cache with less room, in which newer requests
// have to wait, lets the older ones end (docs/decisions/prompts-wait-for-decoding.md).
#pragma once

#include <cstdint>

namespace kvlathe {

// Counts in tokens. A prompt begins when there is credit for its tokens, or the whole credit where
// it is longer, and takes it. A step in which n sequences decode brings kTokensOfAStep / n: a
// prompt delays each of them, so the more they are, the further they go before. From kMostDecoding
// on n counts as that, so that no prompt waits for more than 64 steps once it is the first in the
// queue and memory has room. Where nothing decodes nobody is delayed: prompts begin as fast as
// steps have room for them, and the credit is whole again.
//
// How many sequences decode at a time follows from it. With prompts of 1800 tokens and answers of
// 70 they are two or three, with prompts of 170 and answers of 110 as many as memory holds.
class PromptCredit {
 public:
  static constexpr int64_t kWhole = 2048;
  static constexpr int64_t kTokensOfAStep = 128;
  static constexpr int kMostDecoding = 4;

  explicit PromptCredit(int max_batch_tokens) : max_batch_tokens_(max_batch_tokens) {}

  // A step begins in which n_decoding sequences decode, beside others that have n_reading tokens to
  // read before they do.
  void BeginStep(int n_decoding, int64_t n_reading);
  // Whether a sequence with n_tokens to read may begin with this step, in which it takes part then.
  bool Admit(int64_t n_tokens);

 private:
  int64_t max_batch_tokens_;
  int64_t credit_ = kWhole;
  bool is_any_decoding_ = false;
  int64_t n_reading_ = 0;
};

}  // namespace kvlathe
