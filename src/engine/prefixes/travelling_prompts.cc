// How prompts are read for other machines, and by them.
#include <algorithm>
#include <thread>
#include <utility>

#include "engine/engine.h"

namespace kvlathe {

// Whether its prompt is being read elsewhere. What came of it has become an entry of the store once
// this is false; a prompt that nobody reads, or that did not come, is read here.
bool Engine::IsReadElsewhere(Sequence* s) {
  PromptReaders* const readers = options_.readers;
  if (readers == nullptr) return false;
  if (s->distant_prompt == nullptr) {
    if (std::exchange(s->has_asked_readers, true) || s->request.prompt_sink != nullptr) {
      return false;
    }
    // A session was read in turns, which a prompt alone does not tell.
    if (s->turn_ends.size() != 1 || s->n_known() != s->n_given) return false;
    const int64_t n_missing = s->n_given - 1 - prefixes_.CountFound(QuestionOf(*s));
    if (n_missing < std::max(readers->least_tokens(), PrefixStore::kLeastTokens) ||
        SequenceBytes(*s->layout, s->n_given - 1, 1, s->n_prompt) > options_.prefix_bytes) {
      return false;
    }
    s->distant_prompt = readers->Ask({.key = &s->prefix_key,
                                      .rate = s->request.rate,
                                      .tokens = s->tokens,
                                      .request_id = s->request.answer_id});
    if (s->distant_prompt == nullptr) return false;
  }
  const DistantPrompt::State state = s->distant_prompt->state();
  if (state == DistantPrompt::State::kUnderWay) {
    is_fetching_ = true;
    return true;
  }
  if (state == DistantPrompt::State::kRead) {
    const auto tokens = std::span(s->tokens).first(s->n_given - 1);
    const Status status = prefixes_.Enter(s->prefix_key, tokens, s->distant_prompt->TakeFile());
    if (!status.ok()) s->distant_prompt->Refuse(status);
  }
  s->distant_prompt.reset();
  return false;
}

// Sends what has become final of the prompt that a sequence reads for another machine, as far as
// that takes it, and ends it once all is sent.
void Engine::SendPrompt(Sequence* s) {
  PromptSink* const sink = s->request.prompt_sink.get();
  const int64_t n_to_send = s->n_given - 1;
  if (s->stream == nullptr) {
    const PrefixPlace place = {.n_tokens = static_cast<int>(n_to_send), .n_prompt = s->n_prompt};
    s->stream = std::make_unique<SequenceStreamWriter>(*s->prefix_key.identity, s->layout, place);
    sink->Write(s->stream->Head());
  }
  while (!s->stream->is_at_end() && sink->HasRoom()) {
    std::string part = s->stream->Next(*s->cache);
    if (part.empty()) return;
    sink->Write(std::move(part));
  }
  if (s->stream->is_at_end()) Finish(s, FinishReason::kStop);
}

// Of sequences that have read all that they read, and wait for the other machine to take it.
void Engine::SendRest() {
  for (size_t i = running_.size(); i-- > 0;) {
    Sequence* const s = running_[i].get();
    if (s->waits_to_send()) SendPrompt(s);  // which may take it out of running_
  }
}

StatusOr<std::string> Engine::PlaceOf(int level, std::optional<double> rate) {
  Request request;
  request.level = level;
  request.rate = rate;
  KVL_ASSIGN_OR_RETURN(const CacheLayout* const layout, LayoutFor(request, {}));
  return kvlathe::PlaceOf({.layout = layout, .identity = &options_.identities[level]});
}

// While no sequence has anything to compute.
void Engine::WaitForOthers() {
  constexpr std::chrono::milliseconds kPause{2};
  if (options_.readers != nullptr) {
    options_.readers->WaitForChange(kPause);
  } else if (options_.archive != nullptr) {
    options_.archive->WaitForChange(kPause);
  } else {
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace kvlathe
