// The program kvlathe-retrofit, which `kvlathe retrofit` runs. It has the verbs that read text
// (tokenizer, corpus, and the first half of fisher), and hands the others to kvlathe-trainer beside
// it, because libtorch and SentencePiece cannot be linked into one program
// (docs/decisions/trainer-is-a-program.md).
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "calibration/calibrate.h"
#include "calibration/fingerprint.h"
#include "io/files.h"
#include "io/model_place.h"
#include "tokenizer/tokenizer.h"
#include "training/corpus_building/corpus_builder.h"
#include "training/tokenizer_training/tokenizer_training.h"
#include "verbs.h"

namespace kvlathe {
namespace {

struct TokenizerVerbOptions {
  std::string recipe, data, out;
  TokenizerTrainingOptions training;
  int64_t source_megabytes = 12;
};

Status MakeTokenizer(const TokenizerVerbOptions& options) {
  KVL_ASSIGN_OR_RETURN(const CorpusRecipe recipe, LoadCorpusRecipe(options.recipe));
  const std::string texts = options.out + "/training-texts";
  KVL_ASSIGN_OR_RETURN(
      const std::vector<std::string> paths,
      WriteTrainingTexts(recipe, options.data, texts, options.source_megabytes << 20));
  const Status trained = TrainTokenizer(paths, options.training, options.out);
  std::error_code failed;
  std::filesystem::remove_all(texts, failed);
  KVL_RETURN_IF_ERROR(trained);
  fmt::print("{}: a tokenizer of {} tokens\n", options.out, options.training.vocab_size);
  return OkStatus();
}

struct CorpusVerbOptions {
  std::string recipe, data, tokenizer, out;
};

Status MakeCorpus(const CorpusVerbOptions& options) {
  KVL_ASSIGN_OR_RETURN(const CorpusRecipe recipe, LoadCorpusRecipe(options.recipe));
  return BuildCorpus(recipe, options.data, options.tokenizer, options.out,
                     [](const std::string& name, int64_t n_tokens, int64_t n_bytes) {
                       fmt::print("{:<16} {:>12} tokens {:>12} bytes {:.3f} bytes per token\n",
                                  name, n_tokens, n_bytes,
                                  static_cast<double>(n_bytes) / static_cast<double>(n_tokens));
                       std::fflush(stdout);
                     });
}

// Replaces this process by kvlathe-trainer.
Status RunTrainer(const std::vector<std::string>& arguments) {
  std::error_code failed;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", failed);
  const std::string program = (self.parent_path() / "kvlathe-trainer").string();
  if (!FileExists(program)) {
    return Error(
        StatusCode::kNotFound,
        "{}: not there, because libtorch was not found when it was built; install it (Debian: "
        "libtorch-dev), configure and build again",
        program);
  }
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  return Error(StatusCode::kInternal, "{}: cannot be run: {}", program, std::strerror(errno));
}

struct FisherVerbOptions {
  std::string model, text, pre, output;
  int64_t n_tokens = 32768;
  int n_threads = 0;
};

// Of equal length: gradients of sequences weigh alike.
StatusOr<TokenSequences> FisherSequences(const FisherVerbOptions& options,
                                         std::string* token_source) {
  constexpr int kSequenceTokens = 1024;  // as Palu's
  KVL_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options.model));
  KVL_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(options.model, {options.pre}));
  KVL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.text));
  KVL_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                       tokenizer->TryTokenize(text, /*add_bos=*/false, /*parse_special=*/false));
  if (std::ssize(ids) > options.n_tokens) ids.resize(options.n_tokens);
  *token_source = "text:" + TokenHash(ids);
  const std::vector<int32_t> bos = tokenizer->Tokenize("", /*add_bos=*/true);
  KVL_ASSIGN_OR_RETURN(TokenSequences sequences,
                       CutSequences(ids, std::min(config.max_seq_len, kSequenceTokens),
                                    bos.empty() ? -1 : bos.front()));
  if (sequences.back().size() < sequences.front().size()) sequences.pop_back();
  return sequences;
}

// Makes the numbers the standard input of the program that is run next.
Status PutOnStandardInput(const TokenSequences& sequences) {
  const int file = memfd_create("token ids", 0);
  bool is_there = file >= 0;
  for (const std::vector<int32_t>& ids : sequences) {
    const auto n_bytes = static_cast<ssize_t>(ids.size() * sizeof(int32_t));
    is_there = is_there && write(file, ids.data(), n_bytes) == n_bytes;
  }
  if (is_there && lseek(file, 0, SEEK_SET) == 0 && dup2(file, STDIN_FILENO) == STDIN_FILENO) {
    return OkStatus();
  }
  return Error(StatusCode::kInternal, "the token ids cannot be handed on: {}",
               std::strerror(errno));
}

Status MeasureFisherWeights(const FisherVerbOptions& options) {
  std::string token_source;
  KVL_ASSIGN_OR_RETURN(const TokenSequences sequences, FisherSequences(options, &token_source));
  KVL_RETURN_IF_ERROR(PutOnStandardInput(sequences));
  return RunTrainer(
      {"fisher", "-m", options.model, "-o",
       options.output.empty() ? BesideModel(options.model, "fisher.json") : options.output,
       "--sequence-tokens", fmt::format("{}", sequences.front().size()), "--token-source",
       token_source, "-t", fmt::format("{}", options.n_threads)});
}

void AddTokenizerVerb(RetrofitVerbs* verbs) {
  auto options = std::make_shared<TokenizerVerbOptions>();
  CLI::App* verb = verbs->Add(
      "tokenizer", "Train a SentencePiece BPE tokenizer on the texts of a recipe",
      "kvlathe retrofit tokenizer --recipe models/lathe-small/recipe-4.json --data texts --out tok",
      [options] { return MakeTokenizer(*options); });
  verb->add_option("--recipe", options->recipe, "recipe file with the sources")->required();
  verb->add_option("--data", options->data, "directory of the text files")->required();
  verb->add_option("--out", options->out, "directory for tokenizer.model and tokenizer.json")
      ->required();
  verb->add_option("--vocab-size", options->training.vocab_size, "tokens")->capture_default_str();
  verb->add_option("--source-megabytes", options->source_megabytes, "read of each source, MiB")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
}

void AddCorpusVerb(RetrofitVerbs* verbs) {
  auto options = std::make_shared<CorpusVerbOptions>();
  CLI::App* verb =
      verbs->Add("corpus", "Tokenise the sources of a recipe for training",
                 "kvlathe retrofit corpus --recipe models/lathe-small/recipe-4.json --data texts "
                 "--tokenizer tok --out corpus",
                 [options] { return MakeCorpus(*options); });
  verb->add_option("--recipe", options->recipe, "recipe file with the sources")->required();
  verb->add_option("--data", options->data, "directory of the text files")->required();
  verb->add_option("--tokenizer", options->tokenizer, "directory or .gguf file with a tokenizer")
      ->required();
  verb->add_option("--out", options->out, "directory for the corpus")->required();
}

void AddFisherOfTextVerb(RetrofitVerbs* verbs) {
  auto options = std::make_shared<FisherVerbOptions>();
  CLI::App* verb = verbs->Add(
      "fisher", "How much a text's loss hangs on each layer: palu(ranks=fisher)",
      "kvlathe retrofit fisher -m models/lathe-nano --text models/lathe-nano/calibration.txt",
      [options] { return MeasureFisherWeights(*options); });
  verb->add_option("-m,--model", options->model, "model directory or .gguf file")->required();
  verb->add_option("--text", options->text, "text to take gradients on")->required();
  verb->add_option("--tokens", options->n_tokens, "of the text, at most")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  verb->add_option("--pre", options->pre, "pre-tokenizer for vocab.json + merges.txt");
  verb->add_option("-o,--output", options->output,
                   "file to write (default: the model's fisher.json)");
  verb->add_option("-t,--threads", options->n_threads, "0: as many as processors")
      ->check(CLI::NonNegativeNumber);
}

// The options of these verbs are known to the trainer alone.
void AddTrainerVerb(RetrofitVerbs* verbs, const std::string& name, const std::string& summary) {
  CLI::App* verb = verbs->app->add_subcommand(name, summary);
  verb->prefix_command();
  verb->set_help_flag();
  verb->callback([verbs, verb, name] {
    std::vector<std::string> arguments = verb->remaining();
    arguments.insert(arguments.begin(), name);
    verbs->chosen = [arguments] { return RunTrainer(arguments); };
  });
}

void AddVerbs(RetrofitVerbs* verbs) {
  AddTokenizerVerb(verbs);
  AddCorpusVerb(verbs);
  AddFisherOfTextVerb(verbs);
  AddTrainerVerb(verbs, "pretrain",
                 "Train a model on a corpus; interrupted, the same command goes on");
  AddTrainerVerb(verbs, "gqa", "Change the number of KV heads: means of W_K and W_V, or copies");
  AddTrainerVerb(verbs, "dmc",
                 "Teach a model to merge entries of its cache; interrupted, the same command goes "
                 "on");
  AddTrainerVerb(verbs, "dms",
                 "Teach heads which entries of a cache may leave it; interrupted, the same command "
                 "goes on");
}

}  // namespace
}  // namespace kvlathe

int main(int argc, char** argv) { return kvlathe::RunVerbs(argc, argv, kvlathe::AddVerbs); }
