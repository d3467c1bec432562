// kvlathe chat: a conversation, a line of standard input for each message.
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "evaluation/kv_parts.h"
#include "kvlathe/chat_template_options.h"
#include "kvlathe/generate/chat_conversation.h"
#include "kvlathe/generate/chat_input.h"
#include "kvlathe/generate/generation_options.h"
#include "kvlathe/open_workspace.h"
#include "kvlathe/prefix_options.h"
#include "runtime/cache_loss.h"
#include "runtime/default_sampling.h"
#include "runtime/spec_models.h"

namespace kvlathe {
namespace {

struct ChatOptions {
  ModelOptions model;
  GenerationOptions generation;
  ConversationOptions conversation;
  ChatTemplateOptions chat;
  PrefixOptions prefixes;
};

// A conversation on standard input and output.
class Chat {
 public:
  Chat(Conversation* conversation, bool json) : conversation_(*conversation), json_(json) {}

  // Until /exit or the end of the input. A terminal goes on after an error; a program is told at
  // once.
  Status Converse();
  // What the conversation took, on standard error.
  void Report() const;

 private:
  // False: it was told to end.
  StatusOr<bool> Do(const std::string& text);
  Status AnswerTo(const std::string& message);
  void PrintJson(const ChatAnswer& answer) const;

  Conversation& conversation_;
  bool json_;
  ChatReader reader_;
  RequestOutcome last_;
  int n_answers_ = 0;
  int n_cut_ = 0;  // of them, by -n
  int64_t n_generated_ = 0;
  int64_t n_decoded_ = 0;  // generated after the first token of each answer
  double decode_seconds_ = 0;
};

Status Chat::Converse() {
  while (const auto text = reader_.Read()) {
    const StatusOr<bool> goes_on = Do(*text);
    if (goes_on.ok() && !*goes_on) return OkStatus();
    if (goes_on.ok()) continue;
    if (!reader_.is_terminal() || std::ferror(stdout) != 0) return goes_on.status();
    fmt::print(stderr, "kvlathe: {}\n", MessageOf(goes_on.status()));
  }
  if (reader_.is_terminal()) fmt::print("\n");  // behind the prompt that Ctrl-D has answered
  return OkStatus();
}

StatusOr<bool> Chat::Do(const std::string& text) {
  KVL_ASSIGN_OR_RETURN(const ChatInput input, ParseChatInput(text));
  switch (input.kind) {
    case ChatInput::Kind::kExit:
      return false;
    case ChatInput::Kind::kHelp:
      fmt::print(stderr, "{}", ChatHelp());  // standard output has answers only
      break;
    case ChatInput::Kind::kClear:
      conversation_.Clear();
      break;
    case ChatInput::Kind::kRate:
      KVL_RETURN_IF_ERROR(conversation_.SetRate(input.text));
      break;
    case ChatInput::Kind::kMessage:
      if (!input.text.empty()) KVL_RETURN_IF_ERROR(AnswerTo(input.text));
      break;
  }
  return true;
}

Status Chat::AnswerTo(const std::string& message) {
  bool is_mid_line = false;
  const auto take = [&](const std::string& piece) {
    if (json_) return true;
    fmt::print("{}", piece);
    std::fflush(stdout);
    if (!piece.empty()) is_mid_line = true;
    return std::ferror(stdout) == 0;
  };
  StatusOr<ChatAnswer> answer = conversation_.Ask(message, take);
  if (!answer.ok()) {
    if (is_mid_line) fmt::print("\n");
    return answer.status();
  }
  if (!answer->was_given()) {
    if (reader_.is_terminal()) fmt::print("\n");  // behind the ^C
    std::fflush(stdout);
    fmt::print(stderr,
               "kvlathe: note: stopped before the answer began; the message is forgotten\n");
    if (json_) PrintJson(*answer);
    return OkStatus();
  }
  const auto n_tokens = static_cast<int64_t>(answer->outcome.tokens.size());
  ++n_answers_;
  if (answer->outcome.finish_reason == FinishReason::kLength) ++n_cut_;
  n_generated_ += n_tokens;
  n_decoded_ += std::max<int64_t>(0, n_tokens - 1);
  decode_seconds_ += answer->outcome.decode_seconds;
  if (json_) {
    PrintJson(*answer);
  } else {
    fmt::print("\n");
  }
  last_ = std::move(answer->outcome);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return Error(StatusCode::kResourceExhausted, "standard output cannot be written");
  }
  return OkStatus();
}

void Chat::PrintJson(const ChatAnswer& answer) const {
  const RequestOutcome& outcome = answer.outcome;
  const nlohmann::ordered_json json = {{"text", answer.text},
                                       {"ids", outcome.tokens},
                                       {"prompt_tokens", answer.n_prompt},
                                       {"cached_tokens", answer.n_cached},
                                       {"generated_tokens", outcome.tokens.size()},
                                       {"finish_reason", NameOf(outcome.finish_reason)},
                                       {"ttft_ms", outcome.ttft_ms},
                                       {"kv_bytes", outcome.kv_bytes.total()},
                                       {"kv_fraction", conversation_.KvFraction(outcome)}};
  fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void Chat::Report() const {
  if (n_answers_ == 0 || json_) return;
  const double tokens_per_second = decode_seconds_ > 0 ? n_decoded_ / decode_seconds_ : 0;
  fmt::print(stderr,
             "\n{} answers, {} tokens generated, {:.1f} tokens/s; at the end KV {} bytes for {} "
             "tokens, {}{}\n",
             n_answers_, n_generated_, tokens_per_second, last_.kv_bytes.total(),
             last_.n_cached_tokens,
             ShareOfReferenceText(conversation_.KvFraction(last_), last_.n_cached_tokens),
             n_cut_ > 0 ? fmt::format("; -n has cut {} of the answers", n_cut_) : "");
}

Status RunChat(ChatOptions options) {
  if (options.model.kv.size() > 1) {
    return Error(StatusCode::kInvalidArgument,
                 "chat takes one --kv; kvlathe compare takes several");
  }
  ConversationOptions how = options.conversation;
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<PrefixArchive> archive,
                       OpenArchive(options.prefixes, NotePrefixTrouble));
  KVL_RETURN_IF_ERROR(options.generation.Check());
  how.stops = options.generation.stops;
  if (how.max_tokens == kUntilTheEnd) how.max_tokens = std::numeric_limits<int>::max();
  KVL_ASSIGN_OR_RETURN(options.model.model, PathOfModel(options.model.model));
  // Before the weights are read, which takes long.
  KVL_RETURN_IF_ERROR(LoadModelConfig(options.model.model).status());
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                       Tokenizer::Load(options.model.model));
  KVL_ASSIGN_OR_RETURN(const ChatTemplate chat_template,
                       FindChatTemplate(options.chat, options.model.model, *tokenizer));
  for (const std::string& note : chat_template.Notes()) {
    const bool is_of_tools = note.find("tools") != std::string::npos;
    if (!is_of_tools && !how.system.empty()) fmt::print(stderr, "kvlathe: note: {}\n", note);
  }
  KVL_ASSIGN_OR_RETURN(const SamplingParams of_model, DefaultSampling(options.model.model));
  KVL_ASSIGN_OR_RETURN(how.sampling, options.generation.CheckedOver(of_model));
  KVL_ASSIGN_OR_RETURN(auto workspace, OpenWorkspace(options.model));
  KVL_ASSIGN_OR_RETURN(
      const SpecModel spec_model,
      workspace->MakeModel(options.model.kv.empty() ? "none" : options.model.kv.front()));
  how.draft = options.generation.draft();
  KVL_RETURN_IF_ERROR(CheckDraft(how.draft, spec_model));
  WarnOfLoss(workspace.get(), {&spec_model, 1});
  // A model's own template prints its BOS, where there is to be one. A template that was forced on
  // a model follows the model's own rule instead.
  how.adds_bos = !options.chat.choice.empty() && !chat_template.prints_bos();
  how.reads_control_tokens = options.chat.reads_control_tokens;
  if (archive != nullptr) {
    how.archive = archive.get();
    KVL_ASSIGN_OR_RETURN(how.identity, IdentityOf(workspace.get(), spec_model));
  }
  Conversation conversation(&how, workspace.get(), spec_model.model.get(), &chat_template);
  Chat chat(&conversation, options.model.json);
  const Status status = chat.Converse();
  chat.Report();
  return status;
}

}  // namespace

void AddChatVerb(Verbs* verbs) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* verb =
      verbs->Add("chat", "Talk to a model, a line for each message; /help lists the commands",
                 "kvlathe chat -m models/lathe-nano --kv 'lathe(ratio=4)' --chat-template chatml",
                 [options] { return RunChat(*options); });
  AddModelOptions(verb, &options->model);
  AddCacheOptions(verb, &options->model, "none");
  verb->add_option("--system", options->conversation.system, "system message");
  AddChatTemplateOptions(verb, &options->chat);
  verb->add_flag("--show-prompt", options->conversation.shows_prompt,
                 "the rendered conversation on standard error, before each answer");
  AddMaxTokensOption(verb, &options->conversation.max_tokens,
                     "tokens of an answer, at most; -1: until it or the context ends");
  verb->add_option("--rate", options->conversation.rate,
                   "share of K and V elements removed, with resident=full in --kv; /rate P sets it "
                   "for the answers that follow");
  AddGenerationOptions(verb, &options->generation);
  AddPrefixOptions(verb, &options->prefixes);
}

}  // namespace kvlathe
