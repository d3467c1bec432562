#include "engine/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace kvlathe {

Status StopMatcher::CheckStops(std::span<const std::string> stops) {
  if (std::none_of(stops.begin(), stops.end(), [](const auto& s) { return s.empty(); })) {
    return OkStatus();
  }
  return Error(StatusCode::kInvalidArgument,
               "a stop string is empty; leave it out or give it at least one character");
}

size_t StopMatcher::LongestStopThatEndsAt(size_t end) const {
  size_t longest = 0;
  const std::string_view text = std::string_view(held_).substr(0, end);
  for (const std::string& stop : stops_) {
    if (text.ends_with(stop)) longest = std::max(longest, stop.size());
  }
  return longest;
}

// The longest end of held_ with which a stop string begins.
size_t StopMatcher::BytesToHold() const {
  const std::string_view text = held_;
  size_t n_hold = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, text.size()); n > n_hold; --n) {
      if (text.ends_with(std::string_view(stop).substr(0, n))) n_hold = n;
    }
  }
  return n_hold;
}

std::string StopMatcher::Push(std::string_view piece) {
  if (stopped_) return "";
  const size_t n_old = held_.size();
  held_ += piece;
  for (size_t end = n_old + 1; end <= held_.size(); ++end) {
    const size_t n_stop = LongestStopThatEndsAt(end);
    if (n_stop == 0) continue;
    stopped_ = true;
    stop_ = held_.substr(end - n_stop, n_stop);
    held_.resize(end - n_stop);
    return std::exchange(held_, "");
  }
  const size_t n_decided = held_.size() - BytesToHold();
  std::string decided = held_.substr(0, n_decided);
  held_.erase(0, n_decided);
  return decided;
}

std::string StopMatcher::Finish() { return std::exchange(held_, ""); }

}  // namespace kvlathe
