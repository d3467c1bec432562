#include "kvlathe/inspect_merging.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "io/files.h"
#include "kvlathe/heat_map.h"

namespace kvlathe {
namespace {

// The last part of each path, and the one before it where that would not tell them apart: of
// RUN/ramp/cr-4 and RUN/cr-4 "ramp/cr-4" and "RUN/cr-4".
std::vector<std::string> NamesOf(const std::vector<std::string>& models) {
  std::vector<std::string> names, longer;
  for (const std::string& model : models) {
    std::filesystem::path path = std::filesystem::absolute(model).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();  // it ended with a slash
    names.push_back(path.filename().string());
    longer.push_back((path.parent_path().filename() / path.filename()).string());
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (std::ranges::count(names, names[i]) == 1) longer[i] = names[i];
  }
  return longer;
}

// Pieces of the text as long as the context and one behind the other, or all of a shorter text; BOS
// stands in front of each where the model has one.
StatusOr<std::vector<std::vector<int32_t>>> CutTexts(const Workspace& workspace,
                                                     const MergingOptions& options) {
  KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, workspace.TokenizeFile(options.text));
  if (ids.empty()) {
    return Error(StatusCode::kInvalidArgument, "{} holds no text", options.text);
  }
  const std::optional<int32_t> bos = workspace.leading_bos();
  const size_t n_of_text = std::min<size_t>(
      ids.size(), static_cast<size_t>(workspace.window_tokens()) - (bos.has_value() ? 1 : 0));
  std::vector<std::vector<int32_t>> texts;
  for (size_t begin = 0; begin + n_of_text <= ids.size() && std::ssize(texts) < options.n_texts;
       begin += n_of_text) {
    std::vector<int32_t>& text = texts.emplace_back();
    if (bos.has_value()) text.push_back(*bos);
    text.insert(text.end(), ids.begin() + static_cast<int64_t>(begin),
                ids.begin() + static_cast<int64_t>(begin + n_of_text));
  }
  return texts;
}

StatusOr<ModelMerging> Measure(Workspace* workspace, Model* model, const MergingOptions& options) {
  KVL_ASSIGN_OR_RETURN(const auto texts, CutTexts(*workspace, options));
  ModelMerging merging;
  KVL_ASSIGN_OR_RETURN(merging.texts, ReadMergedTexts(model, texts, workspace->kv_budget_bytes(),
                                                      workspace->progress()));
  return merging;
}

// A model from before the inspected one.
StatusOr<ModelMerging> MeasureEarlier(const Workspace& workspace, const std::string& path,
                                      const MergingOptions& options) {
  OpenOptions open_options = workspace.options();
  open_options.model = path;
  open_options.device = {};  // a GPU has the weights and caches of the other one already
  open_options.device_bytes = 0;
  KVL_ASSIGN_OR_RETURN(const auto earlier, Workspace::Open(open_options));
  const ModelConfig &a = earlier->config(), &b = workspace.config();
  if (a.n_layers != b.n_layers || a.n_kv_heads != b.n_kv_heads) {
    return Error(StatusCode::kInvalidArgument,
                 "--along: {} has {} layers of {} KV heads, {} has {} of {}", path, a.n_layers,
                 a.n_kv_heads, workspace.options().model, b.n_layers, b.n_kv_heads);
  }
  KVL_ASSIGN_OR_RETURN(const SpecModel spec_model,
                       earlier->MakeModel(open_options.kv.empty() ? "dmc" : open_options.kv[0]));
  return Measure(earlier.get(), spec_model.model.get(), options);
}

StatusOr<int> ParseHead(const std::string& text, const ModelConfig& config) {
  int layer = -1, head = -1, n_read = 0;
  const bool is_pair = std::sscanf(text.c_str(), "%d,%d%n", &layer, &head, &n_read) == 2 &&
                       n_read == static_cast<int>(text.size());
  if (!is_pair || layer < 0 || layer >= config.n_layers || head < 0 || head >= config.n_kv_heads) {
    return Error(StatusCode::kInvalidArgument,
                 "--head is '{}'; expected LAYER,KV_HEAD below {},{}, such as 0,0", text,
                 config.n_layers, config.n_kv_heads);
  }
  return layer * config.n_kv_heads + head;
}

// The text of each token of the first text, BOS included.
StatusOr<std::vector<std::string>> PiecesOf(const Workspace& workspace,
                                            const MergingOptions& options) {
  KVL_ASSIGN_OR_RETURN(const auto texts, CutTexts(workspace, options));
  const std::vector<int32_t>& ids = texts.front();
  StreamingDetokenizer detokenizer(&workspace.tokenizer());
  std::vector<std::string> pieces;
  const size_t n_bos = workspace.leading_bos().has_value() ? 1 : 0;  // no part of the text
  if (n_bos > 0) pieces.push_back(workspace.tokenizer().TokenBytes(ids[0], /*keep_special=*/true));
  for (size_t i = n_bos; i < ids.size(); ++i) pieces.push_back(detokenizer.Push(ids[i]));
  return pieces;
}

Status WriteFigures(const std::vector<Figure>& figures, const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return Error(StatusCode::kInvalidArgument, "--figures: {} cannot be made: {}", directory,
                 error.message());
  }
  for (const Figure& figure : figures) {
    KVL_RETURN_IF_ERROR(WriteFileAtomically(
        (std::filesystem::path(directory) / figure.file_name).string(), figure.svg));
  }
  return OkStatus();
}

}  // namespace

void AddMergingOptions(CLI::App* verb, MergingOptions* options) {
  CLI::Option* text = verb->add_option(
      "--merging", options->text,
      "text on which to measure what the cache merges (dmc, pool): compression by head, by length, "
      "and by position");
  verb->add_option("--merging-texts", options->n_texts,
                   "of the text, at most so many pieces as long as the context (-c, or up to 2048)")
      ->needs(text)
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  verb->add_option("--figures", options->figures, "directory that gets them as SVG")->needs(text);
  verb->add_option("--along", options->along,
                   "a model from earlier in the same training, for the figures; repeats, in order")
      ->needs(text);
  verb->add_option("--head", options->head,
                   "LAYER,KV_HEAD whose entries are shown in the text (default: the one nearest to "
                   "the mean)")
      ->needs(text);
}

StatusOr<MergingFindings> InspectMerging(Workspace* workspace, const SpecModel& spec_model,
                                         const MergingOptions& options) {
  MergingFindings findings;
  std::optional<int> head;
  if (!options.head.empty()) {
    KVL_ASSIGN_OR_RETURN(head, ParseHead(options.head, workspace->config()));
  }
  KVL_ASSIGN_OR_RETURN(ModelMerging last, Measure(workspace, spec_model.model.get(), options));
  for (const std::string& path : options.along) {
    KVL_ASSIGN_OR_RETURN(ModelMerging earlier, MeasureEarlier(*workspace, path, options));
    findings.models.push_back(std::move(earlier));
  }
  findings.head = head.value_or(TypicalHead(last));
  findings.models.push_back(std::move(last));
  std::vector<std::string> paths = options.along;
  paths.push_back(workspace->options().model);
  const std::vector<std::string> names = NamesOf(paths);
  for (size_t i = 0; i < names.size(); ++i) findings.models[i].name = names[i];
  if (options.figures.empty()) return findings;
  SegmentedHead segments{.head = findings.head, .pieces = {}};
  KVL_ASSIGN_OR_RETURN(segments.pieces, PiecesOf(*workspace, options));
  KVL_RETURN_IF_ERROR(WriteFigures(DrawMerging(findings.models, segments), options.figures));
  return findings;
}

nlohmann::ordered_json MergingFindingsJson(const MergingFindings& findings) {
  nlohmann::ordered_json json = MergingJson(findings.models.back());
  json["segments"] = SegmentsJson(findings.models.back(), findings.head);
  nlohmann::ordered_json along = nlohmann::ordered_json::array();
  for (const ModelMerging& model : std::span(findings.models).first(findings.models.size() - 1)) {
    along.push_back({{"model", model.name}});
    along.back().update(MergingJson(model));
  }
  json["along"] = along;
  return json;
}

void PrintMerging(const MergingFindings& findings) {
  for (const ModelMerging& model : findings.models) {
    const MergedText& shape = model.texts.front();
    const std::vector<LengthCompression> lengths = CompressionByLength(model.texts);
    fmt::print("{}: {} x {} tokens, {:.2f} positions per entry\n", model.name, model.texts.size(),
               shape.n_tokens, lengths.back().all);
    const HeatMap map{"compression", CompressionByHead(model.texts), 2};
    fmt::print("{}", RenderHeatMaps({&map, 1}, shape.n_layers, shape.n_kv_heads, StyleOfOutput()));
    fmt::print("{:>8} {:>12} {:>12} {:>12}\n", "tokens", "compression", "least head", "most head");
    for (const LengthCompression& length : lengths) {
      fmt::print("{:>8} {:>12.2f} {:>12.2f} {:>12.2f}\n", length.n_tokens, length.all, length.least,
                 length.most);
    }
  }
}

}  // namespace kvlathe
