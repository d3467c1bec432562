// kvlathe report: the caches of a model on one HTML page.
#include "evaluation/report.h"

#include <fmt/format.h>

#include "analysis/bases/report.h"
#include "base/units.h"
#include "io/atomic_file.h"
#include "io/files.h"
#include "kv/seal/seal_schedule.h"
#include "kvlathe/open_workspace.h"
#include "runtime/measuring/comparison_run.h"
#include "runtime/profile_file.h"
#include "runtime/shared_texts.h"

namespace kvlathe {
namespace {

struct ReportOptions {
  ModelOptions model;
  std::string text;
  std::string output = "report.html";
};

std::vector<std::pair<std::string, std::string>> FactsOf(const Workspace& workspace) {
  const ModelConfig& c = workspace.config();
  return {
      {"family", c.model_type},
      {"layers", fmt::format("{}", c.n_layers)},
      {"heads, KV heads, head_dim", fmt::format("{}, {}, {}", c.n_heads, c.n_kv_heads, c.head_dim)},
      {"context", fmt::format("{}", c.max_seq_len)},
      {"positions", c.DescribePositions()},
      {"16-bit cache of a full context",
       FormatBytes(UncompressedBytes(c.n_layers, c.n_kv_heads, c.head_dim, c.max_seq_len))}};
}

// Where channels have bits of their own.
void AddSplitBits(const BasisAnalysis& analysis, const RankAllocation& allocation,
                  ReportCache* cache) {
  ReportMap k_bits{"bits per number of keys", {}, 2}, v_bits{"bits per number of values", {}, 2};
  int n_bits = 0;
  for (const HeadRanks& ranks : allocation.ranks) {
    n_bits += ranks.bits.middle.k.bits_per_token() + ranks.bits.middle.v.bits_per_token();
    const double width = analysis.shape.head_dim;
    const auto n = static_cast<size_t>(HeadsPerMap(analysis.keys));
    k_bits.values.insert(k_bits.values.end(), n, ranks.bits.middle.k.bits_per_token() / width);
    v_bits.values.insert(v_bits.values.end(), n, ranks.bits.middle.v.bits_per_token() / width);
  }
  if (n_bits == 0) return;
  cache->maps.push_back(std::move(k_bits));
  cache->maps.push_back(std::move(v_bits));
}

// Ranks, and where few directions hold most.
Status AddBasis(Workspace* workspace, const SpecModel& spec_model,
                std::vector<const BasisAnalysis*>* shown, ReportCache* cache) {
  if (!spec_model.ranks.has_value()) return OkStatus();
  KVL_ASSIGN_OR_RETURN(const BasisAnalysis* analysis,
                       workspace->planner().analyses().Of(spec_model.spec));
  ReportMap rank_k{"rank of keys", {}}, rank_v{"rank of values", {}};
  ReportMap qk{"QK: share of the largest quarter", {}, 2};
  ReportMap v{"V: share of the largest quarter", {}, 2};
  // Joined heads are shown as each of the KV heads that they are.
  const auto n = static_cast<size_t>(HeadsPerMap(analysis->keys));
  for (size_t i = 0; i < spec_model.ranks->ranks.size(); ++i) {
    const HeadRanks& ranks = spec_model.ranks->ranks[i];
    rank_k.values.insert(rank_k.values.end(), n, StoredKeyChannels(ranks));
    rank_v.values.insert(rank_v.values.end(), n, StoredValueChannels(ranks));
    qk.values.insert(qk.values.end(), n, Concentration(analysis->SpectraOf(i).qk));
    v.values.insert(v.values.end(), n, Concentration(analysis->SpectraOf(i).v));
  }
  for (ReportMap* map : {&rank_k, &rank_v, &qk, &v}) cache->maps.push_back(std::move(*map));
  AddSplitBits(*analysis, *spec_model.ranks, cache);
  if (std::ranges::find(*shown, analysis) == shown->end()) {
    for (size_t i = 0; i < spec_model.ranks->ranks.size(); ++i) {
      cache->spectra.insert(cache->spectra.end(), n, analysis->SpectraOf(i));
    }
    shown->push_back(analysis);
  }
  return OkStatus();
}

// What a head's sealed blocks and records take, per number of the uncompressed rows they stand for.
// n_model_heads: KV heads of the model, some of which may be one of the cache.
void AddBits(const CacheLayout& layout, int n_model_heads, int64_t n_context, ReportCache* cache) {
  const std::vector<RunExtent> runs = RunsOf(layout, n_context, n_context);
  if (runs.empty()) return;
  ReportMap bits{"stored bits per number, without records of the layer", {}, 2};
  for (int l = 0; l < layout.n_layers; ++l) {
    for (int g = 0; g < layout.n_kv_heads; ++g) {
      int64_t n_bytes = 0, n_tokens = 0;
      // With classes of entries, over all of them; without, runs are alike.
      for (const RunExtent& run : std::span(runs).first(layout.HasClasses() ? runs.size() : 1)) {
        const PackedShape shape = PackedShapeOf(layout, l, g, run);
        n_bytes += shape.n_blocks * PackedBlockObjectBytes(shape) + RunRecordObjectBytes(shape);
        n_tokens += shape.n_tokens();
      }
      bits.values.insert(bits.values.end(), n_model_heads / layout.n_kv_heads,
                         8.0 * static_cast<double>(n_bytes) /
                             (2.0 * layout.head_dim * static_cast<double>(n_tokens)));
    }
  }
  cache->maps.push_back(std::move(bits));
}

// Entries that heads hold of a window that was read as a prompt.
Status AddLengths(Model* model, std::span<const int32_t> window, int64_t kv_budget_bytes,
                  ReportCache* cache) {
  const CacheLayout& layout = model->layout();
  if (!layout.retention.has_value()) return OkStatus();
  BlockPool pool(kv_budget_bytes, &model->machine().memory());
  SequenceCache sequence(&layout, &pool);
  sequence.set_n_prompt(static_cast<int64_t>(window.size()));
  KVL_RETURN_IF_ERROR(Prefill(model, &sequence, window));
  ReportMap lengths{fmt::format("entries held of a prompt of {}", window.size()), {}};
  for (int l = 0; l < layout.n_layers; ++l) {
    for (int g = 0; g < layout.n_kv_heads; ++g) {
      lengths.values.insert(lengths.values.end(), model->config().n_kv_heads / layout.n_kv_heads,
                            layout.n_sink + sequence.head(l, g).n_entries());
    }
  }
  cache->maps.push_back(std::move(lengths));
  return OkStatus();
}

StatusOr<std::vector<ReportCache>> CachesOf(Workspace* workspace, const ComparisonRun& run) {
  std::vector<ReportCache> caches;
  std::vector<const BasisAnalysis*> shown;
  for (const SpecModel& spec_model : run.models) {
    ReportCache cache{spec_model.spec.text(), spec_model.spec.ToString(), {}, {}};
    KVL_RETURN_IF_ERROR(AddBasis(workspace, spec_model, &shown, &cache));
    AddBits(spec_model.model->layout(), workspace->config().n_kv_heads, workspace->context_tokens(),
            &cache);
    KVL_RETURN_IF_ERROR(
        AddLengths(spec_model.model.get(), run.window, workspace->kv_budget_bytes(), &cache));
    caches.push_back(std::move(cache));
  }
  return caches;
}

// The uncompressed cache and what tune found for its last target, or a few examples.
std::vector<std::string> DefaultSpecs(const std::optional<FoundProfile>& found) {
  if (!found.has_value() || found->profile.targets.empty()) {
    return {"none",           "lathe(ratio=4)", "lathe(ratio=6)",
            "lathe(ratio=8)", "kivi(bits=4)",   "kivi(bits=2)"};
  }
  std::vector<std::string> specs = {"none"};
  for (const TunedMethod& method : found->profile.targets.back().methods) {
    if (!method.kv.empty()) specs.push_back(method.kv);
  }
  return specs;
}

Status RunReport(ReportOptions options) {
  KVL_RETURN_IF_ERROR(AtomicFile::Create(options.output).status());  // before anything takes time
  KVL_ASSIGN_OR_RETURN(auto workspace, OpenWorkspace(options.model));
  if (options.text.empty()) {
    KVL_ASSIGN_OR_RETURN(options.text, TextOfModel(workspace->options().model, "sample.txt"));
  }
  KVL_ASSIGN_OR_RETURN(std::optional<FoundProfile> found, LookForProfile(*workspace));
  if (found.has_value() && found->profile.model_hash != workspace->model_hash()) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: this profile belongs to another model; give the one of {} with --profile",
                 found->path, options.model.model);
  }
  const std::vector<std::string> specs =
      options.model.kv.empty() ? DefaultSpecs(found) : options.model.kv;
  KVL_ASSIGN_OR_RETURN(ComparisonRun run, RunComparison(workspace.get(), {specs, options.text}));
  Report report;
  report.model = options.model.model;
  report.facts = FactsOf(*workspace);
  report.n_layers = workspace->config().n_layers;
  report.n_kv_heads = workspace->config().n_kv_heads;
  KVL_ASSIGN_OR_RETURN(report.caches, CachesOf(workspace.get(), run));
  report.comparison = std::move(run.comparison);
  if (found.has_value()) {
    report.profile_path = std::move(found->path);
    report.profile = std::move(found->profile);
  }
  KVL_RETURN_IF_ERROR(WriteFileAtomically(options.output, ToHtml(report)));
  if (options.model.json) {
    nlohmann::ordered_json json = ToJson(report.comparison);
    json["report"] = options.output;
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("{}: {} caches on {} scored tokens\n", options.output, report.comparison.rows.size(),
               report.comparison.n_tokens);
  }
  return OkStatus();
}

}  // namespace

void AddReportVerb(Verbs* verbs) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* verb = verbs->Add(
      "report", "One HTML page: size against quality, tuned caches, ranks and bits by head",
      "kvlathe report -m models/lathe-nano --kv none --kv 'lathe(ratio=4)' --out report.html",
      [options] { return RunReport(*options); });
  options->model.exact_rows = true;  // what caches lose is not to drown in the rounding of rows
  AddModelOptions(verb, &options->model);
  AddCacheOptions(verb, &options->model, "what the profile found, or examples");
  verb->add_option(
      "--text", options->text,
      "text to evaluate on (default: the model's sample.txt, or a mixed one of 10,000 tokens)");
  verb->add_option("-o,--out", options->output, "page to write")->capture_default_str();
}

}  // namespace kvlathe
