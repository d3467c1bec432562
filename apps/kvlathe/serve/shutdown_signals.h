// SIGINT and SIGTERM ask the server to drain while it runs.
#pragma once

namespace kvlathe {

// While one lives, both signals are counted in place of ending the program. One at a time.
class ShutdownSignals {
 public:
  ShutdownSignals();
  ~ShutdownSignals();
  ShutdownSignals(const ShutdownSignals&) = delete;
  ShutdownSignals& operator=(const ShutdownSignals&) = delete;

  // Blocks until the first signal; true: it was SIGINT, from a person who waits.
  bool Wait() const;
  // Whether a signal came since Wait returned.
  static bool CameAgain();
};

}  // namespace kvlathe
