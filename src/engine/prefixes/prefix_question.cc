#include "engine/prefixes/prefix_question.h"

#include <algorithm>

#include "base/sha256.h"

namespace kvlathe {

std::string PlaceOf(const PrefixKey& key) {
  return DigestOf({PlaceText(*key.identity, *key.layout)});
}

PrefixOffer OfferOf(const PrefixQuestion& question, int n_equal, int64_t entry_n_prompt,
                    const std::function<int(int64_t)>& most_shareable) {
  const PrefixOffer as_asked = {most_shareable(question.n_prompt), question.n_prompt};
  if (as_asked.n_tokens == n_equal || entry_n_prompt > n_equal ||
      entry_n_prompt == question.n_prompt || !question.may_end_prompt_at ||
      !question.may_end_prompt_at(entry_n_prompt)) {
    return as_asked;
  }
  const PrefixOffer as_session = {most_shareable(entry_n_prompt), entry_n_prompt};
  return as_session.n_tokens > as_asked.n_tokens ? as_session : as_asked;
}

int CommonTokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<int>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace kvlathe
