#include "cuda/seal/row_flags.h"

#include <algorithm>
#include <utility>

namespace kvlathe {
namespace {

constexpr int64_t kUsualFlags = int64_t{1} << 16;

}  // namespace

RowFlags::RowFlags(CudaStream* stream) : stream_(*stream) { Allocate(kUsualFlags); }

RowFlags::~RowFlags() {
  if (flags_ == nullptr) return;
  stream_.Wait("the last work");
  cudaFree(flags_);
}

void RowFlags::Allocate(int64_t n) {
  stream_.HandOver();
  cudaFree(flags_);
  n_flags_ = 0;
  flags_ = reinterpret_cast<int32_t*>(stream_.TryAllocate(n * int64_t{sizeof(int32_t)}));
  if (flags_ == nullptr) {
    return stream_.Note(cudaErrorMemoryAllocation, "flags of rows that are not finite");
  }
  n_flags_ = n;
  Clear(n);
}

void RowFlags::Clear(int64_t n) {
  stream_.Note(cudaMemsetAsync(flags_, 0, n * sizeof(int32_t), stream_.get()), "clearing flags");
}

int32_t* RowFlags::Take(int64_t n, Reader reader) {
  if (n_taken_ + n > n_flags_) {
    Collect();
    if (n > n_flags_) Allocate(std::max(n, kUsualFlags));
    if (n > n_flags_) return nullptr;
  }
  int32_t* const flags = flags_ + n_taken_;
  taken_.push_back({.first = n_taken_, .n = n, .reader = std::move(reader)});
  n_taken_ += n;
  return flags;
}

void RowFlags::Collect() {
  if (n_taken_ == 0) return;
  std::vector<int32_t> flags(n_taken_);
  stream_.HandOver();
  stream_.Note(cudaMemcpyAsync(flags.data(), flags_, n_taken_ * sizeof(int32_t),
                               cudaMemcpyDeviceToHost, stream_.get()),
               "reading flags");
  stream_.Wait("reading flags");
  Clear(n_taken_);
  for (const Taken& taken : taken_) {
    taken.reader(std::span(flags).subspan(taken.first, taken.n), &collected_);
  }
  taken_.clear();
  n_taken_ = 0;
}

void RowFlags::Report(StepReport* report) {
  Collect();
  for (StepReport::Failure& failure : collected_.failures) {
    report->failures.push_back(std::move(failure));
  }
  collected_.failures.clear();
}

}  // namespace kvlathe
