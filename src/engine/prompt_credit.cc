#include "engine/prompt_credit.h"

#include <algorithm>

namespace kvlathe {

void PromptCredit::BeginStep(int n_decoding, int64_t n_reading) {
  is_any_decoding_ = n_decoding > 0;
  n_reading_ = n_reading;
  credit_ = is_any_decoding_
                ? std::min(kWhole, credit_ + kTokensOfAStep / std::min(n_decoding, kMostDecoding))
                : kWhole;
}

bool PromptCredit::Admit(int64_t n_tokens) {
  if (is_any_decoding_) {
    const int64_t price = std::min(n_tokens, kWhole);
    if (credit_ < price) return false;
    credit_ -= price;
  } else if (n_reading_ >= max_batch_tokens_) {
    return false;
  }
  n_reading_ += n_tokens;
  return true;
}

}  // namespace kvlathe
