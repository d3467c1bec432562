#include "cuda/simt/simt_host.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cuda/simt/fibre.h"

namespace kvlathe::simt {
namespace {

[[noreturn]] void Fail(const char* what) {
  const host::Place& here = host::Here();
  std::fprintf(stderr, "kernel: %s (block %d, %d of %d, thread %d of %d)\n", what, here.block,
               here.block_y, here.n_blocks, here.thread, here.n_threads);
  std::abort();
}

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kSharedZone = 0;
#else
constexpr size_t kSharedZone = 256;
#endif

struct Copy {
  void* to;
  const void* from;
};

struct Thread {
  explicit Thread(std::function<void()> body) : fibre(std::move(body)) {}
  Fibre fibre;
  bool is_done = false;
  int warp_meetings = 0;  // how many of its warp's meetings it has passed or waits for
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> copies;  // not committed
};

// The meeting of a warp that is under way. Slots alternate: a lane reads those of the last meeting
// while others may already have come to the next.
struct Warp {
  int n_meetings = 0;  // that all lanes have come to
  int n_here = 0;
  host::Meeting meeting = host::Meeting::kSync;
  alignas(16) std::byte slots[2][32 * host::kSlotBytes];
  char order[2];  // what ThreadSanitizer knows these meetings by
};

// Keeps its fibres from block to block.
class Runner {
 public:
  // Fibres end by themselves: unwinding them where the program exits may come too late.
  ~Runner() {
    const NotSeen not_seen;
    body_ = nullptr;
    for (size_t i = 0; i < threads_.size(); ++i) Resume(static_cast<int>(i));
  }

  void RunBlock(const LaunchShape& shape, int block, int block_y,
                const std::function<void()>& thread);
  const host::Place& place() const { return place_; }
  std::byte* Meet(host::Meeting meeting, const void* mine, size_t n_bytes,
                  void (*together)(std::byte*));
  void MeetBlock();
  Thread& current() { return *threads_[place_.thread]; }

 private:
  // One of n numbers, the same ones in every run.
  int Draw(int n) {
    random_ = random_ * 1664525u + 1013904223u;
    return static_cast<int>((random_ >> 16) % static_cast<uint32_t>(n));
  }
  void RunThread(Thread* thread);
  void Resume(int thread_idx) {
    place_.thread = thread_idx;
    threads_[thread_idx]->fibre.Resume();
  }
  void Yield() { current().fibre.Yield(); }

  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Warp> warps_;
  const std::function<void()>* body_ = nullptr;
  host::Place place_;
  int n_at_barrier_ = 0;
  int n_barriers_ = 0;
  bool has_moved_ = false;
  uint32_t random_ = 1;
  // What ThreadSanitizer knows by: the beginning and the end of a block, and barriers in turn, so
  // that who is late at one does not see what others do before the next.
  char begin_ = 0, end_ = 0;
  char barriers_[2] = {};
};

thread_local Runner* running = nullptr;

// What a thread does from block to block.
void Runner::RunThread(Thread* thread) {
  while (body_ != nullptr) {
    AcquireFrom(&begin_);
    (*body_)();
    ReleaseTo(&end_);
    const NotSeen not_seen;
    thread->is_done = true;
    has_moved_ = true;
    Yield();
  }
}

std::byte* Runner::Meet(host::Meeting meeting, const void* mine, size_t n_bytes,
                        void (*together)(std::byte*)) {
  const NotSeen not_seen;
  Thread& thread = current();
  Warp& warp = warps_[place_.thread / 32];
  const int number = thread.warp_meetings++;
  std::byte* const slots = warp.slots[number % 2];
  if (warp.n_here == 0) {
    warp.meeting = meeting;
  } else if (warp.meeting != meeting) {
    Fail("lanes of a warp meet different functions");
  }
  std::memcpy(slots + place_.thread % 32 * host::kSlotBytes, mine, n_bytes);
  has_moved_ = true;
  // Other functions of a warp say nothing of memory.
  char* const order = meeting == host::Meeting::kSync ? &warp.order[number % 2] : nullptr;
  if (order != nullptr) ReleaseTo(order);
  if (++warp.n_here == 32) {
    warp.n_here = 0;
    ++warp.n_meetings;
    if (together != nullptr) together(slots);
    if (Draw(2) == 1) Yield();
  }
  while (warp.n_meetings <= number) Yield();
  if (order != nullptr) AcquireFrom(order);
  return slots;
}

void Runner::MeetBlock() {
  const NotSeen not_seen;
  const int number = n_barriers_;
  has_moved_ = true;
  ReleaseTo(&barriers_[number % 2]);
  if (++n_at_barrier_ == place_.n_threads) {
    n_at_barrier_ = 0;
    ++n_barriers_;
    if (Draw(2) == 1) Yield();
  }
  while (n_barriers_ == number) Yield();
  AcquireFrom(&barriers_[number % 2]);
}

void Runner::RunBlock(const LaunchShape& shape, int block, int block_y,
                      const std::function<void()>& thread) {
  const NotSeen not_seen;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  // Of exactly this size, so that AddressSanitizer sees who goes beyond it; without it, bytes
  // behind are looked at when the block has ended.
  void* memory = nullptr;
  KVL_CHECK_EQ(posix_memalign(&memory, 128, shape.shared_bytes + kSharedZone), 0);
  const std::unique_ptr<std::byte, Free> shared(static_cast<std::byte*>(memory));
  std::memset(shared.get(), 0xff, shape.shared_bytes + kSharedZone);
  place_ = {.n_threads = shape.n_threads,
            .block = block,
            .block_y = block_y,
            .n_blocks = shape.n_blocks,
            .shared = shared.get()};
  body_ = &thread;
  n_at_barrier_ = 0;
  warps_.assign(shape.n_threads / 32, {});
  while (std::ssize(threads_) < shape.n_threads) {
    const auto i = threads_.size();
    threads_.push_back(std::make_unique<Thread>([this, i] { RunThread(threads_[i].get()); }));
  }
  for (int i = 0; i < shape.n_threads; ++i) {
    threads_[i]->is_done = false;
    threads_[i]->warp_meetings = 0;
    threads_[i]->groups.clear();
    threads_[i]->copies.clear();
  }
  random_ = static_cast<uint32_t>(block + 1);
  ReleaseTo(&begin_);
  for (int n_left = shape.n_threads; n_left > 0;) {
    has_moved_ = false;
    n_left = 0;
    // In another order each time, so that what holds in one order alone shows: from any thread on,
    // forwards or backwards.
    const int first = Draw(shape.n_threads);
    const bool is_forward = Draw(2) == 1;
    for (int i = 0; i < shape.n_threads; ++i) {
      const int place = (first + i) % shape.n_threads;
      const int thread_idx = is_forward ? place : shape.n_threads - 1 - place;
      if (threads_[thread_idx]->is_done) continue;
      Resume(thread_idx);
      n_left += !threads_[thread_idx]->is_done;
    }
    if (n_left > 0 && !has_moved_) Fail("threads wait for others that have ended");
  }
  AcquireFrom(&end_);
  for (size_t i = 0; i < kSharedZone; ++i) {
    if (shared.get()[shape.shared_bytes + i] != std::byte{0xff}) {
      Fail("a thread of this block wrote behind its shared memory");
    }
  }
}

}  // namespace

void RunGrid(const LaunchShape& shape, const std::function<void()>& thread) {
  KVL_CHECK(shape.n_threads > 0 && shape.n_threads % 32 == 0 && shape.n_threads <= 1024);
  thread_local Runner runner;
  running = &runner;
  for (int y = 0; y < shape.n_blocks_y; ++y) {
    for (int block = 0; block < shape.n_blocks; ++block) runner.RunBlock(shape, block, y, thread);
  }
  running = nullptr;
}

void CheckAligned(const void* address, size_t n_bytes) {
  if (reinterpret_cast<uintptr_t>(address) % n_bytes != 0) Fail("a load that is not aligned");
}

namespace host {

const Place& Here() { return running->place(); }

std::byte* Meet(Meeting meeting, const void* mine, size_t n_bytes, void (*together)(std::byte*)) {
  return running->Meet(meeting, mine, n_bytes, together);
}

void MeetBlock() { running->MeetBlock(); }

void AddCopy(void* to, const void* from) {
  CheckAligned(to, 16);
  CheckAligned(from, 16);
  const NotSeen not_seen;
  running->current().copies.push_back({to, from});
}

void CommitGroup() {
  const NotSeen not_seen;
  Thread& thread = running->current();
  thread.groups.push_back(std::move(thread.copies));
  thread.copies.clear();
}

void WaitGroups(int n_left) {
  auto& groups = running->current().groups;
  while (std::ssize(groups) > n_left) {
    for (const Copy& copy : groups.front()) std::memcpy(copy.to, copy.from, 16);
    groups.erase(groups.begin());
  }
}

}  // namespace host
}  // namespace kvlathe::simt
