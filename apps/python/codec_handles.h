// What the bindings of kvlathe.codec hand to each other.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "codec/given_statistics.h"
#include "model/config.h"
#include "python/codec_state.h"
#include "python/errors.h"

namespace kvlathe::python {

// Of a model's attention.
struct ShapeHandle {
  ModelConfig config;
};

// Statistics and the name that errors give them.
struct StatisticsHandle {
  NamedStatistics named;
};

// As many as were asked for; 0: as the processors.
inline int ThreadsOf(int n_threads) {
  const auto n_processors = static_cast<int>(std::thread::hardware_concurrency());
  if (n_threads < 0 || n_threads > std::max(1024, n_processors)) {
    throw nanobind::value_error(
        "n_threads is at least 1, and at most 1024 or as many as processors");
  }
  return n_threads > 0 ? n_threads : std::max(1, n_processors);
}

// A sequence, until it is closed.
class SequenceHandle {
 public:
  SequenceHandle(std::shared_ptr<CodecState> state, std::unique_ptr<CodecSequence> sequence)
      : state_(std::move(state)), sequence_(std::move(sequence)) {}
  ~SequenceHandle() { Close(); }

  void Close() {
    if (state_ != nullptr) state_->GiveBack(std::move(sequence_));
  }
  bool is_closed() const { return sequence_ == nullptr; }
  // FailedPreconditionError where it is closed.
  CodecSequence& sequence() const {
    if (sequence_ != nullptr) return *sequence_;
    throw StatusError(
        Error(StatusCode::kFailedPrecondition, "the sequence is closed; make a new one"));
  }
  const std::shared_ptr<CodecState>& state() const { return state_; }

 private:
  std::shared_ptr<CodecState> state_;
  std::unique_ptr<CodecSequence> sequence_;
};

// Binds shapes, statistics and calibrators, and sequences.
void BindCodecShapes(nanobind::module_& module);
void BindCodecSequences(nanobind::module_& module);

}  // namespace kvlathe::python
