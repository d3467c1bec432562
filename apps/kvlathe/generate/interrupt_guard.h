// An InterruptGuard hears Ctrl-C while an answer is generated.
#pragma once

namespace kvlathe {

// While one lives, Ctrl-C stops an answer; otherwise it ends the program.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // Whether Ctrl-C was pressed since the last guard was made.
  static bool IsInterrupted();
};

}  // namespace kvlathe
