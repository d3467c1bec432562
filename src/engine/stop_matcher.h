// A StopMatcher ends a generated text before a stop string.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvlathe {

// Takes a text piece by piece and gives it back up to the first stop string. What might be the
// beginning of one is held back until it is decided. The result does not depend on how the text is
// cut into pieces: the stop string that is complete first ends the text, and of several that are
// complete at the same byte the longest. Bytes are compared; whole characters go in and come out.
// Time per byte: the lengths of all stop strings.
class StopMatcher {
 public:
  // Without stop strings everything passes. None may be empty (CheckStops).
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  // kInvalidArgument for an empty stop string, which would end every text at its beginning.
  static Status CheckStops(std::span<const std::string> stops);

  // The text that is decided now. Nothing any more once stopped.
  std::string Push(std::string_view piece);
  // What is held back, at the end of the text. Nothing once stopped.
  std::string Finish();
  bool stopped() const { return stopped_; }
  // What the text ended at; empty where it has not.
  const std::string& stop() const { return stop_; }

 private:
  size_t LongestStopThatEndsAt(size_t end) const;
  size_t BytesToHold() const;

  std::vector<std::string> stops_;
  std::string held_;
  std::string stop_;
  bool stopped_ = false;
};

}  // namespace kvlathe
