#include "kvlathe/bench_serve/serve_workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/files.h"
#include "runtime/shared_texts.h"

namespace kvlathe {
namespace {

constexpr double kUsualBytesPerToken = 4;  // of English text

LengthRange Even(int mean, double ratio) {
  LengthRange range;
  range.min = std::max(1, static_cast<int>(std::floor(mean * (1 - ratio))));
  range.max = std::max(range.min, static_cast<int>(std::ceil(mean * (1 + ratio))));
  range.mean = 0.5 * (range.min + range.max);
  range.is_uniform = true;
  return range;
}

StatusOr<PromptSource> TextSource(const BenchWorkloadOptions& o, bool takes_ids,
                                  const AskedServer& server, const std::string& model) {
  std::string path = o.text;
  if (path.empty()) {
    KVL_ASSIGN_OR_RETURN(path, SharedText("sample.txt"));
  }
  KVL_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path, int64_t{64} << 20));
  auto ids = TokenizeOnServer(server, model, text);
  const bool has_ids = ids.ok() && !ids->empty();
  if (has_ids && takes_ids) return PromptSource(TextTokens{*std::move(ids)});
  if (o.prompt_format == "ids") {
    return Error(StatusCode::kInvalidArgument, "--prompt-format ids: {}",
                 takes_ids ? MessageOf(ids.status()) : "chat takes texts only");
  }
  double bytes_per_token = o.bytes_per_token;
  if (bytes_per_token == 0 && has_ids) {
    bytes_per_token = static_cast<double>(text.size()) / static_cast<double>(ids->size());
  }
  if (bytes_per_token == 0) {
    bytes_per_token = kUsualBytesPerToken;
    fmt::print(
        stderr,
        "kvlathe: note: the server does not tokenize, so prompts are cut at {:g} bytes a token "
        "(--bytes-per-token)\n",
        bytes_per_token);
  }
  return PromptSource(PlainText{std::move(text), bytes_per_token});
}

StatusOr<PromptSource> SourceOf(const ServeBenchOptions& options, const AskedServer& server,
                                const std::string& model) {
  const BenchWorkloadOptions& o = options.workload;
  const bool takes_ids = !options.is_chat() && o.prompt_format != "text";
  if (o.dataset_name != "random" || !o.text.empty() || !takes_ids) {
    return TextSource(o, takes_ids, server, model);
  }
  if (o.vocab_size > 0) return PromptSource(RandomIds{o.vocab_size});
  KVL_ASSIGN_OR_RETURN(const int vocab_size, VocabSizeOfServer(server));
  return PromptSource(RandomIds{vocab_size});
}

StatusOr<BenchWorkload> WorkloadOfFile(const BenchWorkloadOptions& o) {
  if (o.dataset_path.empty()) {
    return Error(StatusCode::kInvalidArgument, "--dataset-name {} needs --dataset-path FILE",
                 o.dataset_name);
  }
  if (o.scale != 1 || o.fit_context > 0) {
    return Error(
        StatusCode::kInvalidArgument,
        "--scale and --fit-context are of drawn lengths; requests of a file are sent as they are");
  }
  KVL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(o.dataset_path));
  const double bytes = o.bytes_per_token > 0 ? o.bytes_per_token : kUsualBytesPerToken;
  BenchWorkload result;
  KVL_ASSIGN_OR_RETURN(result.workload,
                       MakeFileWorkload(text, o.dataset_path, o.output_len, bytes));
  result.description = {{"dataset_name", o.dataset_name}, {"dataset_path", o.dataset_path}};
  return result;
}

}  // namespace

StatusOr<BenchLengths> LengthsOf(const BenchWorkloadOptions& o) {
  const PaperWorkload* const paper = FindPaperWorkload(o.dataset_name);
  if (paper == nullptr && o.dataset_name != "random") {
    return Error(StatusCode::kInvalidArgument,
                 "--dataset-name {}: requests of a file have their own lengths", o.dataset_name);
  }
  if (o.fit_context > 0 && o.scale != 1) {
    return Error(StatusCode::kInvalidArgument, "give one of --scale and --fit-context");
  }
  BenchLengths lengths{Even(o.random_input_len, o.random_range_ratio),
                       Even(o.random_output_len, o.random_range_ratio), o.scale};
  if (paper != nullptr) {
    lengths.input = paper->input;
    lengths.output = paper->output;
  }
  if (o.fit_context > 0) lengths.scale = FactorToFit(lengths.input, lengths.output, o.fit_context);
  lengths.input = Scaled(lengths.input, lengths.scale);
  lengths.output = Scaled(lengths.output, lengths.scale);
  return lengths;
}

nlohmann::json ToJson(const BenchLengths& lengths, const std::string& dataset_name) {
  const auto range = [](const LengthRange& r) {
    return nlohmann::json{{"mean", r.mean}, {"min", r.min}, {"max", r.max}};
  };
  return {{"dataset_name", dataset_name},
          {"scale", lengths.scale},
          {"input_tokens", range(lengths.input)},
          {"output_tokens", range(lengths.output)}};
}

StatusOr<BenchWorkload> MakeBenchWorkload(const ServeBenchOptions& options,
                                          const AskedServer& server, const std::string& model,
                                          uint64_t seed) {
  const BenchWorkloadOptions& o = options.workload;
  if (FindPaperWorkload(o.dataset_name) == nullptr && o.dataset_name != "random") {
    return WorkloadOfFile(o);
  }
  KVL_ASSIGN_OR_RETURN(const BenchLengths lengths, LengthsOf(o));
  KVL_ASSIGN_OR_RETURN(PromptSource source, SourceOf(options, server, model));
  const char* const prompts = std::holds_alternative<PlainText>(source)    ? "text"
                              : std::holds_alternative<TextTokens>(source) ? "token ids of a text"
                                                                           : "random token ids";
  BenchWorkload result;
  result.scale = lengths.scale;
  KVL_ASSIGN_OR_RETURN(result.workload,
                       MakeDrawnWorkload(std::move(source), lengths.input, lengths.output, seed));
  result.description = ToJson(lengths, o.dataset_name);
  result.description["seed"] = seed;
  result.description["prompts"] = prompts;
  return result;
}

}  // namespace kvlathe
