// A conversation with a model has its messages, and the cache that is kept from answer to answer.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "chat/chat_ends.h"
#include "chat/chat_template.h"
#include "engine/engine.h"
#include "kv/blocks/block_pool.h"
#include "kvlathe/generate/chat_turns.h"
#include "runtime/workspace.h"

namespace kvlathe {

struct ConversationOptions {
  std::string system;
  int max_tokens = 512;   // of an answer
  bool adds_bos = false;  // the tokenizer's, which the rendered conversation does not hold
  bool reads_control_tokens = false;  // also those that are written in messages
  bool shows_prompt = false;          // on standard error, before each answer
  std::optional<double> rate;
  SamplingParams sampling;
  std::vector<std::string> stops;
  std::optional<DraftOptions> draft;
  PrefixArchive* archive = nullptr;  // outlives the conversation; null: nothing is on disk
  SequenceIdentity identity;         // of the model, with an archive
};

struct ChatAnswer {
  std::string text;
  int n_prompt = 0;  // tokens of the conversation in front of it
  int n_cached = 0;  // of them, those that were not read again
  RequestOutcome outcome;

  // False when it was cancelled before its first token.
  bool was_given() const {
    return outcome.finish_reason != FinishReason::kCancelled || !outcome.tokens.empty();
  }
};

class Conversation {
 public:
  // Takes the text of an answer as it comes; false ends the answer.
  using TakeText = std::function<bool(const std::string&)>;

  // All outlive the conversation.
  Conversation(const ConversationOptions* options, const Workspace* workspace, Model* model,
               const ChatTemplate* chat_template);

  // Forgets all but the system message.
  void Clear();
  // Of the answers from here on (Request::rate), as text.
  Status SetRate(const std::string& text);
  // An error is of this message alone, which is then forgotten; so is a message whose answer was
  // not given. Says on standard error when old turns are dropped.
  StatusOr<ChatAnswer> Ask(const std::string& message, const TakeText& take);

  // Of a finished answer, as a share of the 16-bit cache.
  double KvFraction(const RequestOutcome& outcome) const;

 private:
  StatusOr<MarkedText> Render(std::span<const ChatMessage> messages) const;
  StatusOr<std::vector<int32_t>> Tokenize(std::span<const ChatMessage> messages) const;
  void SettleLastAnswer(const std::string& message);
  Session TakeKeptFor(std::span<const int32_t> prompt);
  // Whether what was read is in the engine's store, in place of kept_.
  bool UsesStore() const;
  Status Generate(std::vector<int32_t> prompt, const TakeText& take, ChatAnswer* answer);

  const ConversationOptions& options_;
  const Workspace& workspace_;
  Model* model_;
  const ChatTemplate& template_;
  ChatEnds ends_;  // with those of the model and the options
  BlockPool pool_;
  Engine engine_;
  std::optional<double> rate_;
  std::vector<ChatMessage> messages_;
  Session kept_;  // with a cache, or empty
  // Tokens of the last answer and what was in front of it, as far as they were in the cache.
  std::vector<int32_t> read_;
  // The text of the last answer as it was generated, until it is known which form stays.
  std::optional<std::string> generated_text_;
};

}  // namespace kvlathe
