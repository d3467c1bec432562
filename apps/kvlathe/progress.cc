#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "kvlathe/open_workspace.h"

namespace kvlathe {
namespace {

// What is done by then needs no word; and how often the others are told.
constexpr double kTerminalQuiet = 2, kTerminalPeriod = 0.2;
constexpr double kLogQuiet = 5, kLogPeriod = 10;

// One piece of work after another. A terminal sees a bar; a log gets a line now and then. The first
// says what is done and for how long, about.
class ProgressLine {
 public:
  ProgressLine() : is_terminal_(isatty(STDERR_FILENO) != 0) {}
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Tell(const std::string& what, double fraction) {
    if (what != what_) {
      Clear();
      what_ = what;
      since_start_.Restart();
      first_fraction_ = fraction;
      told_at_ = 0;
    }
    if (fraction >= 1) {
      Clear();
      what_.clear();  // the next of the same kind is another
      return;
    }
    const double seconds = since_start_.Seconds();
    const double quiet = is_terminal_ ? kTerminalQuiet : kLogQuiet;
    // The first share of a piece says too little of the rest.
    if (seconds < quiet || (fraction < 0.01 && seconds < 5 * quiet)) return;
    if (told_at_ > 0 && seconds - told_at_ < (is_terminal_ ? kTerminalPeriod : kLogPeriod)) return;
    told_at_ = seconds;
    const std::string done = fmt::format("{:.0f}%", 100 * fraction);
    // A piece may begin with a part that was done before.
    const double by_now = fraction - first_fraction_;
    const std::string left = by_now > 0
                                 ? fmt::format("{:.0f} s left", seconds * (1 - fraction) / by_now)
                                 : "unknown time left";
    if (is_terminal_) {
      constexpr int kWidth = 20;
      const auto n_done = static_cast<size_t>(std::clamp(fraction, 0.0, 1.0) * kWidth);
      fmt::print(stderr, "\r\033[K{} [{:.<{}}] {}, {}", what, std::string(n_done, '#'), kWidth,
                 done, left);
      is_shown_ = true;
    } else {
      fmt::print(stderr, "kvlathe: {} {}, about {}\n", what, done, left);
    }
    std::fflush(stderr);
  }

 private:
  void Clear() {
    if (is_shown_) fmt::print(stderr, "\r\033[K");
    is_shown_ = false;
  }

  bool is_terminal_;
  bool is_shown_ = false;
  std::string what_;
  Stopwatch since_start_;
  double first_fraction_ = 0;  // that was told, when the piece began
  double told_at_ = 0;         // seconds since the start; 0: not yet
};

}  // namespace

Progress TerminalProgress() {
  return [line = std::make_shared<ProgressLine>()](const std::string& what, double fraction) {
    line->Tell(what, fraction);
  };
}

}  // namespace kvlathe
