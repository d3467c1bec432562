#include "structured/grammar_constraint.h"

#include <time.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

namespace kvlathe {
namespace {

constexpr int kWordBits = 32;

bool HasBit(std::span<const int32_t> words, int bit) {
  return (static_cast<uint32_t>(words[static_cast<size_t>(bit / kWordBits)]) >> (bit % kWordBits) &
          1U) != 0;
}

// Processor time of the calling thread.
std::chrono::nanoseconds ThreadTime() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

GrammarConstraint::GrammarConstraint(const xgrammar::CompiledGrammar& grammar,
                                     std::unique_ptr<AnswerFollower> follower, int n_logits,
                                     std::chrono::nanoseconds max_token_time)
    : matcher_(grammar),
      follower_(std::move(follower)),
      n_logits_(n_logits),
      max_token_time_(max_token_time),
      allowed_(static_cast<size_t>(xgrammar::GetBitmaskSize(n_logits))) {}

void GrammarConstraint::FillAllowed() {
  if (is_filled_) return;
  int64_t shape[] = {std::ssize(allowed_)};
  DLTensor tensor = {};
  tensor.data = allowed_.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = xgrammar::GetBitmaskDLType();
  tensor.shape = shape;
  std::ranges::fill(allowed_, -1);  // it is left alone where everything is allowed
  matcher_.FillNextTokenBitmask(&tensor);
  if (follower_ != nullptr) follower_->Restrict(allowed_);
  is_filled_ = true;
}

void GrammarConstraint::Mask(std::span<float> logits) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const auto begin = ThreadTime();
  try {
    FillAllowed();
  } catch (const std::exception&) {
    std::ranges::fill(logits, kNever);  // with which the request ends
    return;
  }
  token_time_ = ThreadTime() - begin;
  const int n = std::min(n_logits_, static_cast<int>(logits.size()));
  for (size_t word = 0; word < allowed_.size(); ++word) {
    if (allowed_[word] == -1) continue;
    const int begin = static_cast<int>(word) * kWordBits;
    const int end = std::min(begin + kWordBits, n);
    for (int id = begin; id < end; ++id) {
      if (!HasBit(allowed_, id)) logits[static_cast<size_t>(id)] = kNever;
    }
  }
  std::ranges::fill(logits.subspan(static_cast<size_t>(n)), kNever);
}

bool GrammarConstraint::OnlyTheEndFollows() {
  if (!matcher_.IsCompleted()) return false;
  FillAllowed();
  const std::vector<int>& ends = matcher_.GetStopTokenIds();
  for (int id = 0; id < n_logits_; ++id) {
    if (id % kWordBits == 0 && allowed_[static_cast<size_t>(id / kWordBits)] == 0) {
      id += kWordBits - 1;
      continue;
    }
    if (HasBit(allowed_, id) && std::ranges::find(ends, id) == ends.end()) return false;
  }
  return true;
}

Status GrammarConstraint::Accept(int32_t token) {
  const auto begin = ThreadTime();
  is_filled_ = false;
  try {
    if (!matcher_.AcceptToken(token) || (follower_ != nullptr && !follower_->Accept(token))) {
      return Error(StatusCode::kInternal, "token {} does not fit the answer's grammar", token);
    }
    is_complete_ = matcher_.IsTerminated() || OnlyTheEndFollows();
  } catch (const std::exception& error) {
    return Error(StatusCode::kInternal, "the answer's grammar: {}", error.what());
  }
  if (token_time_ + (ThreadTime() - begin) > max_token_time_) {
    return Error(
        StatusCode::kResourceExhausted,
        "the answer's grammar takes more than {} ms for a token: its schema can be read in "
        "too many ways; make it simpler",
        std::chrono::duration_cast<std::chrono::milliseconds>(max_token_time_).count());
  }
  return OkStatus();
}

}  // namespace kvlathe
