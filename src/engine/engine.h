// The engine takes requests and gives tokens: continuous batching of several sequences on one
// model.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine_observer.h"
#include "engine/engine_sequence.h"
#include "engine/prefixes/prefix_store.h"
#include "engine/prefixes/prompt_readers.h"
#include "engine/prompt_pacing.h"
#include "engine/request.h"
#include "engine/request_inbox.h"
#include "engine/session.h"
#include "kv/blocks/block_pool.h"
#include "kv/byte_kinds.h"
#include "model/model.h"

namespace kvlathe {

struct EngineOptions {
  int max_batch_tokens = 512;  // prompt and decode tokens together in one step, at least 1
  int max_sequences = 64;      // that run at the same time, at least 1
  int max_waiting =
      0;  // requests that wait, preempted ones too, for more to be refused; 0: no bound
  // Of the time while sequences decode, what prompts and replays get, in (0, 1] (prompt_pacing.h).
  // 1: all that is left of every step, which needs the fewest steps for requests that are all
  // there; below, what a step computes depends on how long others took.
  double prompt_share = 1;
  // Bytes of the pool that the caches of what was read and generated before may keep, so that a
  // request which begins with the same tokens begins behind them (prefixes/prefix_store.h). They
  // are given up as soon as a sequence needs them. 0: every request reads its prompt itself.
  int64_t prefix_bytes = 0;
  // Where they are kept on disk, too; outlives the engine. Null: nowhere.
  PrefixArchive* archive = nullptr;
  // Who reads long prompts elsewhere, where prefix_bytes has room for them; outlives the engine.
  // Null: nobody.
  PromptReaders* readers = nullptr;
  // With an archive, with readers and for requests with a sink: what each level is to them.
  // [n_levels]
  std::vector<SequenceIdentity> identities;
  // Asked before every step, on the thread that steps; may read what a signal handler or another
  // thread sets. Once it says yes, the step cancels all requests in place of computing anything.
  // None: nothing interrupts.
  std::function<bool()> is_interrupted;
  EngineObserver* observer = nullptr;  // outlives the engine; null: nobody looks on
};

// Sequences run in the order of their requests. One is admitted when the budget holds what all that
// run are going to need until each has a block more (kv_forecast.h): by their levels, in bytes,
// from where they are now. When the budget is exhausted later, because they grew or merged less
// than was expected, the newest running sequence is preempted: it gives its cache up and waits,
// before all others, to replay its prompt and the tokens it has generated. So the oldest always
// goes on, and a request that fits the budget alone finishes; where only the model knows what it
// will need, one that turns out not to fit alone ends with kResourceExhausted when the memory has
// run out. The cache that a waiting session brings with it is given up before anything else.
// Prompts are read oldest first, each as fast as what is left of the steps allows.
//
// Where the caches of a level may be sealed again in fewer bits (CacheLayout::HasPressedRuns), that
// comes before a sequence is preempted: of the newest sequence that does not refuse it
// (Request::refuses_pressure) the oldest run, then its next one, then those of the sequence before
// it, until there is room. So who came last pays first, as with preemption, and nobody's cache
// loses bits for a request that came later while that one has some to lose; and old positions lose
// them before newer ones, which attention reads more. Runs that others hold too are passed over:
// sealing them again would free nothing. Once kMostPressedPositions of a step were sealed again, a
// sequence that still finds no room waits for the next step. Sequences are admitted by what is left
// of them then. What such a sequence generates does depend on the others, and its cache is not
// stored for them.
//
// Prompts and generated tokens never share a step of one sequence: where the turns of a session end
// in the cache does not depend on preemption.
//
// What a sequence generates does not depend on the others, on max_batch_tokens or on preemption
// beyond the rounding of the logits; with Model::set_deterministic not even there.
//
// Levels are models of the same weights with different caches (Workspace::MakeModel). They share
// the pool, the order of the queue and max_batch_tokens; a step computes the sequences of each
// level together, level by level. Log-probabilities of a prompt are taken from its logits chunk by
// chunk, in chunks so short that no step holds more than kMaxPromptLogitBytes of them; a sequence
// that was preempted does not take them again.
//
// With prefix_bytes, what a request has read and generated stays in the pool for those that begin
// with the same tokens and have the same salt, level and rate, and what they then generate is what
// they would generate without it, or, behind another request's answer, what a session that goes on
// would: the prompt of the cache is the first one's then. What is stored is given up before any
// cache of a request is. A request whose tokens an older one is reading waits for it, so that
// several answers to one prompt read it once. Prompts whose log-probabilities are asked for are
// read anew. With an archive they outlive the process; a request waits for what is read from there
// while the others go on, and what is preempted is written there and comes back from there in place
// of being computed again. With readers, a request whose prompt is long waits until another machine
// has read it, and goes on behind what came from there; what does not come is read here.
//
// A request that fails harms no other. What comes of one sequence (rows or logits that are not
// finite, no memory to seal or drop what it holds, no room for it alone in a pool that others use)
// ends that request alone, with kFailed and its status: its blocks are back in the pool when its
// FinishCallback is called, and the others generate what they would without it. Any other error of
// a step (no memory for activations) ends the requests whose tokens their level was to compute, and
// none that wait.
//
// Threads: one at a time steps, and only that one waits for work. Submit, Cancel, Wake, n_running
// and n_waiting may be called by any thread, meanwhile too; they take a lock that is never held
// while the model computes or a callback runs. All callbacks come on the thread that steps, which
// alone touches the pool: a cache that Submit refuses goes back to it with the next step.
class Engine {
 public:
  using RequestId = kvlathe::RequestId;
  // Called for every generated token on the thread that steps the engine. Anything but kNone ends
  // the request for that reason, the token included. Callbacks may submit and cancel requests; they
  // may not step the engine.
  using TokenCallback = kvlathe::TokenCallback;
  // Called once for every request that was submitted, however it ends, unless the engine is
  // destroyed before.
  using FinishCallback = kvlathe::FinishCallback;

  static constexpr int64_t kMaxPromptLogitBytes = int64_t{64} << 20;
  // No further run is sealed again in a step in which so many positions were.
  static constexpr int64_t kMostPressedPositions = 1024;

  // `levels`, at least one, differ in their caches alone; they and `pool` outlive the engine.
  Engine(std::vector<Model*> levels, BlockPool* pool, const EngineOptions& options);
  ~Engine();

  // kInvalidArgument when the request can never run on this model, kResourceExhausted (with what it
  // needs) when the KV budget could not hold it even alone (LeastBytesAlone), kUnavailable when
  // max_waiting requests wait. With a session the prompt follows its tokens; its cache is of the
  // engine's pool. An empty prompt goes on as if the session had never ended, if the request has
  // its sampling; another seed starts draws of its own. kInvalidArgument when the session ended
  // with the end of sequence, behind which there is no token to go on from, and when its cache has
  // another rate than the request asks for, or is of another level. Errors of the rate are those of
  // Model::LayoutAt.
  StatusOr<RequestId> Submit(Request request, TokenCallback on_token, FinishCallback on_finish,
                             Session session = {});
  // What a request that has finished leaves. In its FinishCallback only, and once. It has no cache
  // where the request failed or ended before all of its tokens but the last were in it; all is
  // computed again when it goes on, and SaveSession refuses it.
  Session TakeSession(RequestId id);
  // Has a request that runs or waits end with kCancelled, before the next step computes anything,
  // or with the step that is under way if that would end it. False, and nothing happens, when there
  // is none of that id (any more) or it was cancelled before.
  bool Cancel(RequestId id) { return inbox_.Cancel(id); }

  // One step: what was cancelled ends, every running sequence decodes a token, or more where they
  // were drafted, and the rest of max_batch_tokens goes to prompts and replays, if it is their turn
  // (prompt_share). False when nothing is left to do, or when it was interrupted.
  bool Step();
  // Steps until nothing is left or is_interrupted says yes. The status of the first request that
  // failed meanwhile, after all others have finished; OK when none did. So who runs one request
  // learns of its failure here, and who runs several reads their outcomes.
  Status RunUntilIdle();

  // For the thread that steps: returns at once when a request is there that has not finished, and
  // otherwise as soon as one is submitted, Wake is called, or the time is over. Whether a request
  // is there.
  bool WaitForWork(std::chrono::milliseconds at_most) { return inbox_.WaitForWork(at_most); }
  // What the cache of a level at a rate is to other processes: the digest of PlaceText, which is
  // equal where they may exchange caches. With EngineOptions::identities. Errors as from Submit.
  StatusOr<std::string> PlaceOf(int level, std::optional<double> rate);
  // Ends a WaitForWork that has begun, or the next one.
  void Wake() { inbox_.Wake(); }

  // For the thread that steps, while there is no work: finds a rank that does not answer any more,
  // where ranks share the model (StepLeader::Lose).
  void AskRanks() { levels_.front()->AskRanks().IgnoreError(); }
  // Whether steps without work have something to copy for the archive, soon and one after the
  // other.
  bool is_saving_prefixes() const { return prefixes_.is_saving(); }
  // For the thread that steps: what the caches of the requests that run are spent on, by the closed
  // formulas (ByteKindsByLayer). Where the model decides what merges, as if nothing did.
  ByteKinds RunningBytes() const;

  int n_running() const { return inbox_.n_running(); }
  int n_waiting() const { return inbox_.n_waiting(); }

 private:
  using Sequence = EngineSequence;
  // The part of a level in a step.
  struct LevelBatch {
    std::vector<SequenceStep> steps;
    std::vector<Sequence*> sequences;  // of the steps
    std::vector<Status> failures;      // likewise
  };

  StatusOr<std::unique_ptr<Sequence>> MakeSequence(Request request, Session* session);
  StatusOr<const CacheLayout*> LayoutFor(const Request& request, const Session& session);
  void AdmitWaiting();
  int64_t WantedBytes(Sequence* sequence);
  void ShareTokenBudget();
  PrefixStore::Question QuestionOf(const Sequence& sequence) const;
  bool WaitsForPrefix(const Sequence& sequence);
  bool Fetches(Sequence* sequence);
  bool IsReadElsewhere(Sequence* sequence);
  bool BeginsNow(Sequence* sequence);
  void KeepPrefixes();
  int64_t ShareDrafts(int64_t n_left);
  void TakeTokens(Sequence* sequence, Model* model, int64_t end_row);
  void StorePrefixes(Sequence* sequence);
  void SendPrompt(Sequence* sequence);
  void SendRest();
  void WaitForOthers();
  StepWork BuildBatches();
  enum class Pressed { kNothing, kRun, kEnough };
  Pressed PressNewest();
  Status ExtendOrPreempt(Sequence* sequence);
  void PreemptNewest();
  void Compute(const StepWork& work);
  void TakeResults(Model* model, LevelBatch* batch);
  // Of row `row` of the model's logits. The sequence is gone where the token, or its failure, has
  // ended it; else they return what it was, and whether it was what had been drafted.
  enum class Taken { kEnded, kToken, kDraftedToken };
  Taken TakeToken(Sequence* sequence, Model* model, int64_t row);
  // False where it has ended.
  bool GiveToken(Sequence* sequence, int32_t token, const Model& model, int64_t row);
  std::unique_ptr<Sequence> Remove(Sequence* sequence);
  void Finish(Sequence* sequence, FinishReason reason);
  void Fail(Sequence* sequence, Status status);
  void FinishCancelled();
  void CancelAll();
  EngineLoad Load() const;
  EngineObserver* observer() const { return options_.observer; }

  std::vector<Model*> levels_;
  BlockPool* pool_;
  EngineOptions options_;
  int64_t budget_bytes_;
  std::mutex layout_mutex_;  // while a model makes a layout for a rate
  RequestInbox inbox_;

  // Of the thread that steps.
  std::deque<std::unique_ptr<Sequence>> waiting_;   // oldest first, all newer than running_
  std::vector<std::unique_ptr<Sequence>> running_;  // oldest first
  std::vector<LevelBatch> batches_;                 // [n_levels], of the current step
  std::vector<MergedCounts> merged_;                // [n_levels], by all sequences so far
  Sequence* finishing_ = nullptr;                   // whose FinishCallback runs
  Status first_failure_;                            // since RunUntilIdle was called
  int64_t n_steps_ = 0;
  int64_t n_pressed_ = 0;  // positions, in the current step
  PromptPacing pacing_;
  PrefixStore prefixes_;
  bool is_fetching_ = false;  // some sequence of the step waits for a disk or another machine
  std::vector<std::unique_ptr<Sequence>> arrived_;  // for the inbox to fill
  std::vector<RequestId> to_cancel_;
};

}  // namespace kvlathe
