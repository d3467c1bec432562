// A TextStream makes of the tokens that an engine generates the text that a user reads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/stop_matcher.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {

// The engine works on tokens; whoever shows text puts one of these behind its token callback and
// ends the request with FinishReason::kStop when a stop string has appeared.
class TextStream {
 public:
  // `tokenizer` outlives the stream. `stops` have passed StopMatcher::CheckStops.
  TextStream(const Tokenizer* tokenizer, std::vector<std::string> stops,
             const DetokenizerOptions& options = {.continues_text = true})
      : detokenizer_(tokenizer, options), matcher_(std::move(stops)) {}

  // The tokens in front: where they end within a character, its rest completes it. Stop strings are
  // found in what follows only.
  void ContinueAfter(std::span<const int32_t> ids) {
    for (const int32_t id : ids) detokenizer_.Push(id);
  }
  // Whole characters, before any stop string.
  std::string Push(int32_t id) { return matcher_.Push(detokenizer_.Push(id)); }
  // What was held back, after the last token.
  std::string Finish() {
    std::string text = matcher_.Push(detokenizer_.Finish());
    return text + matcher_.Finish();
  }
  bool stopped() const { return matcher_.stopped(); }
  const std::string& stop() const { return matcher_.stop(); }

 private:
  StreamingDetokenizer detokenizer_;
  StopMatcher matcher_;
};

}  // namespace kvlathe
