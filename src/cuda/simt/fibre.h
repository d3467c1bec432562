// A fibre: a function with a stack of its own, which gives the thread back where it likes and goes
// on there later. Sanitizers are told of every switch: AddressSanitizer of stacks, and
// ThreadSanitizer that a switch orders nothing, so that fibres are to it as threads are.
#pragma once

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <functional>

namespace kvlathe::simt {

class Fibre {
 public:
  // `body` begins with the first Resume; it must have returned when the fibre is destroyed, or
  // never have begun.
  explicit Fibre(std::function<void()> body);
  ~Fibre();
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  // From outside: runs the body until it yields or returns.
  void Resume();
  // From the body: Resume returns. The body goes on with the next one.
  void Yield();

 private:
  void Arrive();
  void Leave(bool for_good);

  std::function<void()> body_;
  boost::context::stack_context stack_;
  boost::context::fiber inside_;
  boost::context::fiber outside_;
  // Of AddressSanitizer.
  void* fake_stack_inside_ = nullptr;
  void* fake_stack_outside_ = nullptr;
  const void* bottom_outside_ = nullptr;
  size_t bytes_outside_ = 0;
  // Of ThreadSanitizer.
  void* thread_inside_ = nullptr;
  void* thread_outside_ = nullptr;
};

// While one lives, ThreadSanitizer does not see what its fibre or thread reads and writes: for the
// books of the fibre runtime, which fibres share and a GPU does not have.
class NotSeen {
 public:
  NotSeen();
  ~NotSeen();
  NotSeen(const NotSeen&) = delete;
  NotSeen& operator=(const NotSeen&) = delete;
};

// Whoever acquires has before it what was done before others released, to ThreadSanitizer.
void ReleaseTo(void* meeting);
void AcquireFrom(void* meeting);

}  // namespace kvlathe::simt
