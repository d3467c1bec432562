// kvlathe inspect: what a model, a basis and a spec hold.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/bases/lathe_maps.h"
#include "analysis/bases/report.h"
#include "analysis/bases/similarity.h"
#include "base/units.h"
#include "evaluation/stored_error.h"
#include "io/files.h"
#include "io/model_place.h"
#include "kvlathe/heat_map.h"
#include "kvlathe/inspect_errors.h"
#include "kvlathe/inspect_merging.h"
#include "kvlathe/inspect_shards.h"
#include "kvlathe/open_workspace.h"
#include "runtime/calibration_run.h"
#include "runtime/measuring/cache_inspection.h"

namespace kvlathe {
namespace {

struct InspectOptions {
  ModelOptions model;
  std::string overlap_text;
  std::string error_text;
  std::string other_basis;  // --against: statistics
  MergingOptions merging;
  DivisionOptions division;
};

void PrintKinds(const std::vector<ByteKinds>& layers) {
  ByteKinds sum;
  const auto print = [](const std::string& name, const ByteKinds& kinds) {
    fmt::print("{:>5}", name);
    for (const auto& [unused, member] : kByteKinds) fmt::print(" {:>10}", kinds.*member);
    fmt::print(" {:>11}\n", kinds.total());
  };
  fmt::print("{:>5}", "layer");
  for (const auto& [name, unused] : kByteKinds) fmt::print(" {:>10}", name);
  fmt::print(" {:>11}\n", "bytes");
  for (size_t l = 0; l < layers.size(); ++l) {
    print(std::to_string(l), layers[l]);
    sum.Add(layers[l]);
  }
  print("all", sum);
}

// Overlap of the key subspaces from the workspace's statistics and from a text, at each head's half
// rank.
StatusOr<double> OverlapWithText(Workspace* workspace, const Spec& spec,
                                 const std::string& text_path) {
  BasisAnalyses& analyses = workspace->planner().analyses();
  KVL_ASSIGN_OR_RETURN(const BasisAnalysis* from_random, analyses.Of(spec));
  CalibrationRun run;
  run.text_path = text_path;
  run.gradients = BasisMethodOf(spec)->wants_gradients;
  KVL_ASSIGN_OR_RETURN(const CalibrationStatistics statistics, RunCalibration(workspace, run));
  KVL_ASSIGN_OR_RETURN(const BasisAnalysis from_text, analyses.From(spec, statistics));
  return MeanKeyOverlap(*from_random, from_text, workspace->config().head_dim / 2);
}

// The rotations of the workspace's statistics beside those of a file.
StatusOr<BasisSimilarity> SimilarityTo(Workspace* workspace, const SpecModel& spec_model,
                                       const std::string& path) {
  if (!spec_model.ranks.has_value()) {
    return Error(StatusCode::kInvalidArgument,
                 "--against compares rotations, and {} has none; give --kv zack or fdc",
                 spec_model.spec.ToString());
  }
  const ModelConfig& config = workspace->config();
  KVL_ASSIGN_OR_RETURN(const CalibrationStatistics statistics, ReadStatisticsOrMaps(path));
  KVL_RETURN_IF_ERROR(CheckStatisticsMatch(statistics, path, ShapeOf(config),
                                           workspace->model_hash(), config.DescribePositions()));
  if (statistics.maps_of.has_value()) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: maps for lathe alone, of which no rotations can be made; give statistics",
                 path);
  }
  BasisAnalyses& analyses = workspace->planner().analyses();
  KVL_ASSIGN_OR_RETURN(const BasisAnalysis* basis, analyses.Of(spec_model.spec));
  KVL_ASSIGN_OR_RETURN(const BasisAnalysis other, analyses.From(spec_model.spec, statistics));
  return CompareRotations(*basis, other, spec_model.ranks->ranks);
}

nlohmann::ordered_json SimilarityJson(const BasisSimilarity& similarity) {
  const auto side = [](const RotationSimilarity& of) {
    return nlohmann::ordered_json{{"kept", of.kept},
                                  {"lost", of.lost},
                                  {"overlap", of.overlap},
                                  {"element_difference", of.element_difference}};
  };
  return {{"qk", side(similarity.qk)}, {"v", side(similarity.v)}};
}

void PrintSimilarity(const std::string& path, const BasisSimilarity& similarity) {
  fmt::print("rotations beside those of {}, at the ranks of each head:\n", path);
  fmt::print("{:>4} {:>12} {:>10} {:>9} {:>20}\n", "", "energy kept", "lost over", "overlap",
             "elements differ by");
  for (const auto& [name, side] : {std::pair("QK", similarity.qk), std::pair("V", similarity.v)}) {
    fmt::print("{:>4} {:>12.5f} {:>10.3f} {:>9.3f} {:>20.4f}\n", name, side.kept, side.lost,
               side.overlap, side.element_difference);
  }
}

// Every eighth singular value: how fast they fall.
std::string SpectrumLine(const std::vector<double>& values) {
  std::string line;
  for (size_t i = 0; i < values.size(); i += std::max<size_t>(1, values.size() / 8)) {
    line += fmt::format(" {:.3g}", values[i]);
  }
  return line;
}

void PrintHeatMaps(const Workspace& workspace, const BasisAnalysis& analysis,
                   const RankAllocation& allocation) {
  HeatMap rank_k{"rank_k", {}}, rank_v{"rank_v", {}}, qk{"QK", {}, 2}, v{"V", {}, 2};
  // Joined heads are shown as each of the KV heads that they are.
  const auto n = static_cast<size_t>(HeadsPerMap(analysis.keys));
  for (size_t i = 0; i < allocation.ranks.size(); ++i) {
    rank_k.values.insert(rank_k.values.end(), n, StoredKeyChannels(allocation.ranks[i]));
    rank_v.values.insert(rank_v.values.end(), n, StoredValueChannels(allocation.ranks[i]));
    qk.values.insert(qk.values.end(), n, Concentration(analysis.SpectraOf(i).qk));
    v.values.insert(v.values.end(), n, Concentration(analysis.SpectraOf(i).v));
  }
  const ModelConfig& c = workspace.config();
  const HeatMap maps[] = {rank_k, rank_v, qk, v};
  fmt::print(
      "ranks, and of the sum of singular values of QK and of V the share in their largest "
      "quarter:\n{}\n",
      RenderHeatMaps(maps, c.n_layers, c.n_kv_heads, StyleOfOutput()));
  if (allocation.ranks[0].bits.middle.k == BitSplit{}) return;
  HeatMap bits_k{"bits K", {}, 2}, bits_v{"bits V", {}, 2};
  for (const HeadRanks& ranks : allocation.ranks) {
    const double width = analysis.shape.head_dim;
    bits_k.values.insert(bits_k.values.end(), n, ranks.bits.middle.k.bits_per_token() / width);
    bits_v.values.insert(bits_v.values.end(), n, ranks.bits.middle.v.bits_per_token() / width);
  }
  const HeatMap bit_maps[] = {bits_k, bits_v};
  fmt::print("bits of a sealed row over head_dim:\n{}\n",
             RenderHeatMaps(bit_maps, c.n_layers, c.n_kv_heads, StyleOfOutput()));
}

HeadVariation MeanVariation(const BasisAnalysis& analysis, const RankAllocation& allocation) {
  HeadVariation mean;
  const std::vector<HeadVariation> layers = VariationByLayer(analysis, allocation);
  const auto n = static_cast<double>(layers.size());
  for (const HeadVariation& layer : layers) {
    mean.largest_qk += layer.largest_qk / n;
    mean.largest_v += layer.largest_v / n;
    mean.rank_k += layer.rank_k / n;
    mean.rank_v += layer.rank_v / n;
  }
  return mean;
}

void PrintBasis(const Workspace& workspace, const BasisAnalysis& analysis,
                const RankAllocation& allocation) {
  const BasisReport report = ReportBasis(analysis, allocation);
  fmt::print(
      "removed {:.4f} of all elements (eta {:.5f}); mean rank_k {:.1f}, rank_v {:.1f} of {}\n",
      report.removal_rate, report.eta, report.mean_rank_k, report.mean_rank_v,
      analysis.shape.head_dim);
  fmt::print(
      "coefficient of variation of the largest singular value over heads: QK {:.3f}, V {:.3f}\n",
      report.cv_largest_qk, report.cv_largest_v);
  const HeadVariation variation = MeanVariation(analysis, allocation);
  fmt::print(
      "among the heads of a layer, mean over layers: QK {:.3f}, V {:.3f}; of rank_k {:.3f}, of "
      "rank_v {:.3f}\n\n",
      variation.largest_qk, variation.largest_v, variation.rank_k, variation.rank_v);
  PrintHeatMaps(workspace, analysis, allocation);
  fmt::print("{:>5} {:>7} {:>6} {:>6}  every eighth singular value of QK | of V\n", "layer",
             "KV head", "rank_k", "rank_v");
  const int n_heads = static_cast<int>(allocation.ranks.size()) / workspace.config().n_layers;
  for (int l = 0; l < workspace.config().n_layers; ++l) {
    for (int g = 0; g < n_heads; ++g) {
      const int i = l * n_heads + g;
      fmt::print("{:>5} {:>7} {:>6} {:>6} {} |{}\n", l, g, StoredKeyChannels(allocation.ranks[i]),
                 StoredValueChannels(allocation.ranks[i]), SpectrumLine(analysis.SpectraOf(i).qk),
                 SpectrumLine(analysis.SpectraOf(i).v));
    }
  }
}

// What is measured on texts, where a text was given.
struct TextFindings {
  std::string overlap_text;
  std::optional<double> overlap;
  std::optional<std::vector<LayerErrors>> errors;
  std::optional<MergingFindings> merging;
};

StatusOr<TextFindings> InspectTexts(Workspace* workspace, const SpecModel& spec_model,
                                    const InspectOptions& options, bool has_basis) {
  TextFindings findings{.overlap_text = options.overlap_text};
  const std::string own_text = BesideModel(workspace->options().model, "calibration.txt");
  if (findings.overlap_text.empty() && FileExists(own_text)) findings.overlap_text = own_text;
  // What is calibrated on text anyway has nothing to compare.
  const bool is_of_random_tokens = has_basis && !BasisMethodOf(spec_model.spec)->wants_text;
  if (!findings.overlap_text.empty() && is_of_random_tokens) {
    KVL_ASSIGN_OR_RETURN(findings.overlap,
                         OverlapWithText(workspace, spec_model.spec, findings.overlap_text));
  }
  if (!options.error_text.empty()) {
    KVL_ASSIGN_OR_RETURN(findings.errors,
                         ErrorsOnText(workspace, spec_model.model.get(), options.error_text));
  }
  if (!options.merging.text.empty()) {
    KVL_ASSIGN_OR_RETURN(findings.merging, InspectMerging(workspace, spec_model, options.merging));
  }
  return findings;
}

void PrintLosses(const PredictedLosses& losses) {
  const PredictedLosses parts = losses.InKl();
  fmt::print("predicted KL {:.5f} nats per token, on text like that of the calibration:\n",
             losses.kl());
  fmt::print("{:>5} {:>9} {:>9}\n", "layer", "K", "V");
  for (size_t l = 0; l < parts.keys.size(); ++l) {
    fmt::print("{:>5} {:>9.6f} {:>9.6f}\n", l, parts.keys[l], parts.values[l]);
  }
  fmt::print("rows that are not sealed yet {:.6f}\n\n", parts.open_rows);
}

// What is found beside the cache itself.
struct FurtherFindings {
  std::optional<BasisSimilarity> similarity;
  TextFindings texts;
  std::optional<DividedCache> divided;  // where ranks or stages were asked for
};

nlohmann::ordered_json AllJson(const Workspace& workspace, const std::string& kv,
                               const CacheInspection& inspection, const FurtherFindings& found) {
  nlohmann::ordered_json json = InspectionJson(workspace, kv, inspection);
  if (found.divided.has_value()) json["divided"] = DividedCacheJson(*found.divided);
  if (found.similarity.has_value()) json["similarity"] = SimilarityJson(*found.similarity);
  const TextFindings& texts = found.texts;
  if (texts.overlap.has_value()) json["subspace_overlap"] = *texts.overlap;
  if (texts.errors.has_value()) json["stored_errors"] = ErrorsJson(*texts.errors);
  if (texts.merging.has_value()) json["merging"] = MergingFindingsJson(*texts.merging);
  return json;
}

Status Inspect(const InspectOptions& options) {
  if (options.model.kv.size() > 1) {
    return Error(StatusCode::kInvalidArgument, "inspect takes one --kv");
  }
  const std::string without = options.merging.text.empty() ? "fdc(rate=0.5)" : "dmc";
  const std::string kv = options.model.kv.empty() ? without : options.model.kv.front();
  KVL_ASSIGN_OR_RETURN(auto workspace, OpenWorkspace(options.model));
  if (options.division.divides()) {
    KVL_RETURN_IF_ERROR(CheckDivided(workspace.get(), kv, options.division));
  }
  KVL_ASSIGN_OR_RETURN(const CacheInspection inspection, InspectCache(workspace.get(), kv));
  const SpecModel& spec_model = inspection.spec_model;
  const KvBytes bytes = BytesAtFullContext(*workspace, *spec_model.model);
  FurtherFindings found;
  if (options.division.divides()) {
    KVL_ASSIGN_OR_RETURN(found.divided,
                         DivideCache(workspace.get(), spec_model.spec, options.division));
  }
  if (!options.other_basis.empty()) {
    KVL_ASSIGN_OR_RETURN(found.similarity,
                         SimilarityTo(workspace.get(), spec_model, options.other_basis));
  }
  KVL_ASSIGN_OR_RETURN(found.texts, InspectTexts(workspace.get(), spec_model, options,
                                                 inspection.analysis != nullptr));
  if (options.model.json) {
    fmt::print("{}\n", AllJson(*workspace, kv, inspection, found).dump());
    return OkStatus();
  }
  const ModelConfig& c = workspace->config();
  fmt::print("{}: {}, {} layers, hidden {}, {} heads over {} KV heads of {}, context {}\n",
             options.model.model, c.model_type, c.n_layers, c.hidden_dim, c.n_heads, c.n_kv_heads,
             c.head_dim, c.max_seq_len);
  fmt::print("--kv {}\n", spec_model.spec.ToString());
  const auto reference =
      static_cast<double>(ReferenceBytes(spec_model.model->layout(), workspace->context_tokens()));
  const auto percent = [&](const KvBytes& of) {
    return 100.0 * static_cast<double>(of.total()) / reference;
  };
  fmt::print(
      "a prompt of {} tokens takes {}, {:.2f}% of the 16-bit cache; rotations and codebooks of the "
      "model {}\n",
      workspace->context_tokens(), FormatBytes(bytes.total()), percent(bytes),
      FormatBytes(spec_model.model->basis_bytes()));
  if (const auto room = RoomOnDevice(*workspace, *spec_model.model)) {
    fmt::print("{}: {} for caches, {} such prompts\n", workspace->device_name(),
               FormatBytes(room->kv_budget_bytes), room->n_sequences);
  }
  if (const auto pressed = BytesUnderPressure(*workspace, *spec_model.model)) {
    fmt::print("under pressure, once all of it was sealed again, {}, {:.2f}%\n",
               FormatBytes(pressed->total()), percent(*pressed));
  }
  PrintKinds(KindsAtFullContext(*workspace, *spec_model.model));
  if (found.divided.has_value()) {
    DividedCache whole{.ranks = {{{}, bytes}}};
    whole.heads_per_map = HeadsPerMap(spec_model.model->layout().keys);
    if (inspection.losses.has_value()) whole.predicted_kl = inspection.losses->kl();
    PrintDividedCache(*found.divided, whole);
  }
  const TextFindings& texts = found.texts;
  if (texts.overlap.has_value()) {
    fmt::print("subspaces from random tokens and from {} overlap by {:.3f} at rank {}\n",
               texts.overlap_text, *texts.overlap, c.head_dim / 2);
  }
  if (inspection.losses.has_value()) PrintLosses(*inspection.losses);
  if (inspection.analysis != nullptr)
    PrintBasis(*workspace, *inspection.analysis, *spec_model.ranks);
  if (found.similarity.has_value()) PrintSimilarity(options.other_basis, *found.similarity);
  if (texts.errors.has_value()) PrintErrors(*texts.errors);
  if (texts.merging.has_value()) PrintMerging(*texts.merging);
  return OkStatus();
}

}  // namespace

void AddInspectVerb(Verbs* verbs) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* verb =
      verbs->Add("inspect", "Shapes, ranks per head, singular values, bytes by part",
                 "kvlathe inspect -m models/lathe-nano --kv 'fdc(rate=0.5)' --text novel.txt",
                 [options] { return Inspect(*options); });
  AddModelOptions(verb, &options->model);
  AddCacheOptions(verb, &options->model, "fdc(rate=0.5)");
  verb->add_option(
      "--text", options->overlap_text,
      "calibrate on this text too and show how far the subspaces agree (default: the model's "
      "calibration.txt)");
  verb->add_option("--against", options->other_basis,
                   "statistics of other tokens (calibrate): how much of their rows' energy the "
                   "rotations of --kv keep, zack or fdc");
  verb->add_option("--errors", options->error_text,
                   "text on which to measure what a quantizer loses of keys and values, and how "
                   "much of it a low-rank repair could hold");
  AddMergingOptions(verb, &options->merging);
  AddDivisionOptions(verb, &options->division);
}

}  // namespace kvlathe
