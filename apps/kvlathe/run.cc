// kvlathe run: generate text, streamed.
#include <fmt/format.h>

#include <csignal>

#include "engine/engine.h"
#include "engine/text_stream.h"
#include "generation_options.h"
#include "io/files.h"
#include "workspace.h"

namespace kvlathe {
namespace {

struct RunOptions {
  ModelOptions model;
  std::string prompt;
  std::string prompt_file;
  int max_tokens = 128;
  bool ignore_eos = false;
  GenerationOptions generation;
};

volatile std::sig_atomic_t interrupted = 0;

void Report(const Workspace& workspace, const SpecModel& spec_model, int n_prompt,
            const RequestOutcome& outcome, const std::string& text) {
  const CacheLayout& layout = spec_model.model->layout();
  const int n_generated = static_cast<int>(outcome.tokens.size());
  const double decode_tok_per_s = outcome.decode_seconds > 0 && n_generated > 1
                                      ? (n_generated - 1) / outcome.decode_seconds
                                      : 0;
  const double fraction = static_cast<double>(outcome.kv_bytes.total()) /
                          static_cast<double>(ReferenceBytes(layout, outcome.n_cached_tokens));
  if (workspace.options().json) {
    const nlohmann::ordered_json json = {{"kv", spec_model.spec.text()},
                                         {"kv_resolved", spec_model.spec.ToString()},
                                         {"text", text},
                                         {"ids", outcome.tokens},
                                         {"prompt_tokens", n_prompt},
                                         {"generated_tokens", n_generated},
                                         {"finish_reason", NameOf(outcome.finish_reason)},
                                         {"ttft_ms", outcome.ttft_ms},
                                         {"decode_tok_per_s", decode_tok_per_s},
                                         {"kv_bytes", outcome.kv_bytes.total()},
                                         {"kv_fraction", fraction}};
    fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  fmt::print(
      stderr,
      "\n{} prompt tokens, {} generated; TTFT {:.1f} ms, {:.1f} tokens/s; KV {} bytes, {:.2f}% of "
      "the 16-bit cache\n",
      n_prompt, n_generated, outcome.ttft_ms, decode_tok_per_s, outcome.kv_bytes.total(),
      100 * fraction);
}

StatusOr<std::string> PromptText(const RunOptions& options) {
  if (!options.prompt_file.empty()) return ReadTextFile(options.prompt_file);
  if (options.prompt.empty()) {
    return Error(StatusCode::kInvalidArgument, "give a prompt with -p TEXT or -f FILE");
  }
  return options.prompt;
}

StatusOr<Request> MakeRequest(const RunOptions& options, const SamplingParams& sampling,
                              const Workspace& workspace, const std::string& prompt) {
  Request request;
  request.prompt = workspace.tokenizer().Tokenize(prompt, /*add_bos=*/true);
  request.max_tokens = options.max_tokens;
  request.sampling = sampling;
  if (!options.ignore_eos) request.stop_ids = workspace.config().eos_ids;
  const int n_prompt = static_cast<int>(request.prompt.size());
  if (n_prompt + options.max_tokens > workspace.context_tokens()) {
    return Error(
        StatusCode::kInvalidArgument,
        "the prompt has {} tokens and -n asks for {} more, but the context is {}; shorten one of "
        "them",
        n_prompt, options.max_tokens, workspace.context_tokens());
  }
  return request;
}

struct Generated {
  RequestOutcome outcome;
  std::string text;
};

// Runs the request alone; unless the output is JSON, prompt and text go to standard output as they
// come.
StatusOr<Generated> Generate(const RunOptions& options, const Workspace& workspace, Model* model,
                             Request request, const std::string& prompt) {
  BlockPool pool(workspace.kv_budget_bytes());
  Engine engine(model, &pool, {});
  TextStream stream(&workspace.tokenizer(), options.generation.stops);
  Generated generated;
  const bool prints = !options.model.json;
  const auto emit = [&](const std::string& piece) {
    generated.text += piece;
    if (prints) {
      fmt::print("{}", piece);
      std::fflush(stdout);
    }
  };
  std::signal(SIGINT, [](int) { interrupted = 1; });
  const auto on_token = [&](Engine::RequestId, int32_t id) {
    emit(stream.Push(id));
    if (stream.stopped()) return FinishReason::kStop;
    return interrupted == 0 && std::ferror(stdout) == 0 ? FinishReason::kNone
                                                        : FinishReason::kCancelled;
  };
  const auto on_finish = [&](Engine::RequestId, const RequestOutcome& o) { generated.outcome = o; };
  KVL_RETURN_IF_ERROR(engine.Submit(std::move(request), on_token, on_finish).status());
  if (prints) fmt::print("{}", prompt);
  KVL_RETURN_IF_ERROR(engine.RunUntilIdle());
  emit(stream.Finish());
  if (prints) fmt::print("\n");
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return Error(StatusCode::kResourceExhausted, "standard output cannot be written");
  }
  return generated;
}

Status Run(const RunOptions& options) {
  if (options.model.kv.size() > 1) {
    return Error(StatusCode::kInvalidArgument, "run takes one --kv; kvlathe compare takes several");
  }
  KVL_ASSIGN_OR_RETURN(const SamplingParams sampling, options.generation.Checked());
  KVL_ASSIGN_OR_RETURN(const std::string prompt, PromptText(options));
  KVL_ASSIGN_OR_RETURN(auto workspace, Workspace::Open(options.model));
  KVL_ASSIGN_OR_RETURN(
      const SpecModel spec_model,
      workspace->MakeModel(options.model.kv.empty() ? "none" : options.model.kv.front()));
  KVL_ASSIGN_OR_RETURN(Request request, MakeRequest(options, sampling, *workspace, prompt));
  const int n_prompt = static_cast<int>(request.prompt.size());
  KVL_ASSIGN_OR_RETURN(
      const Generated generated,
      Generate(options, *workspace, spec_model.model.get(), std::move(request), prompt));
  Report(*workspace, spec_model, n_prompt, generated.outcome, generated.text);
  return OkStatus();
}

}  // namespace

void AddRunVerb(Verbs* verbs) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* verb =
      verbs->Add("run", "Generate text from a prompt",
                 "kvlathe run -m models/lathe-nano --kv 'fdc(rate=0.5)' -p 'It was a dark' -n 64",
                 [options] { return Run(*options); });
  AddModelOptions(verb, &options->model);
  AddCacheOptions(verb, &options->model, "none");
  verb->add_option("-p,--prompt", options->prompt, "prompt text");
  verb->add_option("-f,--file", options->prompt_file, "prompt from a file")->excludes("--prompt");
  verb->add_option("-n,--max-tokens", options->max_tokens, "tokens to generate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  AddGenerationOptions(verb, &options->generation);
  verb->add_flag("--ignore-eos", options->ignore_eos, "go on after the end of sequence");
}

}  // namespace kvlathe
