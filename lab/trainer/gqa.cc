// kvlathe retrofit gqa: a model with fewer KV heads, whose weights are means, or with more, which
// are copies; what the first has lost is trained back by `retrofit pretrain --init`.
#include <fmt/format.h>

#include "training/corpus/corpus.h"
#include "training/retrofit/model_directory.h"
#include "training_run.h"
#include "verbs.h"

namespace kvlathe {
namespace {

struct GqaOptions {
  std::string model, out;
  int n_kv_heads = 0;
};

Status Convert(const GqaOptions& options) {
  KVL_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options.model));
  KVL_RETURN_IF_ERROR(CheckTrainable(config));
  if (config.model_type == "gpt2") {
    return Error(StatusCode::kUnimplemented, "{}: GPT-2 has as many KV heads as query heads",
                 options.model);
  }
  const int n = options.n_kv_heads, n_from = config.n_kv_heads;
  const bool divides = n < n_from ? n_from % n == 0 : n % n_from == 0 && config.n_heads % n == 0;
  if (!divides) {
    return Error(StatusCode::kInvalidArgument,
                 "--kv-heads {}: {} has {} KV heads for {} query heads; name a divisor of {}, or a "
                 "multiple of it that divides {}",
                 n, options.model, n_from, config.n_heads, n_from, config.n_heads);
  }
  Decoder decoder(config, /*seed=*/0, torch::kFloat, torch::kCPU);
  KVL_RETURN_IF_ERROR(LoadWeights(options.model, &decoder));
  KVL_RETURN_IF_ERROR(MakeOutputDirectory(options.out));
  KVL_RETURN_IF_ERROR(SaveDecoder(WithKvHeads(decoder, n), DType::kBf16, options.out));
  KVL_RETURN_IF_ERROR(CopyTokenizer(options.model, options.out));
  fmt::print("{}: {} KV heads in place of {}\n", options.out, n, n_from);
  return OkStatus();
}

}  // namespace

void AddGqaVerb(RetrofitVerbs* verbs) {
  auto options = std::make_shared<GqaOptions>();
  CLI::App* verb =
      verbs->Add("gqa", "Change the number of KV heads: means of W_K and W_V, or copies",
                 "kvlathe retrofit gqa -m run/base --kv-heads 1 --out run/gqa-4",
                 [options] { return Convert(*options); });
  verb->add_option("-m,--model", options->model, "model directory")->required();
  verb->add_option("--kv-heads", options->n_kv_heads, "KV heads of the new model")
      ->required()
      ->check(CLI::PositiveNumber);
  verb->add_option("--out", options->out, "directory for the new model")->required();
}

}  // namespace kvlathe
