// Requests in, tokens out: continuous batching of several sequences on one model.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/engine_observer.h"
#include "engine/sampler.h"
#include "engine/session.h"
#include "kv/blocks/block_pool.h"
#include "model/model.h"

namespace kvlathe {

enum class FinishReason { kNone, kStop, kLength, kCancelled, kFailed };

struct Request {
  std::vector<int32_t> prompt;  // at least one token; none: a session generates further
  int max_tokens = 128;
  SamplingParams sampling;
  std::vector<int> stop_ids;  // end of sequence
  // Share of K and V elements removed, of a model whose plan offers rates (CachePlan::ranks_at);
  // none: that of the model, or of the session's cache.
  std::optional<double> rate;
};

// What a caller learns of a finished request.
struct RequestOutcome {
  std::vector<int32_t> tokens;  // generated, without the stop token of stop_ids
  FinishReason finish_reason = FinishReason::kNone;
  Status status;              // why, with kFailed and kCancelled; OK otherwise
  double ttft_ms = 0;         // submit to first token
  double decode_seconds = 0;  // first token to last
  int n_cached_tokens = 0;    // positions in the cache at the end
  int n_preemptions = 0;      // times that the cache was given up and computed again
  KvBytes kv_bytes;           // of the sequence at its end
};

struct EngineOptions {
  int max_batch_tokens = 512;  // prompt and decode tokens together in one step, at least 1
  int max_sequences = 64;      // that run at the same time, at least 1
  // Asked before every step, on the thread that steps; may read what a signal handler or another
  // thread sets. Once it says yes, the step cancels all requests in place of computing anything.
  // None: nothing interrupts.
  std::function<bool()> is_interrupted;
  EngineObserver* observer = nullptr;  // outlives the engine; null: nobody looks on
};

// Sequences run in the order of their requests. One is admitted when the budget holds what it has
// and a block more for every sequence; when the budget is exhausted later, the newest running
// sequence is preempted: it gives its cache up and waits, before all others, to replay its prompt
// and the tokens it has generated. So the oldest always goes on, and a request that fits the budget
// alone finishes. The cache that a waiting session brings with it is given up before that. Prompts
// and generated tokens never share a step of one sequence: where the turns of a session end in the
// cache does not depend on preemption.
//
// What a sequence generates does not depend on the others, on max_batch_tokens or on preemption
// beyond the rounding of the logits; with Model::set_deterministic not even there.
//
// A request that fails harms no other. What comes of one sequence (rows or logits that are not
// finite, no memory to seal or drop what it holds, no room for it alone in a pool that others use)
// ends that request alone, with kFailed and its status: its blocks are back in the pool when its
// FinishCallback is called, and the others generate what they would without it. Any other error of
// a step (no memory for activations) ends the running requests so, and none that wait.
//
// Threads: one at a time steps. Submit, Cancel, n_running and n_waiting may be called by any
// thread, meanwhile too; they take a lock that is never held while the model computes or a callback
// runs. All callbacks come on the thread that steps, which alone touches the pool: a cache that
// Submit refuses goes back to it with the next step.
class Engine {
 public:
  using RequestId = int64_t;
  // Called for every generated token on the thread that steps the engine. Anything but kNone ends
  // the request for that reason, the token included. Callbacks may submit and cancel requests; they
  // may not step the engine.
  using TokenCallback = std::function<FinishReason(RequestId, int32_t)>;
  // Called once for every request that was submitted, however it ends, unless the engine is
  // destroyed before.
  using FinishCallback = std::function<void(RequestId, const RequestOutcome&)>;

  // `model` and `pool` outlive the engine.
  Engine(Model* model, BlockPool* pool, const EngineOptions& options);
  ~Engine();

  // kInvalidArgument when the request can never run on this model, kResourceExhausted (with what it
  // needs) when the KV budget could not hold it even alone.
  // With a session the prompt follows its tokens; its cache is of the engine's pool. An empty
  // prompt goes on as if the session had never ended, if the request has its sampling; another seed
  // starts draws of its own. kInvalidArgument when the session ended with the end of sequence,
  // behind which there is no token to go on from, and when its cache has another rate than the
  // request asks for. Errors of the rate are those of Model::LayoutAt.
  StatusOr<RequestId> Submit(Request request, TokenCallback on_token, FinishCallback on_finish,
                             Session session = {});
  // What a request that has finished leaves. In its FinishCallback only, and once. It has no cache
  // where the request failed or ended before all of its tokens but the last were in it; all is
  // computed again when it goes on, and SaveSession refuses it.
  Session TakeSession(RequestId id);
  // Has a request that runs or waits end with kCancelled, before the next step computes anything,
  // or with the step that is under way if that would end it. False, and nothing happens, when there
  // is none of that id (any more) or it was cancelled before.
  bool Cancel(RequestId id);

  // One step: what was cancelled ends, every running sequence decodes a token, and the rest of
  // max_batch_tokens goes to prompts and replays. False when nothing is left to do, or when it was
  // interrupted.
  bool Step();
  // Steps until nothing is left or is_interrupted says yes. The status of the first request that
  // failed meanwhile, after all others have finished; OK when none did. So who runs one request
  // learns of its failure here, and who runs several reads their outcomes.
  Status RunUntilIdle();

  int n_running() const { return n_running_.load(std::memory_order_relaxed); }
  int n_waiting() const;

 private:
  struct Sequence;
  StatusOr<std::unique_ptr<Sequence>> MakeSequence(Request request, Session* session);
  StatusOr<const CacheLayout*> LayoutFor(const Request& request, const Session& session);
  void TakeArrivals();
  void AdmitWaiting();
  void ShareTokenBudget();
  std::vector<SequenceStep> BuildBatch(StepWork* work);
  Status ExtendOrPreempt(Sequence* sequence);
  void PreemptNewest();
  bool DropWaitingCache();
  void Compute(const std::vector<SequenceStep>& steps, const StepWork& work);
  void TakeTokens(const std::vector<SequenceStep>& steps);
  void TakeToken(Sequence* sequence, std::span<const float> logits);
  std::unique_ptr<Sequence> Remove(Sequence* sequence);
  void Finish(Sequence* sequence, FinishReason reason);
  void Fail(Sequence* sequence, Status status);
  void FailRunning(const Status& status);
  void FinishCancelled();
  void CancelAll();
  Sequence* Find(RequestId id) const;
  EngineLoad Load() const;
  EngineObserver* observer() const { return options_.observer; }

  Model* model_;
  BlockPool* pool_;
  EngineOptions options_;
  int64_t budget_bytes_;

  // Of the thread that steps.
  std::deque<std::unique_ptr<Sequence>> waiting_;   // oldest first, all newer than running_
  std::vector<std::unique_ptr<Sequence>> running_;  // oldest first
  std::vector<Sequence*> batch_;                    // the sequence of each step
  std::vector<Status> failures_;                    // likewise
  Sequence* finishing_ = nullptr;                   // whose FinishCallback runs
  Status first_failure_;                            // since RunUntilIdle was called
  int64_t n_steps_ = 0;
  std::vector<RequestId> to_cancel_;
  std::atomic<int> n_running_ = 0;  // running_.size(), for all threads

  std::mutex layout_mutex_;  // while the model makes a layout for a rate
  mutable std::mutex mutex_;
  // Under mutex_.
  RequestId next_id_ = 1;
  std::unordered_map<RequestId, bool> live_;        // not finished yet; true: cancelled
  std::vector<std::unique_ptr<Sequence>> arrived_;  // submitted since the last step, oldest first
  std::vector<RequestId> cancelled_;                // likewise
  std::vector<std::unique_ptr<SequenceCache>> refused_;  // caches to give back to the pool
};

}  // namespace kvlathe
