#include "cuda/simt/fibre.h"

#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(KVLATHE_TSAN)
#include <sanitizer/tsan_interface.h>

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace kvlathe::simt {
namespace {

// Sanitizers make frames larger. Behind the stack is a page without rights.
#if defined(__SANITIZE_ADDRESS__) || defined(KVLATHE_TSAN)
constexpr size_t kStackBytes = size_t{512} << 10;
#else
constexpr size_t kStackBytes = size_t{128} << 10;
#endif

}  // namespace

Fibre::Fibre(std::function<void()> body) : body_(std::move(body)) {
  boost::context::protected_fixedsize_stack stacks(kStackBytes);
  stack_ = stacks.allocate();
#if defined(KVLATHE_TSAN)
  thread_inside_ = __tsan_create_fiber(0);
#endif
  inside_ = boost::context::fiber(std::allocator_arg,
                                  boost::context::preallocated(stack_.sp, stack_.size, stack_),
                                  stacks, [this](boost::context::fiber&& outside) {
                                    outside_ = std::move(outside);
                                    Arrive();
                                    body_();
                                    Leave(true);
                                    return std::move(outside_);
                                  });
}

Fibre::~Fibre() {
#if defined(KVLATHE_TSAN)
  __tsan_destroy_fiber(thread_inside_);
#endif
}

void Fibre::Arrive() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_inside_, &bottom_outside_, &bytes_outside_);
#endif
}

void Fibre::Leave([[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_inside_, bottom_outside_,
                                 bytes_outside_);
#endif
#if defined(KVLATHE_TSAN)
  __tsan_switch_to_fiber(thread_outside_, __tsan_switch_to_fiber_no_sync);
#endif
}

void Fibre::Resume() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(
      &fake_stack_outside_, static_cast<const std::byte*>(stack_.sp) - stack_.size, stack_.size);
#endif
#if defined(KVLATHE_TSAN)
  thread_outside_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(thread_inside_, __tsan_switch_to_fiber_no_sync);
#endif
  inside_ = std::move(inside_).resume();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_outside_, nullptr, nullptr);
#endif
}

void Fibre::Yield() {
  Leave(false);
  outside_ = std::move(outside_).resume();
  Arrive();
}

#if defined(KVLATHE_TSAN)
NotSeen::NotSeen() {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
NotSeen::~NotSeen() {
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
void ReleaseTo(void* meeting) { __tsan_release(meeting); }
void AcquireFrom(void* meeting) { __tsan_acquire(meeting); }
#else
NotSeen::NotSeen() = default;
NotSeen::~NotSeen() = default;
void ReleaseTo(void* /*meeting*/) {}
void AcquireFrom(void* /*meeting*/) {}
#endif

}  // namespace kvlathe::simt
