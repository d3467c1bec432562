// A Generation holds the choices of one HTTP request while the engine computes them: it goes from
// tokens on the thread that steps to a writer of the answer in the tasks of the reply.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/text_stream.h"
#include "server/api/exchange.h"
#include "server/api/service_state.h"

namespace kvlathe::api {

// One sequence of the engine.
struct ChoicePlan {
  Request request;
  std::vector<std::string> stops;
  DetokenizerOptions detokenizer;
  std::vector<int32_t> text_before;  // tokens that the text continues
  // At which the choice ends, beside request.stop_ids. They are seen, with their log-probabilities,
  // as any other token, but for their text.
  std::vector<int32_t> seen_end_ids;
  // The tokens that the engine generates are none of the answer (max_tokens was 0).
  bool drops_tokens = false;
  std::optional<int> slot_id;  // what the sequence held is remembered by it
};

struct ChoiceEnd {
  FinishReason reason = FinishReason::kNone;  // kStop or kLength
  int64_t n_tokens = 0;                       // of the answer
  int64_t n_stored = 0;                       // of the prompt, that were not computed
  int64_t n_pressed = 0;                      // RequestOutcome::n_pressed_tokens
  int64_t n_drafted = 0;                      // RequestOutcome::n_drafted_tokens
  int64_t n_accepted = 0;                     // RequestOutcome::n_accepted_tokens
};

// What comes of one choice: a token, or its end.
struct ChoiceEvent {
  int choice_idx = 0;
  std::string text;                            // that is decided now: whole characters, maybe none
  std::optional<TokenLogprobs> logprobs;       // of the token, where they were asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // with the first event, where they were asked for
  std::optional<ChoiceEnd> end;
};

// Makes the answer. Called in tasks of the reply, one at a time: Begin, Take for every event (in
// the order of each choice), then Finish or Fail.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // The engine has taken all choices.
  virtual void Begin() {}
  virtual void Take(ChoiceEvent event) = 0;
  // All choices have ended well.
  virtual void Finish() = 0;
  // One has not, and the answer ends here.
  virtual void Fail(const ApiError& error) = 0;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Submits all choices, or answers why they are refused. From then on the engine and the reply
  // keep the generation alive. `record` fields of the exchange that concern the prompt are set
  // before.
  static void Start(const ServiceState& state, std::shared_ptr<Exchange> exchange,
                    std::unique_ptr<AnswerWriter> writer, std::vector<ChoicePlan> plans);

 private:
  struct Choice {
    Choice(const Tokenizer* tokenizer, ChoicePlan plan);
    TextStream stream;  // this and the rest: of the thread that steps
    std::vector<int32_t> end_ids;
    const bool drops_tokens;
    int64_t n_tokens = 0;
    std::shared_ptr<Slot> slot;  // until it has finished
  };
  enum class Phase {
    kSubmitting,  // events wait
    kAccepted,    // events are written
    kClosed,      // events are dropped: refused, failed or finished
  };

  Generation(const ServiceState& state, std::shared_ptr<Exchange> exchange,
             std::unique_ptr<AnswerWriter> writer);
  Status Submit(std::vector<ChoicePlan> plans);
  // The id of the HTTP request, with the number of the choice where it has several.
  std::string AnswerId(size_t choice_idx, size_t n_choices) const;
  void Accept();
  void Cancel();

  // On the thread that steps.
  FinishReason OnToken(int choice_idx, const GeneratedToken& token);
  void OnFinish(int choice_idx, const RequestOutcome& outcome);
  void Queue(ChoiceEvent event, Status status);

  // In tasks of the reply.
  void Drain();
  void TakeEvent(ChoiceEvent event, const Status& status);
  void FinishAll();
  void Fail(const Status& status);

  const ServiceState& state_;
  std::shared_ptr<Exchange> exchange_;
  std::unique_ptr<AnswerWriter> writer_;
  std::vector<std::unique_ptr<Choice>> choices_;
  std::vector<Engine::RequestId> ids_;  // of the choices; constant once accepted
  int64_t max_tokens_ = 0;              // of a choice
  std::atomic<bool> is_gone_ = false;   // the client

  // Of the reply's tasks, as exchange_ and writer_ once accepted.
  int n_ended_ = 0;

  std::mutex mutex_;
  // Under mutex_.
  Phase phase_ = Phase::kSubmitting;
  bool is_drain_posted_ = false;
  std::vector<std::pair<ChoiceEvent, Status>> events_;
};

// Lets a sequence end only behind a number of tokens.
class MinTokensConstraint : public TokenConstraint {
 public:
  MinTokensConstraint(std::vector<int32_t> end_ids, int min_tokens)
      : end_ids_(std::move(end_ids)), n_left_(min_tokens) {}
  void Mask(std::span<float> logits) override;
  Status Accept(int32_t token) override;
  bool is_complete() const override { return false; }

 private:
  std::vector<int32_t> end_ids_;
  int n_left_;
};

}  // namespace kvlathe::api
