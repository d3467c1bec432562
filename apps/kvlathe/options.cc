#include "kvlathe/options.h"

#include <unistd.h>

namespace kvlathe {

namespace {

std::vector<std::string> WeightTypeNames() {
  std::vector<std::string> names;
  for (const WeightType type : kWeightTypes) names.emplace_back(WeightTypeName(type));
  return names;
}

}  // namespace

std::optional<WeightType> ParseWeightType(const std::string& name) {
  for (const WeightType type : kWeightTypes) {
    if (WeightTypeName(type) == name) return type;
  }
  return std::nullopt;
}

void AddDeviceOption(CLI::App* app, std::string* device_text) {
  app->add_option("--device", *device_text,
                  "where the model runs: cpu, cuda, or cuda:N of several GPUs")
      ->check([](const std::string& text) -> std::string {
        const StatusOr<DeviceChoice> device = ParseDevice(text);
        return device.ok() ? std::string() : MessageOf(device.status());
      })
      ->type_name("DEVICE")
      ->capture_default_str();
}

void AddWeightOptions(CLI::App* app, ModelOptions* options) {
  app->add_option("-m,--model", options->model,
                  "Hugging Face model directory, .gguf file, a name such as smollm2, or "
                  "hf:OWNER/NAME[:FILE]")
      ->required();
  app->add_option("--dms", options->dms,
                  "what kvlathe retrofit dms learned, for dms in --kv (default: dms.safetensors in "
                  "the model's directory, NAME.dms.safetensors beside NAME.gguf)");
  AddDeviceOption(app, &options->device_text);
  app->add_option("--device-memory", options->device_memory,
                  "of a GPU's memory, that weights, steps and caches may take, e.g. 20GiB "
                  "(default: what is free)");
  app->add_option("-t,--threads", options->n_threads, "worker threads (default: all processors)")
      ->check(CLI::Range(1, 1024));
  app->add_flag("--pin", options->pin_threads, "bind each thread to a processor of its own");
  app->add_option("--dtype", options->dtype,
                  "compute and cache rows in bf16 or f32 (exact, slower)")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  app->add_option(
         "--weights", options->weights_name,
         "what weights become while they are loaded (default: blocks of a GGUF file stay as "
         "they are, all else becomes --dtype)")
      ->check(CLI::IsMember(WeightTypeNames()));
  app->add_flag("--weights-exact", options->exact_rows,
                "multiply weights in blocks with rows of 16 bits in place of 8 (slower)");
  app->add_flag("--attention-exact", options->exact_attention,
                "multiply codes of few bits with numbers of 16 bits in place of 7 or 8 (slower)");
  app->add_option("--pre", options->pre,
                  "pre-tokenizer for vocab.json + merges.txt, or in place of a GGUF file's: gpt2, "
                  "llama3, qwen2, falcon, ...");
}

void AddModelOptions(CLI::App* app, ModelOptions* options) {
  AddWeightOptions(app, options);
  app->add_flag("--json", options->json, "one JSON object on standard output");
}

void AddCacheOptions(CLI::App* app, ModelOptions* options, const std::string& default_kv) {
  app->add_option("--kv", options->kv,
                  "what the cache is; see kvlathe specs (default: " + default_kv + ")")
      ->take_all();
  app->add_option("--basis", options->basis,
                  "calibration file (default: the model's, or calibrate)");
  app->add_option("--profile", options->profile,
                  "what kvlathe tune wrote, for accuracy in --kv (default: the model's, or kept)");
  app->add_option(
      "--kv-memory", options->kv_memory,
      "KV cache budget, e.g. 2GiB (default: half of the free memory; on a GPU what weights "
      "and steps leave)");
  app->add_option("-c,--ctx-size", options->ctx_size, "context in tokens (default: the model's)")
      ->check(CLI::Range(1, 1 << 30));
  app->add_option("--schedule", options->schedule_name, "how attention is split over threads")
      ->check(CLI::IsMember({"static", "lpt", "balanced"}))
      ->capture_default_str();
  app->add_flag("--deterministic", options->deterministic,
                "identical bits whatever runs beside a sequence; slower prompts");
}

void AddRankOptions(CLI::App* app, Verbs* verbs, ModelOptions* options,
                    std::function<StatusOr<std::unique_ptr<Workspace>>()> open) {
  auto ranked = std::make_shared<RankedVerb>();
  ranked->model = options;
  ranked->open = std::move(open);
  app->add_option("--tp", ranked->grid.n_tensor_ranks,
                  "ranks that share the heads and columns of every layer: mpirun -n TP*PP kvlathe "
                  "...; -t and --kv-memory are of each rank")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--pp", ranked->grid.n_stages, "stages among which the layers are divided")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--rank-timeout", ranked->timeout_s,
                  "seconds after which a rank that does not answer ends the group")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app->parse_complete_callback([verbs, ranked] { verbs->ranked = ranked; });
}

void AddMaxTokensOption(CLI::App* app, int* max_tokens, const std::string& help) {
  app->add_option("-n,--max-tokens", *max_tokens, help)
      ->check([](const std::string& text) -> std::string {
        int64_t n = 0;
        if (!CLI::detail::lexical_cast(text, n)) return "'" + text + "' is not a whole number";
        if (n >= 1 && n <= (1 << 30)) return {};
        if (n == kUntilTheEnd) return {};
        return text +
               " tokens cannot be asked for; give at least 1, or -1: until the text or the context "
               "ends";
      })
      ->type_name("N")
      ->capture_default_str();
}

StatusOr<std::string> ReadStandardInput() {
  std::string text;
  char buffer[1 << 16];
  ssize_t n;
  while ((n = read(STDIN_FILENO, buffer, sizeof(buffer))) > 0) text.append(buffer, n);
  if (n < 0) return Error(StatusCode::kInternal, "standard input cannot be read");
  return text;
}

Schedule ParseSchedule(const std::string& name) {
  if (name == "static") return Schedule::kStatic;
  if (name == "lpt") return Schedule::kLpt;
  return Schedule::kBalanced;
}

CLI::App* Verbs::Add(const std::string& name, const std::string& summary,
                     const std::string& example, std::function<Status()> run) {
  CLI::App* verb = app->add_subcommand(name, summary);
  verb->footer("Example: " + example);
  verb->callback([this, run = std::move(run)] { chosen = run; });
  return verb;
}

}  // namespace kvlathe
