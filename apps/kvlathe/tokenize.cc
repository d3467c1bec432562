// kvlathe tokenize: ids of the text on standard input, or with --decode the text of ids.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "kvlathe/open_workspace.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {
namespace {

struct TokenizeOptions {
  ModelOptions model;
  bool no_bos = false;
  bool decode = false;
};

// Numbers with white space or commas between them.
StatusOr<std::vector<int32_t>> ParseIdList(std::string_view text, int vocab_size) {
  constexpr std::string_view kBetween = " \t\r\n,";
  std::vector<int32_t> ids;
  for (size_t at = text.find_first_not_of(kBetween); at != std::string_view::npos;
       at = text.find_first_not_of(kBetween, at)) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    int32_t id = -1;
    const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, id);
    if (error != std::errc() || stop != text.data() + end || id < 0 || id >= vocab_size) {
      return Error(StatusCode::kInvalidArgument,
                   "--decode: '{}' at byte {} is not a token id; give numbers from 0 to {}",
                   text.substr(at, std::min<size_t>(end - at, 40)), at, vocab_size - 1);
    }
    ids.push_back(id);
    at = end;
  }
  return ids;
}

// Ids as {"ids":[...]}, as a JSON list, or as numbers with white space or commas between them.
StatusOr<std::vector<int32_t>> ParseIds(std::string_view text, int vocab_size) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return std::vector<int32_t>();
  if (text[first] == '{') {
    const nlohmann::json object = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object() || !object.contains("ids") || !object["ids"].is_array()) {
      return Error(StatusCode::kInvalidArgument,
                   "--decode: standard input is not an object with a list \"ids\"");
    }
    return ParseIds(object["ids"].dump(), vocab_size);
  }
  if (text[first] != '[') return ParseIdList(text, vocab_size);
  const size_t last = text.find_last_not_of(kSpace);
  if (text[last] != ']') {
    return Error(StatusCode::kInvalidArgument, "--decode: the list of ids has no closing bracket");
  }
  return ParseIdList(text.substr(first + 1, last - first - 1), vocab_size);
}

Status Tokenize(const TokenizeOptions& options) {
  KVL_ASSIGN_OR_RETURN(const std::string path, PathOfModel(options.model.model));
  KVL_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::Load(path, {options.model.pre}));
  KVL_ASSIGN_OR_RETURN(const std::string text, ReadStandardInput());
  if (options.decode) {
    KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ParseIds(text, tokenizer->vocab_size()));
    fmt::print("{}", tokenizer->Detokenize(ids));
    return OkStatus();
  }
  KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                       tokenizer->TryTokenize(text, !options.no_bos));
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
  verb->add_option("-m,--model", options->model.model,
                   "directory with the tokenizer's files, .gguf file, or name of a model")
      ->required();
  verb->add_option("--pre", options->model.pre,
                   "pre-tokenizer for vocab.json + merges.txt, or in place of a GGUF file's: gpt2, "
                   "llama3, qwen2, falcon, ...");
  verb->add_flag("--json", options->model.json, "{\"ids\":[...]}");
  verb->add_flag("--no-bos", options->no_bos, "without the BOS that the model puts first");
  verb->add_flag("--decode", options->decode, "ids on standard input, text out");
}

}  // namespace kvlathe
