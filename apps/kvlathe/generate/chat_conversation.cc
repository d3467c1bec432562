#include "kvlathe/generate/chat_conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "engine/text_stream.h"
#include "kvlathe/generate/chat_turns.h"
#include "kvlathe/generate/interrupt_guard.h"

namespace kvlathe {
namespace {

EngineOptions EngineOptionsOf(const ConversationOptions& conversation, int64_t kv_bytes) {
  EngineOptions options;
  options.prefix_bytes = kv_bytes / 2;
  options.archive = conversation.archive;
  options.identities = {conversation.identity};
  // Ctrl-C ends an answer also while a long prompt is read, before there is a token.
  options.is_interrupted = [] { return InterruptGuard::IsInterrupted(); };
  return options;
}

// The space that SentencePiece puts in front of a text is no part of the answer.
void DropAddedSpace(const Tokenizer& tokenizer, int32_t first_id, std::string* piece) {
  const std::string alone = tokenizer.Detokenize(std::span(&first_id, 1));
  if (piece->starts_with(' ') && !alone.starts_with(' ')) piece->erase(0, 1);
}

}  // namespace

Conversation::Conversation(const ConversationOptions* options, const Workspace* workspace,
                           Model* model, const ChatTemplate* chat_template)
    : options_(*options),
      workspace_(*workspace),
      model_(model),
      template_(*chat_template),
      ends_(FindChatEnds(workspace->tokenizer(), chat_template->answer_format(false).ends)),
      pool_(workspace->kv_budget_bytes(), &model->machine().memory()),
      engine_({model}, &pool_, EngineOptionsOf(*options, pool_.usage().budget_bytes)),
      rate_(options->rate) {
  const std::vector<int>& eos_ids = workspace->config().eos_ids;
  ends_.ids.insert(ends_.ids.end(), eos_ids.begin(), eos_ids.end());
  if (const auto eos = workspace->tokenizer().eos_id()) ends_.ids.push_back(*eos);
  ends_.texts.insert(ends_.texts.end(), options->stops.begin(), options->stops.end());
  Clear();
}

void Conversation::Clear() {
  messages_.clear();
  if (!options_.system.empty()) messages_.push_back({"system", options_.system});
  kept_ = {};
  read_.clear();
  generated_text_.reset();
}

Status Conversation::SetRate(const std::string& text) {
  double rate = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Error(StatusCode::kInvalidArgument, "/rate {}: give a number, as /rate 0.5", text);
  }
  KVL_RETURN_IF_ERROR(model_->LayoutAt(rate).status());
  rate_ = rate;
  kept_ = {};  // a cache has one rate
  return OkStatus();
}

double Conversation::KvFraction(const RequestOutcome& outcome) const {
  if (outcome.n_cached_tokens == 0) return 0;
  return static_cast<double>(outcome.kv_bytes.total()) /
         static_cast<double>(ReferenceBytes(model_->layout(), outcome.n_cached_tokens));
}

StatusOr<MarkedText> Conversation::Render(std::span<const ChatMessage> messages) const {
  ChatConversation conversation;
  for (const ChatMessage& message : messages) {
    conversation.messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  return template_.Render(conversation);
}

StatusOr<std::vector<int32_t>> Conversation::Tokenize(std::span<const ChatMessage> messages) const {
  KVL_ASSIGN_OR_RETURN(const MarkedText prompt, Render(messages));
  std::span<const TextRange> plain = prompt.inputs;
  if (options_.reads_control_tokens) plain = {};
  return workspace_.tokenizer().TryTokenizeMarked(prompt.text, options_.adds_bos, plain);
}

// An answer is shown without the space of DropAddedSpace, but templates differ in whether they
// write one there. The text that gives the tokens again which were generated is the one that the
// model has seen, and with it they need not be read again.
void Conversation::SettleLastAnswer(const std::string& message) {
  if (!generated_text_) return;
  const std::string generated = *std::exchange(generated_text_, std::nullopt);
  std::vector<ChatMessage> messages = messages_;
  messages.push_back({"user", message});
  const auto was_read = [&] {
    const auto tokens = Tokenize(messages);
    return tokens.ok() && BeginsWith(*tokens, read_);
  };
  if (was_read()) return;
  messages[messages.size() - 2].content = generated;
  if (was_read()) messages_.back().content = generated;
}

bool Conversation::UsesStore() const {
  StatusOr<const CacheLayout*> layout = &model_->layout();
  if (rate_.has_value()) layout = model_->LayoutAt(*rate_);
  return layout.ok() && SharesPrefixes(**layout);
}

// What is kept if the prompt goes on from it and that pays, or an empty session; then nothing is
// kept any more.
Session Conversation::TakeKeptFor(std::span<const int32_t> prompt) {
  Session kept = std::exchange(kept_, {});
  if (kept.cache == nullptr || !CutToCache(kept.cache->n_tokens(), &kept) ||
      kept.tokens.size() >= prompt.size() || !BeginsWith(prompt, kept.tokens) ||
      !IsWorthContinuing(kept.cache->layout(), kept.cache->n_prompt(), kept.cache->n_tokens(),
                         std::ssize(prompt))) {
    return {};
  }
  return kept;
}

Status Conversation::Generate(std::vector<int32_t> prompt, const TakeText& take,
                              ChatAnswer* answer) {
  Session session = UsesStore() ? Session() : TakeKeptFor(prompt);
  answer->n_prompt = static_cast<int>(prompt.size());
  answer->n_cached = static_cast<int>(session.tokens.size());
  Request request;
  request.prompt.assign(prompt.begin() + answer->n_cached, prompt.end());
  request.max_tokens =
      std::min(options_.max_tokens, workspace_.context_tokens() - answer->n_prompt);
  request.sampling = options_.sampling;
  request.stop_ids = ends_.ids;
  request.rate = rate_;
  request.drafter = MakeDrafter(options_.draft);
  TextStream stream(&workspace_.tokenizer(), ends_.texts);
  std::string generated;
  std::optional<int32_t> first_id;
  const auto emit = [&](std::string piece) {
    generated += piece;
    if (answer->text.empty() && first_id) {
      DropAddedSpace(workspace_.tokenizer(), *first_id, &piece);
    }
    answer->text += piece;
    return take(piece);
  };
  const auto on_token = [&](Engine::RequestId, const GeneratedToken& token) {
    if (!first_id) first_id = token.id;
    const bool goes_on = emit(stream.Push(token.id));
    if (stream.stopped()) return FinishReason::kStop;
    return goes_on && !InterruptGuard::IsInterrupted() ? FinishReason::kNone
                                                       : FinishReason::kCancelled;
  };
  const auto on_finish = [&](Engine::RequestId id, const RequestOutcome& outcome) {
    answer->outcome = outcome;
    if (!UsesStore()) kept_ = engine_.TakeSession(id);
  };
  const InterruptGuard guard;
  KVL_RETURN_IF_ERROR(
      engine_.Submit(std::move(request), on_token, on_finish, std::move(session)).status());
  KVL_RETURN_IF_ERROR(engine_.RunUntilIdle());  // what fails leaves no session
  emit(stream.Finish());
  if (UsesStore()) answer->n_cached = answer->outcome.n_prefix_tokens;
  read_ = std::move(prompt);
  read_.insert(read_.end(), answer->outcome.tokens.begin(), answer->outcome.tokens.end());
  read_.resize(std::min(read_.size(), static_cast<size_t>(answer->outcome.n_cached_tokens)));
  if (generated != answer->text) generated_text_ = std::move(generated);
  return OkStatus();
}

StatusOr<ChatAnswer> Conversation::Ask(const std::string& message, const TakeText& take) {
  SettleLastAnswer(message);
  std::vector<ChatMessage> messages = messages_;
  messages.push_back({"user", message});
  const int context = workspace_.context_tokens();
  const int n_answer = std::max(1, std::min(options_.max_tokens, context / 4));
  KVL_ASSIGN_OR_RETURN(FittedChat fitted,
                       FitChat(std::move(messages), context, n_answer,
                               [&](std::span<const ChatMessage> some) { return Tokenize(some); }));
  if (fitted.n_dropped > 0) {
    fmt::print(stderr, "kvlathe: note: {}\n", DroppedTurnsText(fitted.n_dropped, context));
  }
  if (options_.shows_prompt) {
    KVL_ASSIGN_OR_RETURN(const MarkedText prompt, Render(fitted.messages));
    fmt::print(stderr, "{}\n", prompt.text);
  }
  ChatAnswer answer;
  KVL_RETURN_IF_ERROR(Generate(std::move(fitted.prompt), take, &answer));
  if (!answer.was_given()) return answer;
  messages_ = std::move(fitted.messages);
  messages_.push_back({"assistant", answer.text});
  return answer;
}

}  // namespace kvlathe
