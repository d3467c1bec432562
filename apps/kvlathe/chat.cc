// kvlathe chat: a conversation, a line of standard input for each message.
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/engine.h"
#include "engine/text_stream.h"
#include "generation_options.h"
#include "interrupt_guard.h"
#include "tokenizer/chat_template.h"
#include "workspace.h"

namespace kvlathe {
namespace {

struct ChatOptions {
  ModelOptions model;
  GenerationOptions generation;
  std::string system;
  std::string family;  // --chat-template; empty: the model's own
  int max_tokens = 512;
  std::optional<double> rate;
};

StatusOr<ChatFormat> ChooseFormat(const ChatOptions& options, const ChatContext& context) {
  StatusOr<ChatFormat> format = options.family.empty()
                                    ? LoadChatFormat(options.model.model, context)
                                    : NamedChatFormat(options.family, context);
  KVL_RETURN_IF_ERROR(format.status());
  const bool takes_system = format->system_place != ChatFormat::System::kDropped &&
                            format->system_place != ChatFormat::System::kRefused;
  if (!options.system.empty() && !takes_system) {
    return Error(StatusCode::kInvalidArgument,
                 "--system: this model's chat template takes no system message; leave it out");
  }
  return format;
}

// Where an answer ends: ids of tokens, and texts that are not one token.
struct Ends {
  std::vector<int> ids;
  std::vector<std::string> texts;
};

Ends FindEnds(const Workspace& workspace, const ChatFormat& format) {
  const Tokenizer& tokenizer = workspace.tokenizer();
  Ends ends;
  ends.ids = workspace.config().eos_ids;
  if (const auto eos = tokenizer.eos_id()) ends.ids.push_back(*eos);
  for (const std::string& text : format.ends) {
    const std::vector<int32_t> ids = tokenizer.Tokenize(text, /*add_bos=*/false);
    if (ids.size() == 1 && tokenizer.TokenBytes(ids[0], /*keep_special=*/true) == text) {
      ends.ids.push_back(ids[0]);
    } else {
      ends.texts.push_back(text);
    }
  }
  return ends;
}

class Chat {
 public:
  Chat(const ChatOptions& options, const SamplingParams& sampling, const Workspace& workspace,
       Model* model, const ChatFormat& format)
      : options_(options),
        sampling_(sampling),
        workspace_(workspace),
        model_(model),
        format_(format),
        ends_(FindEnds(workspace, format)),
        pool_(workspace.kv_budget_bytes()),
        engine_(model, &pool_, {}),
        rate_(options.rate) {
    ends_.texts.insert(ends_.texts.end(), options.generation.stops.begin(),
                       options.generation.stops.end());
    Clear();
  }

  void Clear() {
    messages_.clear();
    if (!options_.system.empty()) messages_.push_back({"system", options_.system});
  }

  // Of the answers from here on (Request::rate), as text.
  Status SetRate(const std::string& text) {
    double rate = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
    if (error != std::errc() || end != text.data() + text.size()) {
      return Error(StatusCode::kInvalidArgument, "/rate {}: give a number, as /rate 0.5", text);
    }
    KVL_RETURN_IF_ERROR(model_->LayoutAt(rate).status());
    rate_ = rate;
    return OkStatus();
  }

  // Answers on standard output. An error is of this message alone, which is then forgotten.
  Status Answer(const std::string& message);

  // What the conversation took, on standard error.
  void Report() const;

 private:
  StatusOr<Request> MakeRequest() const;
  Status Generate(Request request, RequestOutcome* outcome, std::string* text);
  void PrintJson(int n_prompt, const RequestOutcome& outcome, const std::string& text) const;
  double KvFraction(const RequestOutcome& outcome) const {
    return static_cast<double>(outcome.kv_bytes.total()) /
           static_cast<double>(ReferenceBytes(model_->layout(), outcome.n_cached_tokens));
  }

  const ChatOptions& options_;
  SamplingParams sampling_;
  const Workspace& workspace_;
  Model* model_;
  const ChatFormat& format_;
  Ends ends_;
  BlockPool pool_;
  Engine engine_;
  std::optional<double> rate_;
  std::vector<ChatMessage> messages_;
  RequestOutcome last_;
  int n_answers_ = 0;
  int64_t n_generated_ = 0;
  int64_t n_decoded_ = 0;  // generated after the first token of each answer
  double decode_seconds_ = 0;
};

StatusOr<Request> Chat::MakeRequest() const {
  KVL_ASSIGN_OR_RETURN(const std::string text, RenderChat(format_, messages_));
  Request request;
  request.rate = rate_;
  // The text holds the BOS of its template. A family that was forced on a model follows the model's
  // own rule instead.
  const bool add_bos = !options_.family.empty() && format_.start.empty();
  request.prompt = workspace_.tokenizer().Tokenize(text, add_bos);
  const int n_left = workspace_.context_tokens() - static_cast<int>(request.prompt.size());
  if (n_left < 1) {
    return Error(StatusCode::kInvalidArgument,
                 "the conversation has {} tokens with this message, but the context is {}; /clear "
                 "starts a new one",
                 request.prompt.size(), workspace_.context_tokens());
  }
  request.max_tokens = std::min(options_.max_tokens, n_left);
  request.sampling = sampling_;
  request.stop_ids = ends_.ids;
  return request;
}

// The space that SentencePiece puts in front of a text is no part of the answer.
void DropAddedSpace(const Tokenizer& tokenizer, int32_t first_id, std::string* piece) {
  const std::string alone = tokenizer.Detokenize(std::span(&first_id, 1));
  if (piece->starts_with(' ') && !alone.starts_with(' ')) piece->erase(0, 1);
}

Status Chat::Generate(Request request, RequestOutcome* outcome, std::string* text) {
  TextStream stream(&workspace_.tokenizer(), ends_.texts);
  const auto emit = [&](const std::string& piece) {
    *text += piece;
    if (options_.model.json) return;
    fmt::print("{}", piece);
    std::fflush(stdout);
  };
  std::optional<int32_t> first_id;
  const auto on_token = [&](Engine::RequestId, int32_t id) {
    std::string piece = stream.Push(id);
    if (!first_id) first_id = id;
    if (text->empty()) DropAddedSpace(workspace_.tokenizer(), *first_id, &piece);
    emit(piece);
    if (stream.stopped()) return FinishReason::kStop;
    return !InterruptGuard::IsInterrupted() && std::ferror(stdout) == 0 ? FinishReason::kNone
                                                                        : FinishReason::kCancelled;
  };
  const auto on_finish = [&](Engine::RequestId, const RequestOutcome& o) { *outcome = o; };
  const InterruptGuard guard;
  KVL_RETURN_IF_ERROR(engine_.Submit(std::move(request), on_token, on_finish).status());
  KVL_RETURN_IF_ERROR(engine_.RunUntilIdle());
  emit(stream.Finish());
  return OkStatus();
}

Status Chat::Answer(const std::string& message) {
  messages_.push_back({"user", message});
  RequestOutcome outcome;
  std::string text;
  int n_prompt = 0;
  const Status status = [&]() -> Status {
    KVL_ASSIGN_OR_RETURN(Request request, MakeRequest());
    n_prompt = static_cast<int>(request.prompt.size());
    return Generate(std::move(request), &outcome, &text);
  }();
  if (!status.ok()) {
    messages_.pop_back();
    return status;
  }
  messages_.push_back({"assistant", text});
  const auto n_tokens = static_cast<int64_t>(outcome.tokens.size());
  ++n_answers_;
  n_generated_ += n_tokens;
  n_decoded_ += std::max<int64_t>(0, n_tokens - 1);
  decode_seconds_ += outcome.decode_seconds;
  if (options_.model.json) {
    PrintJson(n_prompt, outcome, text);
  } else {
    fmt::print("\n");
  }
  last_ = std::move(outcome);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return Error(StatusCode::kResourceExhausted, "standard output cannot be written");
  }
  return OkStatus();
}

void Chat::PrintJson(int n_prompt, const RequestOutcome& outcome, const std::string& text) const {
  const nlohmann::ordered_json json = {{"text", text},
                                       {"ids", outcome.tokens},
                                       {"prompt_tokens", n_prompt},
                                       {"generated_tokens", outcome.tokens.size()},
                                       {"finish_reason", NameOf(outcome.finish_reason)},
                                       {"ttft_ms", outcome.ttft_ms},
                                       {"kv_bytes", outcome.kv_bytes.total()},
                                       {"kv_fraction", KvFraction(outcome)}};
  fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void Chat::Report() const {
  if (n_answers_ == 0 || options_.model.json) return;
  const double tokens_per_second = decode_seconds_ > 0 ? n_decoded_ / decode_seconds_ : 0;
  fmt::print(stderr,
             "\n{} answers, {} tokens generated, {:.1f} tokens/s; at the end KV {} bytes for {} "
             "tokens, {:.2f}% of the 16-bit cache\n",
             n_answers_, n_generated_, tokens_per_second, last_.kv_bytes.total(),
             last_.n_cached_tokens, 100 * KvFraction(last_));
}

// A message, or nothing at the end of the input.
std::optional<std::string> ReadMessage(bool shows_prompt) {
  if (shows_prompt) {
    fmt::print("> ");
    std::fflush(stdout);
  }
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

Status Converse(Chat* chat) {
  constexpr std::string_view kRateCommand = "/rate ";
  const bool is_terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  while (const auto message = ReadMessage(is_terminal)) {
    if (*message == "/exit") break;
    if (message->empty()) continue;
    if (*message == "/clear") {
      chat->Clear();
      continue;
    }
    const bool is_rate = message->starts_with(kRateCommand);
    const Status status =
        is_rate ? chat->SetRate(message->substr(kRateCommand.size())) : chat->Answer(*message);
    // A terminal goes on with the next message; a program is told at once.
    if (!status.ok() && (!is_terminal || std::ferror(stdout) != 0)) return status;
    if (!status.ok()) fmt::print(stderr, "kvlathe: {}\n", MessageOf(status));
  }
  return OkStatus();
}

Status RunChat(const ChatOptions& options) {
  if (options.model.kv.size() > 1) {
    return Error(StatusCode::kInvalidArgument,
                 "chat takes one --kv; kvlathe compare takes several");
  }
  KVL_ASSIGN_OR_RETURN(const SamplingParams sampling, options.generation.Checked());
  // Before the weights are read, which takes long.
  KVL_RETURN_IF_ERROR(ChooseFormat(options, {}).status());
  KVL_ASSIGN_OR_RETURN(auto workspace, Workspace::Open(options.model));
  KVL_ASSIGN_OR_RETURN(
      const SpecModel spec_model,
      workspace->MakeModel(options.model.kv.empty() ? "none" : options.model.kv.front()));
  KVL_ASSIGN_OR_RETURN(const ChatFormat format,
                       ChooseFormat(options, ChatContextOf(workspace->tokenizer())));
  Chat chat(options, sampling, *workspace, spec_model.model.get(), format);
  const Status status = Converse(&chat);
  chat.Report();
  return status;
}

}  // namespace

void AddChatVerb(Verbs* verbs) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* verb =
      verbs->Add("chat", "Talk to a model, a line for each message; /clear forgets, /exit ends",
                 "kvlathe chat -m models/lathe-nano --kv 'fdc(rate=0.5)' --chat-template chatml",
                 [options] { return RunChat(*options); });
  AddModelOptions(verb, &options->model);
  AddCacheOptions(verb, &options->model, "none");
  verb->add_option("--system", options->system, "system message");
  verb->add_option("--chat-template", options->family, "family (default: the model's template)")
      ->check(CLI::IsMember(ChatFamilyNames()));
  verb->add_option("-n,--max-tokens", options->max_tokens, "tokens of an answer, at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  verb->add_option("--rate", options->rate,
                   "share of K and V elements removed, with resident=full in --kv; /rate P sets it "
                   "for the answers that follow");
  AddGenerationOptions(verb, &options->generation);
}

}  // namespace kvlathe
