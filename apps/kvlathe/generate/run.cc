// kvlathe run: generate text, streamed.
#include <fmt/format.h>
#include <unistd.h>

#include <optional>

#include "engine/engine.h"
#include "engine/text_stream.h"
#include "evaluation/kv_parts.h"
#include "io/atomic_file.h"
#include "io/files.h"
#include "kvlathe/generate/generation_options.h"
#include "kvlathe/generate/interrupt_guard.h"
#include "kvlathe/open_workspace.h"
#include "kvlathe/prefix_options.h"
#include "runtime/cache_loss.h"
#include "runtime/default_sampling.h"
#include "runtime/following_text.h"
#include "runtime/spec_models.h"

namespace kvlathe {
namespace {

struct RunVerbOptions {
  ModelOptions model;
  std::optional<std::string> prompt;
  std::string prompt_file;
  int max_tokens = 128;
  bool ignore_eos = false;
  std::optional<double> rate;
  std::string load_session;
  std::string save_session;
  GenerationOptions generation;
  PrefixOptions prefixes;
};

// What a run starts from and what comes of it.
struct Generated {
  int n_restored = 0;  // tokens of --load-session
  int n_prompt = 0;
  RequestOutcome outcome;
  std::string text;
  Session session;  // with --save-session
};

void Report(const SpecModel& spec_model, const Generated& generated,
            const std::optional<DraftOptions>& draft, bool as_json) {
  const RequestOutcome& outcome = generated.outcome;
  const CacheLayout& layout = spec_model.model->whole_layout();
  const int n_generated = static_cast<int>(outcome.tokens.size());
  const double decode_tok_per_s = outcome.decode_seconds > 0 && n_generated > 1
                                      ? (n_generated - 1) / outcome.decode_seconds
                                      : 0;
  const double fraction = static_cast<double>(outcome.kv_bytes.total()) /
                          static_cast<double>(ReferenceBytes(layout, outcome.n_cached_tokens));
  if (as_json) {
    nlohmann::ordered_json json = {{"kv", spec_model.spec.text()},
                                   {"kv_resolved", spec_model.spec.ToString()},
                                   {"text", generated.text},
                                   {"ids", outcome.tokens},
                                   {"restored_tokens", generated.n_restored},
                                   {"prompt_tokens", generated.n_prompt},
                                   {"cached_tokens", outcome.n_prefix_tokens},
                                   {"generated_tokens", n_generated},
                                   {"finish_reason", NameOf(outcome.finish_reason)},
                                   {"ttft_ms", outcome.ttft_ms},
                                   {"decode_tok_per_s", decode_tok_per_s},
                                   {"kv_bytes", outcome.kv_bytes.total()},
                                   {"kv_fraction", fraction},
                                   {"kv_parts", PartsJson(outcome.kv_bytes)}};
    for (const KvBytes& of_rank : outcome.kv_bytes_by_rank) {
      json["kv_bytes_by_rank"].push_back(of_rank.total());
    }
    if (draft.has_value()) {
      json["drafted_tokens"] = outcome.n_drafted_tokens;
      json["accepted_tokens"] = outcome.n_accepted_tokens;
    }
    if (spec_model.predicted_kl.has_value()) json["predicted_kl"] = *spec_model.predicted_kl;
    fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  std::string restored;
  if (generated.n_restored > 0)
    restored = fmt::format("{} tokens restored, ", generated.n_restored);
  if (outcome.n_prefix_tokens > 0) {
    restored += fmt::format("{} tokens of --prefix-dir, ", outcome.n_prefix_tokens);
  }
  std::string by_rank;
  for (const KvBytes& of_rank : outcome.kv_bytes_by_rank) {
    by_rank += fmt::format("{}{}", by_rank.empty() ? "; by rank " : " + ", of_rank.total());
  }
  const bool is_cut = outcome.finish_reason == FinishReason::kLength;
  fmt::print(stderr,
             "\n{}{} prompt tokens, {} generated{}; TTFT {:.1f} ms, {:.1f} tokens/s{}; KV {} bytes "
             "({}), {}{}\n",
             restored, generated.n_prompt, n_generated,
             is_cut ? " (the text is cut there; -n says how many)" : "", outcome.ttft_ms,
             decode_tok_per_s,
             DraftsText(draft, outcome.n_drafted_tokens, outcome.n_accepted_tokens),
             outcome.kv_bytes.total(), PartsText(outcome.kv_bytes),
             ShareOfReferenceText(fraction, outcome.n_cached_tokens), by_rank);
}

StatusOr<std::string> PromptText(const RunVerbOptions& options) {
  const bool is_piped = !options.prompt && options.load_session.empty() &&
                        options.prompt_file.empty() && isatty(STDIN_FILENO) == 0;
  std::string prompt = options.prompt.value_or("");
  std::string place = options.prompt ? "-p" : options.prompt_file;
  if (is_piped || options.prompt_file == "-") {
    KVL_ASSIGN_OR_RETURN(prompt, ReadStandardInput());
    place = "standard input";
  } else if (!options.prompt_file.empty()) {
    KVL_ASSIGN_OR_RETURN(prompt, ReadTextFile(options.prompt_file));
  }
  if (!prompt.empty() || !options.load_session.empty()) return prompt;
  constexpr std::string_view kWays =
      "give a prompt with -p TEXT, -f FILE or on standard input, or a saved session with "
      "--load-session";
  if (place.empty()) return Error(StatusCode::kInvalidArgument, "{}", kWays);
  return Error(StatusCode::kInvalidArgument, "{}: the prompt is empty; {}", place, kWays);
}

StatusOr<Request> MakeRequest(const RunVerbOptions& options, const Workspace& workspace,
                              const Session& session, const std::string& prompt) {
  const int64_t n_least = workspace.tokenizer().MinTokens(prompt);
  if (n_least > workspace.context_tokens()) {  // found without tokenising it
    return Error(StatusCode::kInvalidArgument,
                 "a prompt of {} bytes has at least {} tokens, but the context is {}; shorten it",
                 prompt.size(), n_least, workspace.context_tokens());
  }
  Request request;
  if (options.load_session.empty()) {
    KVL_ASSIGN_OR_RETURN(request.prompt,
                         workspace.tokenizer().TryTokenize(prompt, /*add_bos=*/true));
    KVL_ASSIGN_OR_RETURN(const SamplingParams of_model, DefaultSampling(workspace.options().model));
    KVL_ASSIGN_OR_RETURN(request.sampling, options.generation.CheckedOver(of_model));
  } else {
    KVL_ASSIGN_OR_RETURN(request.prompt, TokenizeFollowing(workspace.tokenizer(), prompt));
    KVL_ASSIGN_OR_RETURN(request.sampling, options.generation.CheckedOver(session.sampling));
  }
  request.rate = options.rate;
  request.drafter = MakeDrafter(options.generation.draft());
  if (!options.ignore_eos) request.stop_ids = workspace.config().eos_ids;
  const int64_t n_given = std::ssize(session.tokens) + std::ssize(request.prompt);
  const int64_t n_left = workspace.context_tokens() - n_given;
  const bool goes_to_the_end = options.max_tokens == kUntilTheEnd;
  if (goes_to_the_end ? n_left < 1 : n_left < options.max_tokens) {
    return Error(StatusCode::kInvalidArgument,
                 "the prompt has {} tokens and -n asks for {} more, but the context is {}; shorten "
                 "one of them",
                 n_given, goes_to_the_end ? 1 : options.max_tokens, workspace.context_tokens());
  }
  request.max_tokens = goes_to_the_end ? static_cast<int>(n_left) : options.max_tokens;
  return request;
}

// Runs the request alone; unless the output is JSON, prompt and text go to standard output as they
// come.
Status Generate(const RunVerbOptions& options, const Workspace& workspace, Engine* engine,
                Request request, Session session, const std::string& prompt, Generated* generated) {
  TextStream stream(&workspace.tokenizer(), options.generation.stops);
  if (request.prompt.empty()) stream.ContinueAfter(session.tokens);
  const bool prints = !options.model.json;
  const auto emit = [&](const std::string& piece) {
    generated->text += piece;
    if (prints) {
      fmt::print("{}", piece);
      std::fflush(stdout);
    }
  };
  const auto on_token = [&](Engine::RequestId, const GeneratedToken& token) {
    emit(stream.Push(token.id));
    if (stream.stopped()) return FinishReason::kStop;
    return !InterruptGuard::IsInterrupted() && std::ferror(stdout) == 0 ? FinishReason::kNone
                                                                        : FinishReason::kCancelled;
  };
  const auto on_finish = [&](Engine::RequestId id, const RequestOutcome& outcome) {
    generated->outcome = outcome;
    if (!options.save_session.empty()) generated->session = engine->TakeSession(id);
  };
  generated->n_restored = static_cast<int>(session.tokens.size());
  generated->n_prompt = static_cast<int>(request.prompt.size());
  KVL_RETURN_IF_ERROR(
      engine->Submit(std::move(request), on_token, on_finish, std::move(session)).status());
  if (prints) fmt::print("{}", prompt);
  const Status ran = engine->RunUntilIdle();
  if (ran.ok()) emit(stream.Finish());
  if (prints) fmt::print("\n");  // an error, too, has a line of its own
  return ran;
}

Status RunOn(const RunVerbOptions& options, const std::string& prompt, Workspace* workspace,
             const SpecModel& spec_model) {
  KVL_ASSIGN_OR_RETURN(const std::unique_ptr<PrefixArchive> archive,
                       OpenArchive(options.prefixes, NotePrefixTrouble));
  BlockPool pool(workspace->kv_budget_bytes(), &spec_model.model->machine().memory());
  SequencePlace place = {{}, &spec_model.model->layout(), workspace->context_tokens()};
  if (options.rate.has_value()) {
    KVL_ASSIGN_OR_RETURN(place.layout, spec_model.model->LayoutAt(*options.rate));
  }
  if (!options.load_session.empty() || !options.save_session.empty() || archive != nullptr) {
    KVL_ASSIGN_OR_RETURN(place.identity, IdentityOf(workspace, spec_model));
  }
  Session session;
  if (!options.load_session.empty()) {
    KVL_ASSIGN_OR_RETURN(
        session, LoadSession(options.load_session, place, workspace->config().vocab_size, &pool));
  }
  KVL_ASSIGN_OR_RETURN(Request request, MakeRequest(options, *workspace, session, prompt));
  WarnOfLoss(workspace, {&spec_model, 1});  // of what will run, not of an error
  const InterruptGuard guard;               // what was generated until then is printed and saved
  EngineOptions engine_options;
  if (archive != nullptr) {
    engine_options.prefix_bytes = pool.usage().budget_bytes / 2;
    engine_options.archive = archive.get();
    engine_options.identities = {place.identity};
  }
  engine_options.is_interrupted = [] { return InterruptGuard::IsInterrupted(); };
  Engine engine({spec_model.model.get()}, &pool, engine_options);
  Generated generated;
  KVL_RETURN_IF_ERROR(Generate(options, *workspace, &engine, std::move(request), std::move(session),
                               prompt, &generated));
  // An interrupt before the prompt was read leaves nothing that could go on.
  if (!options.save_session.empty() && generated.session.cache != nullptr) {
    KVL_RETURN_IF_ERROR(SaveSession(generated.session, place.identity, options.save_session));
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return Error(StatusCode::kResourceExhausted, "standard output cannot be written");
  }
  Report(spec_model, generated, options.generation.draft(), options.model.json);
  return OkStatus();
}

Status Run(const RunVerbOptions& options) {
  if (options.model.kv.size() > 1) {
    return Error(StatusCode::kInvalidArgument, "run takes one --kv; kvlathe compare takes several");
  }
  // What needs no model is refused before one is loaded, and what cannot be written before it is
  // there to write.
  KVL_RETURN_IF_ERROR(options.generation.Check());
  KVL_ASSIGN_OR_RETURN(const std::string prompt, PromptText(options));
  if (!options.save_session.empty()) {
    KVL_RETURN_IF_ERROR(AtomicFile::Create(options.save_session).status());
  }
  KVL_ASSIGN_OR_RETURN(auto workspace, OpenWorkspace(options.model));
  if (options.load_session.empty()) {  // before a calibration, which takes long
    KVL_RETURN_IF_ERROR(MakeRequest(options, *workspace, {}, prompt).status());
  }
  KVL_ASSIGN_OR_RETURN(
      const SpecModel spec_model,
      workspace->MakeModel(options.model.kv.empty() ? "none" : options.model.kv.front()));
  KVL_RETURN_IF_ERROR(CheckDraft(options.generation.draft(), spec_model));
  return RunOn(options, prompt, workspace.get(), spec_model);
}

}  // namespace

void AddRunVerb(Verbs* verbs) {
  auto options = std::make_shared<RunVerbOptions>();
  CLI::App* verb =
      verbs->Add("run", "Generate text from a prompt",
                 "kvlathe run -m models/lathe-nano --kv 'lathe(ratio=4)' -p 'It was a dark' -n 64",
                 [options] { return Run(*options); });
  AddModelOptions(verb, &options->model);
  AddCacheOptions(verb, &options->model, "none");
  AddRankOptions(verb, verbs, &options->model, [options] { return OpenWorkspace(options->model); });
  verb->add_option("-p,--prompt", options->prompt, "prompt text");
  verb->add_option("-f,--file", options->prompt_file, "prompt from a file; -: from standard input")
      ->excludes("--prompt");
  AddMaxTokensOption(verb, &options->max_tokens,
                     "tokens to generate; -1: until the text or the context ends");
  AddGenerationOptions(verb, &options->generation);
  verb->add_option("--rate", options->rate,
                   "share of K and V elements removed for this text, with resident=full in --kv");
  verb->add_flag("--ignore-eos", options->ignore_eos, "go on after the end of sequence");
  verb->add_option("--save-session", options->save_session,
                   "keep the sequence in this file, to go on later");
  verb->add_option("--load-session", options->load_session,
                   "go on from such a file, with the prompt behind it if there is one");
  AddPrefixOptions(verb, &options->prefixes);
}

}  // namespace kvlathe
