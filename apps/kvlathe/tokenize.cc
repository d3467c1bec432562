// kvlathe tokenize: ids of the text on standard input, or with --decode the text of ids.
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "options.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {
namespace {

struct TokenizeOptions {
  ModelOptions model;
  bool no_bos = false;
  bool decode = false;
};

StatusOr<std::string> ReadStandardInput() {
  std::string text;
  char buffer[1 << 16];
  ssize_t n;
  while ((n = read(STDIN_FILENO, buffer, sizeof(buffer))) > 0) text.append(buffer, n);
  if (n < 0) return Error(StatusCode::kInternal, "standard input cannot be read");
  return text;
}

// Ids as {"ids":[...]}, as a JSON list, or as numbers between anything that is not a digit.
StatusOr<std::vector<int32_t>> ParseIds(const std::string& text, int vocab_size) {
  std::vector<int32_t> ids;
  for (const char* p = text.data(); p != text.data() + text.size();) {
    if (*p < '0' || *p > '9') {
      ++p;
      continue;
    }
    int32_t id = -1;
    const auto [end, error] = std::from_chars(p, text.data() + text.size(), id);
    if (error != std::errc() || id >= vocab_size) {
      return Error(StatusCode::kInvalidArgument,
                   "token id at byte {} is not below the vocabulary of {}", p - text.data(),
                   vocab_size);
    }
    ids.push_back(id);
    p = end;
  }
  return ids;
}

Status Tokenize(const TokenizeOptions& options) {
  KVL_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::Load(options.model.model, {options.model.pre}));
  KVL_ASSIGN_OR_RETURN(const std::string text, ReadStandardInput());
  if (options.decode) {
    KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ParseIds(text, tokenizer->vocab_size()));
    fmt::print("{}", tokenizer->Detokenize(ids));
    return OkStatus();
  }
  const std::vector<int32_t> ids = tokenizer->Tokenize(text, !options.no_bos);
  if (options.model.json) {
    fmt::print("{}\n", nlohmann::json({{"ids", ids}}).dump());
  } else {
    fmt::print("{}\n", fmt::join(ids, " "));
  }
  return OkStatus();
}

}  // namespace

void AddTokenizeVerb(Verbs* verbs) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* verb = verbs->Add("tokenize", "Token ids of the text on standard input",
                              "echo -n 'Hello' | kvlathe tokenize -m models/lathe-nano --json",
                              [options] { return Tokenize(*options); });
  verb->add_option("-m,--model", options->model.model, "directory with the tokenizer's files")
      ->required();
  verb->add_option("--pre", options->model.pre, "pre-tokenizer for vocab.json + merges.txt")
      ->check(CLI::IsMember({"gpt2", "llama3", "qwen2", "falcon"}));
  verb->add_flag("--json", options->model.json, "{\"ids\":[...]}");
  verb->add_flag("--no-bos", options->no_bos, "without the BOS that the model puts first");
  verb->add_flag("--decode", options->decode, "ids on standard input, text out");
}

}  // namespace kvlathe
