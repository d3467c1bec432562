// A token constraint says what may come next in a sequence: by it a grammar steers generation.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"

namespace kvlathe {

// Of one request, called on the thread that steps the engine only: Mask before a token is chosen,
// Accept with the token that was.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Sets the logits, [vocab_size], of all tokens that may not come next to -infinity. At least one
  // stays. The ids at which the request ends (Request::stop_ids) stay exactly where the text may
  // end here.
  virtual void Mask(std::span<float> logits) = 0;
  // The next token, one that Mask let pass. An error ends the request with it.
  virtual Status Accept(int32_t token) = 0;
  // Whether nothing but the end may follow: the request then ends with kStop, and no step is spent
  // on the end token.
  virtual bool is_complete() const = 0;
};

}  // namespace kvlathe
