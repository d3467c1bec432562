// An EngineSequence is one request inside the engine: its tokens, its cache and how far it is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/kv_forecast.h"
#include "engine/prefixes/prefix_store.h"
#include "engine/prefixes/prompt_readers.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/session.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/blocks/sequence_stream.h"
#include "kv/cache_layout.h"
#include "kv/retention/prompt_repeat.h"
#include "model/forward.h"

namespace kvlathe {

using RequestId = int64_t;
using TokenCallback = std::function<FinishReason(RequestId, const GeneratedToken&)>;
using FinishCallback = std::function<void(RequestId, const RequestOutcome&)>;

struct EngineSequence {
  RequestId id = 0;
  Request request;
  TokenCallback on_token;
  FinishCallback on_finish;
  Sampler sampler;
  std::vector<int32_t> tokens;  // known so far: of the session, of the prompt, generated
  std::vector<int> turn_ends;   // in `tokens`, of all turns but the one that generates
  int64_t n_given = 0;          // tokens before the first that this request generates
  const CacheLayout* layout;    // of the cache
  int64_t n_prompt = 0;         // where the prompt ends in the cache
  PrefixKey prefix_key;
  bool has_asked_prefixes = false;
  std::optional<Stopwatch> since_fetch;  // while it waits for the archive
  bool has_asked_readers = false;
  std::unique_ptr<DistantPrompt> distant_prompt;  // while it is read elsewhere
  std::unique_ptr<SequenceStreamWriter> stream;   // of request.prompt_sink, once it has begun
  std::vector<int> prefix_ends;  // where a part of the cache is to be kept (PrefixStore), rising
  std::vector<std::unique_ptr<SequenceCache>> kept_prefixes;  // by the step that is under way
  std::unique_ptr<SequenceCache> cache;
  std::vector<int32_t> input;          // tokens of the current step
  std::optional<PromptRepeat> repeat;  // of the prompt in the cache, once it has begun
  int n_draft = 0;                     // of these, the last, that are drafted
  int n_unchecked = 0;  // positions of the cache, the last, whose tokens may turn out to be others
  RequestOutcome outcome;
  Stopwatch since_submit;
  Stopwatch since_first_token;

  EngineSequence(Request r, Session session, const CacheLayout* cache_layout);

  int64_t n_known() const { return std::ssize(tokens); }
  // Positions of the cache that are there to stay, but for those that are not checked.
  int64_t n_cached() const { return cache == nullptr ? 0 : cache->n_settled() - n_unchecked; }
  // Whether the prompt is being read again, by which its cache chooses what stays.
  bool repeats() const { return repeat.has_value() && !repeat->is_done(); }
  // Whether it has read what it reads for another machine, and not all of it is sent.
  bool waits_to_send() const { return request.prompt_sink != nullptr && n_cached() + 1 == n_given; }
  bool decodes() const { return n_known() > turn_ends.back() && n_cached() + 1 == n_known(); }
  // The last generated token is never fed back, so it needs no place in the cache.
  int64_t max_positions() const { return n_given + request.max_tokens - 1; }
  // What the cache should be able to hold from now on for the sequence to be worth running: without
  // the block to spare, a sequence that was preempted for a block would be back in the next step.
  // `of_level` is what was measured by all sequences of the level.
  int64_t WantedBytes(int max_step, const MergedCounts& of_level);
  // How many positions merged since the last call, where the model decides that.
  MergedCounts MeasureMerging();
  // Gives up the cache, to compute it again.
  void DropCache();

  // Begins with this cache, of the first tokens, in place of an empty one.
  void BeginBehind(std::unique_ptr<SequenceCache> prefix);
  // Keeps what the step under way, for which the cache has been extended by `input`, makes whole up
  // to prefix_ends. False when there is no room for one of them.
  bool KeepPrefixes();

  // Makes `input` the next tokens for the cache, at most n_max, of one turn and of one run; or of
  // the prompt that is read again.
  void TakeInput(int64_t n_max);
  // Makes room for them in the cache.
  Status ExtendCache();
  // Says that a step has read `input`, while the prompt is read again.
  void EndRepeatStep();
  // --- Drafts (drafts/engine_drafts.cc), of a sequence that decodes. ---

  // Puts at most n_most drafted tokens behind its token in `input`; nothing where it has no
  // drafter, or no place for them.
  void AddDraft(int64_t n_most);
  // Takes them out again.
  void DropDraft();
  // Of the next token that is not checked, where there is one: whether `token`, which the model
  // has generated in its place, is the same. Counts it as accepted then.
  bool AcceptsNext(int32_t token);
  // Has the cache forget what is not checked, in the step that had a draft.
  void EndDraft();

  // Whether log-probabilities of the prompt are asked for that are not known yet; then what comes
  // next to the cache may be a token of the prompt whose logits tell one.
  bool LacksPromptLogprobs() const {
    return request.prompt_logprobs && std::ssize(outcome.prompt_logprobs) < n_given;
  }
  // Whether the prompt is computed from its beginning, whatever is stored of it, for what every
  // token of it gives.
  bool ReadsAnew() const { return LacksPromptLogprobs() || request.pooling.has_value(); }
  // Of the step whose `input` the cache has been extended by.
  SequenceStep::Logits WantedLogits() const;
  // Of the step that has just taken n_new positions; `logits_of` gives the row of each, 0 to n_new
  // - 1. kDataLoss where a row is not finite.
  Status TakePromptLogprobs(int64_t n_new,
                            const std::function<std::span<const float>(int64_t)>& logits_of);
  // Likewise of the hidden states; the last of them make outcome.embedding.
  Status TakeHidden(int64_t n_new, const std::function<std::span<const float>(int64_t)>& hidden_of);

 private:
  struct Forecast {
    int64_t n_until = -1;  // positions
    bool has_prompt = false;
    bool decodes = false;
    int64_t n_bytes = 0;
    int64_t to_press_bytes = 0;  // of these, that it could give up
  };

  // Tells the sampler what was there before.
  void EnterTurns();

  std::vector<double> hidden_sum_;  // of the positions that have been read
  std::vector<float> all_hidden_;   // of them, for Pooling::kAll
  MergedCounts merged_;             // of the cache, or of the last one
  Forecast forecast_;               // the last of WantedBytes
};

// kDataLoss: the logits of the token at `position` hold NaN or infinity.
Status LogitsNotFinite(int64_t position);

}  // namespace kvlathe
