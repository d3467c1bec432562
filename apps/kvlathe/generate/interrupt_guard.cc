#include "kvlathe/generate/interrupt_guard.h"

#include <csignal>

namespace kvlathe {
namespace {

volatile std::sig_atomic_t interrupted = 0;

}  // namespace

InterruptGuard::InterruptGuard() {
  interrupted = 0;
  std::signal(SIGINT, [](int) { interrupted = 1; });
}

InterruptGuard::~InterruptGuard() { std::signal(SIGINT, SIG_DFL); }

bool InterruptGuard::IsInterrupted() { return interrupted != 0; }

}  // namespace kvlathe
