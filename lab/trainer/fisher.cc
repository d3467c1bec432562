// kvlathe retrofit fisher: what palu(ranks=fisher) shares ranks out by. Token ids come on standard
// input: the tokenizers are in the program that runs this one.
#include "training/retrofit/fisher.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "calibration/fingerprint.h"
#include "io/files.h"
#include "model/families/gguf/gguf_config.h"
#include "training/retrofit/model_directory.h"
#include "verbs.h"

namespace kvlathe {
namespace {

struct FisherOptions {
  std::string model, output, token_source;
  int sequence_tokens = 0;
  int threads = 0;
};

// int32 in the machine's order, whole sequences.
StatusOr<std::vector<std::vector<int64_t>>> ReadSequences(const FisherOptions& options,
                                                          int vocab_size) {
  std::vector<std::vector<int64_t>> sequences;
  std::vector<int32_t> ids(options.sequence_tokens);
  while (std::fread(ids.data(), sizeof(int32_t), ids.size(), stdin) == ids.size()) {
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size) {
        return Error(StatusCode::kInvalidArgument,
                     "standard input: token id {} is not below the vocabulary of {}", id,
                     vocab_size);
      }
    }
    sequences.emplace_back(ids.begin(), ids.end());
  }
  if (!sequences.empty()) return sequences;
  return Error(StatusCode::kInvalidArgument,
               "no sequence of {} token ids on standard input; run kvlathe retrofit fisher",
               options.sequence_tokens);
}

StatusOr<std::string> HashOf(const std::string& model) {
  if (FileExists(model)) {
    KVL_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model));
    KVL_ASSIGN_OR_RETURN(const nlohmann::json config, GgufConfigJson(file));
    return ModelHash(config.dump(), file);
  }
  KVL_ASSIGN_OR_RETURN(const SafetensorsReader reader, SafetensorsReader::OpenModel(model));
  KVL_ASSIGN_OR_RETURN(const std::string config_text, ReadTextFile(model + "/config.json"));
  return ModelHash(config_text, reader);
}

Status RunFisher(const FisherOptions& options) {
  const Stopwatch watch;
  if (options.threads > 0) at::set_num_threads(options.threads);
  KVL_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options.model));
  KVL_RETURN_IF_ERROR(CheckTrainable(config));
  KVL_ASSIGN_OR_RETURN(const auto sequences, ReadSequences(options, config.vocab_size));
  Decoder decoder(config, /*seed=*/0, torch::kFloat, torch::kCPU);
  KVL_RETURN_IF_ERROR(LoadWeights(options.model, &decoder));
  KVL_ASSIGN_OR_RETURN(FisherWeights weights, MeasureFisher(decoder, sequences));
  weights.token_source = options.token_source;
  KVL_ASSIGN_OR_RETURN(weights.model_hash, HashOf(options.model));
  KVL_RETURN_IF_ERROR(WriteFisherWeights(weights, options.output));
  fmt::print("{}: {} tokens in sequences of {} ({}), {:.1f} s\n", options.output, weights.n_tokens,
             options.sequence_tokens, weights.token_source, watch.Seconds());
  return OkStatus();
}

}  // namespace

void AddFisherVerb(RetrofitVerbs* verbs) {
  auto options = std::make_shared<FisherOptions>();
  CLI::App* verb = verbs->Add("fisher", "Fisher weights from token ids on standard input",
                              "kvlathe retrofit fisher -m models/lathe-nano --text some.txt",
                              [options] { return RunFisher(*options); });
  verb->add_option("-m,--model", options->model, "model directory or .gguf file")->required();
  verb->add_option("-o,--output", options->output, "file to write")->required();
  verb->add_option("--sequence-tokens", options->sequence_tokens, "token ids of each sequence")
      ->required()
      ->check(CLI::Range(2, 1 << 20));
  verb->add_option("--token-source", options->token_source, "kept in the file")->required();
  verb->add_option("-t,--threads", options->threads, "0: as many as processors")
      ->check(CLI::NonNegativeNumber);
}

}  // namespace kvlathe
