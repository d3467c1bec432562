#include "kvlathe/serve/shutdown_signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace kvlathe {
namespace {

volatile std::sig_atomic_t n_signals = 0;
volatile std::sig_atomic_t first_signal = 0;
int wake_pipe[2] = {-1, -1};

void Count(int signal) {
  const int saved = errno;
  if (n_signals == 0) first_signal = signal;
  n_signals = n_signals + 1;
  // A full pipe wakes its reader as well.
  [[maybe_unused]] const ssize_t n = write(wake_pipe[1], "", 1);
  errno = saved;
}

}  // namespace

ShutdownSignals::ShutdownSignals() {
  n_signals = 0;
  if (pipe2(wake_pipe, O_CLOEXEC) != 0) return;  // the signals then end the program, as before
  std::signal(SIGINT, Count);
  std::signal(SIGTERM, Count);
}

ShutdownSignals::~ShutdownSignals() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  close(wake_pipe[0]);
  close(wake_pipe[1]);
}

bool ShutdownSignals::Wait() const {
  char byte;
  while (read(wake_pipe[0], &byte, 1) < 0 && errno == EINTR) {
  }
  return first_signal == SIGINT;
}

bool ShutdownSignals::CameAgain() { return n_signals > 1; }

}  // namespace kvlathe
