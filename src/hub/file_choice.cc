#include "hub/file_choice.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/units.h"

namespace kvlathe {
namespace {

constexpr std::string_view kPreferred = "Q4_K_M";
constexpr std::string_view kIndex = "model.safetensors.index.json";

// What a model directory has besides weights, where it is there.
constexpr std::string_view kSmallFiles[] = {"added_tokens.json",
                                            "chat_template.jinja",
                                            "chat_template.json",
                                            "config.json",
                                            "merges.txt",
                                            "generation_config.json",
                                            "tokenizer.json",
                                            "tokenizer.model",
                                            "special_tokens_map.json",
                                            "vocab.json",
                                            "tokenizer_config.json",
                                            "tekken.json"};

// A model of one file, or of parts NAME-00001-of-00003.gguf and so on.
struct GgufModel {
  std::string label;  // the first file
  std::vector<std::string> paths;
  int n_parts = 1;
  int64_t n_bytes = 0;  // -1: unknown
};

struct PartName {
  std::string stem;  // what stands before the number
  int part = 0, n_parts = 0;
};

// Of "DIR/NAME-00002-of-00003.gguf"; no parts for any other path.
PartName ParsePartName(const std::string& path) {
  constexpr std::string_view kShape = "-00002-of-00003.gguf";
  PartName name;
  if (path.size() <= kShape.size()) return name;
  const std::string_view end = std::string_view(path).substr(path.size() - kShape.size());
  const bool has_shape = end[0] == '-' && end.substr(6, 4) == "-of-" && end.ends_with(".gguf");
  if (!has_shape || !absl::SimpleAtoi(std::string(end.substr(1, 5)), &name.part) ||
      !absl::SimpleAtoi(std::string(end.substr(10, 5)), &name.n_parts)) {
    return {};
  }
  name.stem = path.substr(0, path.size() - kShape.size());
  return name;
}

std::string_view FileNameOf(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

// Parts of models that are no language models, and what quantizers measured.
bool IsLanguageModel(const std::string& path) {
  const std::string name = absl::AsciiStrToLower(std::string(FileNameOf(path)));
  return name.ends_with(".gguf") && name.find("mmproj") == std::string::npos &&
         name.find("imatrix") == std::string::npos;
}

std::vector<GgufModel> GgufModelsOf(std::span<const HubFile> files) {
  std::map<std::string, GgufModel> models;  // by the name without the number of a part
  for (const HubFile& file : files) {
    if (!IsLanguageModel(file.path)) continue;
    const PartName part = ParsePartName(file.path);
    const bool is_part = part.n_parts > 0;
    GgufModel& model = models[is_part ? fmt::format("{}/{}", part.stem, part.n_parts) : file.path];
    if (model.paths.empty()) model.label = file.path;
    model.n_parts = is_part ? part.n_parts : 1;
    model.paths.push_back(file.path);
    const bool is_known = file.n_bytes >= 0 && model.n_bytes >= 0;
    model.n_bytes = is_known ? model.n_bytes + file.n_bytes : -1;
  }
  std::vector<GgufModel> found;
  for (auto& [key, model] : models) found.push_back(std::move(model));
  return found;
}

// Whether the path has the word between separators, in any case: "Q8_0" in "a.q8_0.gguf", but not
// "Q4_K" in "a-Q4_K_M.gguf".
bool HasWord(const std::string& path, std::string_view word) {
  constexpr std::string_view kBefore = "-._/", kBehind = "-./";
  const std::string text = absl::AsciiStrToLower(path);
  const std::string sought = absl::AsciiStrToLower(std::string(word));
  for (size_t at = text.find(sought); at != std::string::npos; at = text.find(sought, at + 1)) {
    const size_t end = at + sought.size();
    const bool begins = at == 0 || kBefore.find(text[at - 1]) != std::string_view::npos;
    const bool ends = end == text.size() || kBehind.find(text[end]) != std::string_view::npos;
    if (begins && ends) return true;
  }
  return false;
}

std::string Described(std::span<const GgufModel> models) {
  std::vector<std::string> lines;
  for (const GgufModel& model : models) {
    const std::string parts = model.n_parts > 1 ? fmt::format("{} files", model.n_parts) : "";
    const std::string size = model.n_bytes >= 0 ? FormatBytes(model.n_bytes) : "";
    const std::string facts = parts + (parts.empty() || size.empty() ? "" : ", ") + size;
    lines.push_back(facts.empty() ? model.label : fmt::format("{} ({})", model.label, facts));
  }
  return absl::StrJoin(lines, ", ");
}

StatusOr<FileChoice> Whole(const HubModel& model, GgufModel gguf) {
  if (static_cast<int>(gguf.paths.size()) != gguf.n_parts) {
    return Error(StatusCode::kNotFound, "{}: of the {} files that belong to {} only {} are there",
                 model.Text(), gguf.n_parts, gguf.label, gguf.paths.size());
  }
  for (int i = 0; i < gguf.n_parts && gguf.n_parts > 1; ++i) {
    if (ParsePartName(gguf.paths[i]).part == i + 1) continue;
    return Error(StatusCode::kNotFound, "{}: there is no part {} of the {} of {}", model.Text(),
                 i + 1, gguf.n_parts, gguf.label);
  }
  return FileChoice{.paths = std::move(gguf.paths)};
}

StatusOr<FileChoice> ChooseNamed(const HubModel& model, std::span<const HubFile> files) {
  std::vector<GgufModel> fitting;
  const std::vector<GgufModel> all = GgufModelsOf(files);
  for (const GgufModel& gguf : all) {
    if (std::count(gguf.paths.begin(), gguf.paths.end(), model.file) > 0) return Whole(model, gguf);
    if (HasWord(gguf.label, model.file)) fitting.push_back(gguf);
  }
  if (fitting.size() == 1) return Whole(model, std::move(fitting.front()));
  if (fitting.size() > 1) {
    return Error(StatusCode::kInvalidArgument, "{} means several files; name one of them whole: {}",
                 model.Text(), Described(fitting));
  }
  if (all.empty()) {
    return Error(StatusCode::kNotFound, "hf:{} has no GGUF files, so none of them can be named",
                 model.Repository());
  }
  return Error(StatusCode::kNotFound, "hf:{} has no GGUF file {}; it has {}", model.Repository(),
               Quoted(model.file), Described(all));
}

// Names of safetensors beside config.json.
StatusOr<FileChoice> ChooseDirectory(const HubModel& model, std::span<const HubFile> files) {
  FileChoice choice{.is_directory = true};
  std::vector<std::string> weights;
  bool has_config = false;
  for (const HubFile& file : files) {
    if (std::ranges::find(kSmallFiles, file.path) != std::ranges::end(kSmallFiles)) {
      choice.paths.push_back(file.path);
      has_config |= file.path == "config.json";
    }
    choice.weights_are_index |= file.path == kIndex;
    const bool is_beside = file.path.find('/') == std::string::npos;
    if (is_beside && file.path.ends_with(".safetensors")) weights.push_back(file.path);
  }
  if (choice.weights_are_index) {
    choice.weights = kIndex;
  } else if (std::ranges::find(weights, "model.safetensors") != weights.end()) {
    choice.weights = "model.safetensors";
  } else if (weights.size() == 1) {
    choice.weights = weights.front();
  }
  if (has_config && !choice.weights.empty()) return choice;
  return Error(StatusCode::kNotFound,
               "{} has neither a GGUF file nor safetensors with a config.json, so it is no model "
               "that kvlathe reads",
               model.Text());
}

}  // namespace

StatusOr<FileChoice> ChooseFiles(const HubModel& model, std::span<const HubFile> files) {
  if (!model.file.empty()) return ChooseNamed(model, files);
  std::vector<GgufModel> all = GgufModelsOf(files);
  if (all.empty()) return ChooseDirectory(model, files);
  if (all.size() == 1) return Whole(model, std::move(all.front()));
  std::vector<GgufModel> preferred;
  for (const GgufModel& gguf : all) {
    if (HasWord(gguf.label, kPreferred)) preferred.push_back(gguf);
  }
  if (preferred.size() != 1) {
    return Error(StatusCode::kInvalidArgument,
                 "{} has {} GGUF models; name one, as in {}:{}. There are {}", model.Text(),
                 all.size(), model.Text(), all.front().label, Described(all));
  }
  KVL_ASSIGN_OR_RETURN(FileChoice choice, Whole(model, std::move(preferred.front())));
  choice.note = fmt::format("{} has {} GGUF models, of which {} is taken; {}:FILE names another",
                            model.Text(), all.size(), choice.paths.front(), model.Text());
  return choice;
}

StatusOr<std::vector<std::string>> FilesOfIndex(const HubModel& model, std::string_view json) {
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  std::set<std::string> files;
  const auto weights = parsed.is_object() ? parsed.find("weight_map") : parsed.end();
  const bool has_map = parsed.is_object() && weights != parsed.end() && weights->is_object();
  for (const auto& file : has_map ? *weights : nlohmann::json::object()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (!IsSafePath(name) || name.find('/') != std::string::npos) {
      return Error(StatusCode::kDataLoss, "{}: {} names {}, which is no file beside it",
                   model.Text(), kIndex, Quoted(name));
    }
    files.insert(name);
  }
  if (files.empty()) {
    return Error(StatusCode::kDataLoss, "{}: {} names no files of weights", model.Text(), kIndex);
  }
  return std::vector<std::string>(files.begin(), files.end());
}

}  // namespace kvlathe
