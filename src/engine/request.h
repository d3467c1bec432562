// A request is what an engine is asked for, and what it answers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/drafts/drafter.h"
#include "engine/logprobs.h"
#include "engine/prefixes/prompt_sink.h"
#include "engine/sampler.h"
#include "engine/token_constraint.h"
#include "kv/byte_kinds.h"

namespace kvlathe {

enum class FinishReason { kNone, kStop, kLength, kCancelled, kFailed };

// What hidden states of a prompt become: their mean, the last one, or all of them.
enum class Pooling { kMean, kLast, kAll };

struct Request {
  std::vector<int32_t> prompt;  // at least one token; none: a session generates further
  int max_tokens = 128;
  SamplingParams sampling;
  std::vector<int> stop_ids;  // end of sequence
  // Share of K and V elements removed, of a model whose plan offers rates (CachePlan::ranks_at);
  // none: that of the model, or of the session's cache.
  std::optional<double> rate;
  int level = 0;  // index of the engine's model that computes it
  // Up to kMaxTopLogprobs: with each generated token come its log-probability and the likeliest so
  // many. They are of the model's logits as they are: before constraint, bias, penalties and
  // temperature. None: no log-probabilities.
  std::optional<int> n_top_logprobs;
  // With n_top_logprobs, for a request without a session: also those of the tokens of the prompt.
  bool prompt_logprobs = false;
  // By which logs and audits know the answer. Empty: what is generated answers nobody, as where the
  // server asks itself whether it computes.
  std::string answer_id;
  // Whether its cache stays as it was sealed first when memory is short, of a level whose caches
  // may be sealed again in fewer bits (CacheLayout::HasPressedRuns). It may be preempted then.
  bool refuses_pressure = false;
  // Asks for the hidden states of the prompt behind the last norm, pooled, in place of tokens;
  // none: for tokens. Without a session, and with max_tokens 1.
  std::optional<Pooling> pooling;
  // Requests of one salt share what they have read (EngineOptions::prefix_bytes).
  std::string prefix_salt;
  // Takes the cache of all tokens of the prompt but the last, of which there are at least
  // kLeastSharedTokens; nothing is generated then, and the request ends with kStop. Without a
  // session, with max_tokens 1, and of a level that shares prefixes (WhyNothingIsShared). Null: the
  // cache stays here.
  std::shared_ptr<PromptSink> prompt_sink;
  // What may be generated; of this request alone. Null: anything.
  std::shared_ptr<TokenConstraint> constraint;
  // Guesses what comes next; of this request alone, and of a level whose caches can take positions
  // back (WhyNothingIsDrafted). What is generated does not depend on it beyond the rounding of the
  // logits; with Model::set_deterministic not even there. Null: a token a step.
  std::shared_ptr<Drafter> drafter;
};

// One token of the answer. Pointers are valid during the call that brings it.
struct GeneratedToken {
  int32_t id = 0;
  const TokenLogprobs* logprobs = nullptr;  // null unless asked for
  // With the first token where asked for, else null: RequestOutcome::prompt_logprobs.
  const std::vector<TokenLogprobs>* prompt_logprobs = nullptr;
};

// What a caller learns of a finished request.
struct RequestOutcome {
  std::vector<int32_t> tokens;  // generated, without the stop token of stop_ids
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<int32_t> stop_id;  // of Request::stop_ids, where it ended the request
  Status status;                   // why, with kFailed and kCancelled; OK otherwise
  double ttft_ms = 0;              // submit to first token
  double decode_seconds = 0;       // first token to last
  int n_cached_tokens = 0;         // positions in the cache at the end
  int n_prefix_tokens = 0;         // of the prompt, that were not computed because they were stored
  // Where the prompt of the cache ended (SequenceCache::n_prompt): of an earlier request whose
  // answer this one went on behind, where it did (EngineOptions::prefix_bytes).
  int64_t n_cache_prompt = 0;
  int64_t n_repeated_tokens = 0;  // that were read again for votes (RetentionPlan::Votes::kRepeat)
  int n_preemptions = 0;          // times that the cache was given up and computed again
  // Positions that were sealed again in fewer bits because memory was short, counted once more
  // where the cache was given up and computed again.
  int64_t n_pressed_tokens = 0;
  // With a drafter: tokens that it proposed and the model checked, and those of them that were
  // generated.
  int64_t n_drafted_tokens = 0;
  int64_t n_accepted_tokens = 0;
  KvBytes kv_bytes;  // of the sequence at its end
  // The same of each rank that shares the model; empty where none do.
  std::vector<KvBytes> kv_bytes_by_rank;
  // Where asked for: entry i is of token i of the prompt, which all before it predict. Entry 0 has
  // no value: its log-probability is NaN and its `top` is empty. Shorter than the prompt, or empty,
  // where the request ended before its prompt was read.
  std::vector<TokenLogprobs> prompt_logprobs;
  // [hidden_dim], where Request::pooling asked for it; [tokens of the prompt, hidden_dim] for kAll.
  std::vector<float> embedding;
};

}  // namespace kvlathe
