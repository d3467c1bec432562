// An engine tells an observer of its work while it runs: what a server needs for metrics, and a
// test to act at a chosen moment.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "kv/blocks/block_pool.h"
#include "kv/cache_layout.h"

namespace kvlathe {

struct Request;
struct RequestOutcome;

// The tokens of a request that ended well, as its cache took them. Valid during the call.
struct AnsweredRequest {
  const Request& request;
  const CacheLayout& layout;        // of its cache; lives as long as its model
  std::span<const int32_t> tokens;  // what was read, and what was generated behind it
  int64_t n_read = 0;               // of them
  int64_t n_cache_prompt = 0;       // RequestOutcome
  int64_t n_pressed = 0;            // positions that its cache held in fewer bits in the end
};

// Requests and memory at one moment.
struct EngineLoad {
  int n_running = 0;  // that are admitted
  int n_waiting = 0;  // the length of the queue: submitted, or preempted, and not admitted
  PoolUsage pool;     // bytes in use, by kind of object, and their budget
  // What the positions of those that run would take in 16-bit caches of their own (ReferenceBytes).
  int64_t reference_bytes = 0;
};

// What one step computes.
struct StepWork {
  int64_t step_idx = 0;     // from 0 on, of the steps that compute something
  int n_sequences = 0;      // in the batch
  int n_decode_tokens = 0;  // of sequences that go on by one token, and drafted ones behind them
  int n_fill_tokens = 0;    // of prompts, and of what preempted sequences compute again
};

// Everything is called on the thread that steps the engine, one call after the other and in the
// order in which things happen, with no lock of the engine held. So an observer may submit and
// cancel requests, but not step the engine. The step waits for it: what takes long belongs on a
// thread of the observer's own.
//
// The calls of one step: OnAdmitted, OnPressed and OnPreempted of whom it begins with, OnStepBegan,
// then, once the model has computed, OnDrafted, OnFirstToken, OnToken and OnFinished request by
// request (OnAnswered before OnFinished), and OnStepEnded. OnFinished may also come without a step:
// of a request that was cancelled or found no room.
class EngineObserver {
 public:
  using RequestId = int64_t;

  virtual ~EngineObserver() = default;

  // From here on the request runs. queue_ms: since it was submitted. Once more after each
  // preemption.
  virtual void OnAdmitted(RequestId, double queue_ms) { (void)queue_ms; }
  // Of a request that begins to read its n_prompt tokens: the first n_stored were stored and need
  // not be computed. Once for each request that could have found some.
  virtual void OnPrefixFound(RequestId, int n_prompt, int n_stored) {
    (void)n_prompt;
    (void)n_stored;
  }
  // Gives up its cache and waits to compute it again.
  virtual void OnPreempted(RequestId) {}
  // So many positions of its cache were sealed again in fewer bits, because memory is short.
  virtual void OnPressed(RequestId, int64_t n_positions) { (void)n_positions; }
  virtual void OnStepBegan(const StepWork&, const EngineLoad&) {}
  // ttft_ms: since the request was submitted. Its OnToken follows, unless the token ends the
  // request as one of its stop_ids.
  virtual void OnFirstToken(RequestId, double ttft_ms) { (void)ttft_ms; }
  // Counts that add up: drafted tokens of the request that the step has computed, before its first
  // token of the step, and then, before each token that is what was drafted, one more accepted.
  virtual void OnDrafted(RequestId, int n_checked, int n_accepted) {
    (void)n_checked;
    (void)n_accepted;
  }
  // After the request's own callback has seen the token.
  virtual void OnToken(RequestId, int32_t token) { (void)token; }
  // Of a request with an answer_id that ended with kStop or kLength; before its own callback.
  virtual void OnAnswered(RequestId, const AnsweredRequest&) {}
  // After the request's own callback. Its blocks are back in the pool, unless a
  // session took them or they are stored for others (EngineOptions::prefix_bytes).
  virtual void OnFinished(RequestId, const RequestOutcome&) {}
  // The error of a step that failed for all of its sequences; those are finished then.
  virtual void OnStepEnded(const StepWork&, const EngineLoad&, double seconds, const Status&) {
    (void)seconds;
  }
};

}  // namespace kvlathe
