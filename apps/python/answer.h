// A request of Python on its way through the engine, and what has come of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/text_stream.h"
#include "python/held_model.h"

namespace kvlathe::python {

// What one sequence is asked for.
struct Ask {
  std::string name;  // of the prompt, in errors; empty: there is but one
  std::vector<int32_t> prompt;
  std::optional<int> max_tokens = 16;  // none: until the context ends
  SamplingParams sampling;
  std::vector<int32_t> stop_ids;  // at which it ends, beside the model's own
  bool ignores_end = false;       // the model's own end is a token like others
  std::vector<std::string> stops;
  bool includes_stop = false;  // the text ends with the stop string
  bool keeps_special = false;  // special tokens are their texts
  // The space that SentencePiece puts in front of a text is no part of the answer.
  bool drops_added_space = false;
  std::optional<int> n_logprobs, n_prompt_logprobs;
  std::string draft = "none";
  std::optional<double> rate;
  std::optional<Pooling> pooling;
  std::shared_ptr<HeldSession> session;
};

// Written by the thread that steps the engine, with the turn; read with the turn, or once it has
// ended.
class Answer : public std::enable_shared_from_this<Answer> {
 public:
  // Hands the request to the engine, with the turn. Errors are those of Engine::Submit.
  static std::shared_ptr<Answer> Submit(HeldModel* model, Ask ask, int level);

  Engine::RequestId id() const { return id_; }
  bool has_ended() const { return has_ended_; }
  // Whether something came since TakeNews.
  bool has_news() const { return (has_ended_ && !has_told_end_) || ids_.size() > n_told_ids_; }
  struct News {
    std::string text;
    std::vector<int32_t> ids;
    bool has_ended = false;
  };
  News TakeNews();

  const Ask& ask() const { return ask_; }
  const std::string& text() const { return text_; }
  const std::vector<int32_t>& ids() const { return ids_; }
  const std::vector<TokenLogprobs>& logprobs() const { return logprobs_; }
  const RequestOutcome& outcome() const { return outcome_; }
  const std::string& stop() const { return stop_; }
  double kv_fraction() const { return kv_fraction_; }
  int n_context() const { return n_context_; }  // tokens of the session before the prompt

 private:
  Answer(const Tokenizer* tokenizer, Ask ask);
  StatusOr<Request> RequestFor(HeldModel* model, int level);
  FinishReason Take(const GeneratedToken& token);
  void End(HeldModel* model, int level, Engine::RequestId id, const RequestOutcome& outcome);

  void Append(std::string piece);

  const Tokenizer& tokenizer_;
  Ask ask_;
  TextStream stream_;
  Engine::RequestId id_ = 0;
  int n_context_ = 0;
  std::string text_, stop_;
  std::vector<int32_t> ids_;
  std::vector<TokenLogprobs> logprobs_;
  RequestOutcome outcome_;
  double kv_fraction_ = 0;
  bool has_ended_ = false, has_told_end_ = false;
  size_t n_told_bytes_ = 0, n_told_ids_ = 0;
};

}  // namespace kvlathe::python
