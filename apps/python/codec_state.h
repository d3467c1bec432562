// What a codec of Python and its sequences share.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "codec/row_codec.h"
#include "python/guards.h"

namespace kvlathe::python {

// A sequence may go on any thread, also while another computes: it is then given back by the next
// who uses the codec.
class CodecState {
 public:
  CodecState(int n_threads) : threads_(std::make_unique<ThreadPool>(n_threads)) {}
  ~CodecState() {
    if (!turns_.is_child()) return;
    // A child of a fork has none of the threads, which nobody could wait for.
    for (auto& sequence : given_back_) Keep(std::move(sequence));
    static_cast<void>(codec_.release());
    static_cast<void>(threads_.release());
  }

  ThreadPool* threads() { return threads_.get(); }
  void set_codec(std::unique_ptr<RowCodec> codec) { codec_ = std::move(codec); }
  Turns* turns() { return &turns_; }
  // Within a turn.
  RowCodec& codec() {
    FreeGivenBack();
    return *codec_;
  }
  // What is the same all the time.
  const RowCodec& facts() const { return *codec_; }

  // The last of those who had it frees it, within a turn.
  void GiveBack(std::shared_ptr<CodecSequence> sequence) {
    if (sequence == nullptr) return;
    if (turns_.is_child()) return Keep(std::move(sequence));
    {
      const std::lock_guard lock(giving_back_);
      given_back_.push_back(std::move(sequence));
    }
    if (!turns_.TryLock()) return;
    FreeGivenBack();
    turns_.Unlock();
  }

 private:
  // For good.
  static void Keep(std::shared_ptr<CodecSequence> sequence) {
    new std::shared_ptr<CodecSequence>(std::move(sequence));
  }
  void FreeGivenBack() {
    std::vector<std::shared_ptr<CodecSequence>> sequences;
    const std::lock_guard lock(giving_back_);
    sequences.swap(given_back_);
  }

  Turns turns_;
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<RowCodec> codec_;
  std::mutex giving_back_;
  std::vector<std::shared_ptr<CodecSequence>> given_back_;
};

}  // namespace kvlathe::python
