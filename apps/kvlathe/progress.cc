#include <fmt/format.h>
#include <unistd.h>

#include "base/clock.h"
#include "workspace.h"

namespace kvlathe {

Progress TerminalProgress() {
  if (isatty(STDERR_FILENO) == 0) return nullptr;
  struct State {
    std::string what;
    Stopwatch since_start;
    double shown_at = 0;
  };
  return [state = std::make_shared<State>()](const std::string& what, double fraction) {
    if (what != state->what) {
      state->what = what;
      state->since_start.Restart();
      state->shown_at = 0;
    }
    const double seconds = state->since_start.Seconds();
    if (fraction >= 1) {
      if (state->shown_at > 0) fmt::print(stderr, "\r\033[K");
      return;
    }
    if (seconds < 2 || seconds - state->shown_at < 0.5) return;
    state->shown_at = seconds;
    const double left = fraction > 0 ? seconds / fraction - seconds : 0;
    fmt::print(stderr, "\r\033[K{} {:.0f}%, {:.0f} s left", what, 100 * fraction, left);
  };
}

}  // namespace kvlathe
