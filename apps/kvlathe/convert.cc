// kvlathe convert: a GGUF file is written again with its weights in another type.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/threads.h"
#include "base/units.h"
#include "io/gguf/gguf_conversion.h"
#include "kvlathe/open_workspace.h"
#include "kvlathe/options.h"

namespace kvlathe {
namespace {

struct ConvertOptions {
  std::string from, to;
  std::string weights = "q4_k";
  int n_threads = 0;  // 0: all processors
  bool json = false;
};

// How many tensors, and their bytes in the new file.
struct TensorCount {
  int64_t n_tensors = 0;
  int64_t n_bytes = 0;

  void Add(const ConvertedTensor& tensor) {
    ++n_tensors;
    n_bytes += tensor.n_bytes();
  }
};

Status CheckPaths(const ConvertOptions& options) {
  if (std::filesystem::is_directory(options.from)) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: a directory; convert takes GGUF files: make one of a Hugging Face model with "
                 "llama.cpp's convert_hf_to_gguf.py",
                 options.from);
  }
  return OkStatus();
}

// A file whose pages are being read must not be replaced under its name.
Status CheckOutput(const GgufFile& file, const std::string& to) {
  for (const std::string& path : file.FilePaths()) {
    std::error_code ignored;  // what is not there yet is no file of the input
    if (std::filesystem::equivalent(path, to, ignored)) {
      return Error(StatusCode::kInvalidArgument,
                   "{}: the file that is read; give the new one another name", to);
    }
  }
  return OkStatus();
}

int64_t BytesOf(const GgufFile& file) {
  int64_t n_bytes = 0;
  for (const std::string& path : file.FilePaths()) {
    n_bytes += static_cast<int64_t>(std::filesystem::file_size(path));
  }
  return n_bytes;
}

std::string_view NameOf(GgmlType type) { return LayoutOf(type).name; }

// What did not become the type that was asked for, and why: one note for each.
void NoteOtherTypes(const std::vector<ConvertedTensor>& plan, GgmlType asked) {
  std::map<GgmlType, TensorCount> uneven, head;
  for (const ConvertedTensor& converted : plan) {
    if (converted.reason == ConversionReason::kUnevenRows) uneven[converted.type].Add(converted);
    if (converted.reason == ConversionReason::kEmbeddingOrHead) {
      head[converted.type].Add(converted);
    }
  }
  for (const auto& [type, count] : uneven) {
    PrintNote(
        Note::Kind::kNote,
        fmt::format("{} tensors have rows that are no whole blocks of {} and become {}: {}",
                    count.n_tensors, NameOf(asked), NameOf(type), FormatBytes(count.n_bytes)));
  }
  for (const auto& [type, count] : head) {
    PrintNote(Note::Kind::kNote, fmt::format("embedding and head are {}, not {}: {}", NameOf(type),
                                             NameOf(asked), FormatBytes(count.n_bytes)));
  }
}

Status Convert(ConvertOptions options) {
  KVL_ASSIGN_OR_RETURN(const GgmlType type, ConversionTypeOf(options.weights));
  KVL_ASSIGN_OR_RETURN(options.from, PathOfModel(options.from));
  KVL_RETURN_IF_ERROR(CheckPaths(options));
  KVL_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(options.from));
  KVL_RETURN_IF_ERROR(CheckOutput(file, options.to));
  KVL_ASSIGN_OR_RETURN(const auto plan, PlanConversion(file, type));
  NoteOtherTypes(plan, type);
  Stopwatch watch;
  ThreadPool threads(options.n_threads > 0 ? options.n_threads : AvailableProcessors());
  const Progress progress = TerminalProgress();
  KVL_ASSIGN_OR_RETURN(const int64_t n_bytes,
                       WriteConversion(file, plan, type, options.to, &threads,
                                       [&](double done) { progress("converting", done); }));
  const int64_t n_bytes_before = BytesOf(file);
  std::map<GgmlType, TensorCount> types;
  for (const ConvertedTensor& converted : plan) types[converted.type].Add(converted);
  if (options.json) {
    nlohmann::ordered_json json = {{"input", options.from},      {"output", options.to},
                                   {"weights", options.weights}, {"bytes_before", n_bytes_before},
                                   {"bytes_after", n_bytes},     {"seconds", watch.Seconds()}};
    for (const auto& [of, count] : types) {
      json["tensors"][NameOf(of)] = {{"count", count.n_tensors}, {"bytes", count.n_bytes}};
    }
    fmt::print("{}\n", json.dump());
    return OkStatus();
  }
  fmt::print("{}: {}, {:.1f}% of the {} of {}\n", options.to, FormatBytes(n_bytes),
             100.0 * static_cast<double>(n_bytes) / static_cast<double>(n_bytes_before),
             FormatBytes(n_bytes_before), options.from);
  for (const auto& [of, count] : types) {
    fmt::print("  {:<7} {:>5} tensors  {}\n", NameOf(of), count.n_tensors,
               FormatBytes(count.n_bytes));
  }
  return OkStatus();
}

}  // namespace

void AddConvertVerb(Verbs* verbs) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* verb = verbs->Add("convert", "A GGUF file again, with its weights in another type",
                              "kvlathe convert model.gguf model-q4_k.gguf --weights q4_k",
                              [options] { return Convert(*options); });
  verb->add_option("IN", options->from, "GGUF file, of several the first, or its name")->required();
  verb->add_option("OUT", options->to, "where the new file goes")->required();
  verb->add_option("--weights", options->weights,
                   fmt::format("type of the weights: {}", fmt::join(ConversionTypeNames(), ", ")))
      ->capture_default_str();
  verb->add_option("-t,--threads", options->n_threads, "worker threads (default: all processors)")
      ->check(CLI::Range(1, 1024));
  verb->add_flag("--json", options->json, "one JSON object on standard output");
}

}  // namespace kvlathe
