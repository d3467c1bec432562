// What stands between a call from Python and the library: one thread at a time, signals, forks.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "base/status.h"
#include "python/errors.h"

namespace kvlathe::python {

// Of an object that one thread may use at a time. Workers do not live on in the child of a fork.
class Turns {
 public:
  // Throws FailedPrecondition in a child of the process that made the object.
  void CheckProcess() const {
    if (getpid() == process_) return;
    throw StatusError(Error(StatusCode::kFailedPrecondition,
                            "the process was forked after this object was made, and its threads "
                            "are not in the child; make it anew there, or start processes by "
                            "'spawn'"));
  }
  // Whether this is such a child.
  bool is_child() const { return getpid() != process_; }
  void Lock() {
    ++n_waiting_;
    mutex_.lock();
    --n_waiting_;
  }
  bool TryLock() { return mutex_.try_lock(); }
  void Unlock() { mutex_.unlock(); }
  // For who has let go and will want it again at once: others that wait come first.
  void LetOthers() {
    if (n_waiting_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }

 private:
  std::mutex mutex_;
  std::atomic<int> n_waiting_ = 0;
  pid_t process_ = getpid();
};

// While it lives, this thread alone uses the object, and others run Python. The mutex is let go
// before the interpreter is waited for.
class Turn {
 public:
  explicit Turn(Turns* turns) : turns_((turns->CheckProcess(), turns)) { turns_->Lock(); }
  ~Turn() { turns_->Unlock(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Turns* turns_;
  nanobind::gil_scoped_release released_;
};

// Asked often while the interpreter is released: throws what a signal handler of Python raised,
// such as KeyboardInterrupt. Asks the interpreter ten times a second.
class Signals {
 public:
  void Check() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return;
    next_ = now + std::chrono::milliseconds(100);
    const nanobind::gil_scoped_acquire acquired;
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  }

 private:
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now();
};

}  // namespace kvlathe::python
