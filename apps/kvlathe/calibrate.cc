// kvlathe calibrate: statistics of a model's queries, keys and values -> basis.safetensors.
#include <fmt/format.h>
#include <sys/resource.h>

#include <filesystem>
#include <system_error>

#include "analysis/bases/lathe_maps.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/units.h"
#include "calibration/fingerprint.h"
#include "calibration/statistics_store.h"
#include "io/files.h"
#include "io/model_place.h"
#include "kvlathe/open_workspace.h"
#include "plan/plan_source.h"
#include "runtime/calibration_run.h"

namespace kvlathe {
namespace {

struct CalibrateOptions {
  ModelOptions model;
  CalibrationRun run;
  std::string random_model;
  std::string output;
  std::string kv;
  std::string maps;  // KeyRows by name: only lathe's maps are written
};

int64_t PeakResidentBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// Where the statistics go; empty: nowhere.
std::string OutputOf(const CalibrateOptions& options, const Workspace& workspace) {
  if (!options.output.empty() || !options.random_model.empty()) return options.output;
  return BesideModel(workspace.options().model, StatisticsFileName(options.run.Merging()));
}

// Of options.maps, which is one of the names.
KeyRows KeysOfMaps(const CalibrateOptions& options) {
  for (const KeyRows rows : kAllKeyRows) {
    if (options.maps == NameOf(rows)) return rows;
  }
  KVL_CHECK(false);
}

Status WriteResult(const CalibrateOptions& options, const CalibrationStatistics& statistics,
                   const std::string& path) {
  if (!options.maps.empty()) return WriteLatheMaps(statistics, KeysOfMaps(options), path);
  return WriteStatistics(statistics, path);
}

// With --basis: lathe's maps of statistics that are there.
Status WriteMapsOfFile(const CalibrateOptions& options) {
  if (options.output.empty()) {
    return Error(StatusCode::kInvalidArgument, "-o FILE: where the maps of {} go",
                 options.model.basis);
  }
  KVL_ASSIGN_OR_RETURN(const CalibrationStatistics statistics,
                       ReadStatisticsOrMaps(options.model.basis));
  KVL_RETURN_IF_ERROR(WriteResult(options, statistics, options.output));
  fmt::print("{}: maps for lathe(keys={}) of {}\n", options.output, options.maps,
             options.model.basis);
  return OkStatus();
}

Status RunCalibrate(CalibrateOptions options) {
  if (!options.model.basis.empty()) return WriteMapsOfFile(options);
  if (!options.maps.empty() && options.output.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "--maps: give -o FILE; other methods need all of the statistics, which would not "
                 "be beside the model then");
  }
  if (!options.run.gradients && !options.maps.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "--gradients=false: --maps is made of gradients; leave one of both out");
  }
  if (!options.kv.empty()) {
    KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(options.kv));
    KVL_RETURN_IF_ERROR(CheckSupported(spec));
    options.run.merge = MergingOf(spec);
  }
  if (options.run.merge.has_value() && options.run.across_heads) {
    return Error(
        StatusCode::kInvalidArgument,
        "--across-heads is for latents that heads share, and heads that merge have entries "
        "of their own; leave one of --across-heads and --kv {} out",
        options.kv);
  }
  const bool is_random = !options.random_model.empty();
  if (is_random != options.model.model.empty()) {
    return Error(StatusCode::kInvalidArgument, "give one of -m DIR and --random-model CONFIG.json");
  }
  if (is_random && !options.run.text_path.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "--random-model has no tokenizer to read --text with; it calibrates on random "
                 "tokens");
  }
  Stopwatch watch;
  KVL_ASSIGN_OR_RETURN(auto workspace,
                       is_random ? OpenRandomWorkspace(options.random_model, options.model)
                                 : OpenWorkspace(options.model));
  const double loading_seconds = watch.Seconds();
  const std::string path = OutputOf(options, *workspace);
  // What cannot be written is known before the work begins.
  if (!path.empty()) {
    KVL_RETURN_IF_ERROR(CheckCanKeep(path, ShapeOf(workspace->config()),
                                     {.gradients = options.run.gradients,
                                      .across_heads = options.run.across_heads,
                                      .key_values = options.run.key_values,
                                      .outputs = options.run.outputs}));
    options.run.checkpoint_path = CheckpointPathOf(path);
  }
  CalibrationTimes times;
  KVL_ASSIGN_OR_RETURN(const CalibrationStatistics statistics,
                       RunCalibration(workspace.get(), options.run, &times));
  if (!path.empty()) {
    KVL_RETURN_IF_ERROR(WriteResult(options, statistics, path));
    std::error_code ignored;  // there may be none
    std::filesystem::remove(options.run.checkpoint_path, ignored);
  }
  if (options.model.json) {
    const nlohmann::ordered_json json = {{"basis", path},
                                         {"tokens", statistics.source.n_tokens},
                                         {"sequence_tokens", statistics.source.sequence_tokens},
                                         {"positions", statistics.source.n_positions},
                                         {"token_source", statistics.source.token_source},
                                         {"merging", statistics.source.merging},
                                         {"seed", statistics.source.seed},
                                         {"seconds", watch.Seconds()},
                                         {"loading_seconds", loading_seconds},
                                         {"forward_seconds", times.forward},
                                         {"moments_seconds", times.moments},
                                         {"gradient_seconds", times.gradients},
                                         {"gradient_tokens", statistics.joint.n_tokens},
                                         {"held_back_tokens", statistics.held_back.n_tokens},
                                         {"peak_resident_bytes", PeakResidentBytes()}};
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("{}: {} tokens ({}), {:.1f} s, at most {} resident\n",
               path.empty() ? options.random_model : path, statistics.source.n_tokens,
               statistics.source.token_source, watch.Seconds(), FormatBytes(PeakResidentBytes()));
  }
  return OkStatus();
}

}  // namespace

void AddCalibrateVerb(Verbs* verbs) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* verb = verbs->Add(
      "calibrate", "Statistics of queries, keys and values for the basis axis",
      "kvlathe calibrate -m models/lathe-nano --random-tokens 16384 -o basis.safetensors",
      [options] { return RunCalibrate(*options); });
  AddModelOptions(verb, &options->model);
  verb->get_option("--model")->required(false);
  verb->add_option("--random-model", options->random_model,
                   "what calibrating a model in the shape of a config.json costs: random weights");
  verb->add_option("--kv-memory", options->model.kv_memory, "KV cache budget while calibrating");
  verb->add_option("-c,--ctx-size", options->model.ctx_size,
                   "context in tokens that rows after RoPE are taken from (default: the model's)")
      ->check(CLI::Range(1, 1 << 30));
  auto* random =
      verb->add_option("--random-tokens", options->run.n_random_tokens, "random tokens to run")
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
          ->capture_default_str();
  auto* text = verb->add_option("--text", options->run.text_path, "calibrate on a text instead")
                   ->excludes(random);
  verb->add_option("--tokens", options->run.n_text_tokens,
                   "tokens of the text to read, from all over it (default: 24576; fewer of models "
                   "of more than 134 million weights)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->needs(text);
  verb->add_flag(
      "--gradients", options->run.gradients,
      "what errors of stored rows cost, for lathe and kvquant; =false leaves it out, which takes a "
      "third of the time and is enough for fdc, zack, palu, eigen and spectral");
  verb->add_flag(
      "--across-heads", options->run.across_heads,
      "Gram matrices across the KV heads of a layer too, for palu(group=N): 8 bytes times "
      "(KV heads * head_dim)^2 a layer");
  verb->add_flag(
      "--key-values", options->run.key_values,
      "moments of keys with their values too, for lathe(maps=joint); about as many bytes "
      "again");
  verb->add_flag("--outputs", options->run.outputs,
                 "moments of what attention makes of values too, for spectral and oscar");
  verb->add_option("--kv", options->kv,
                   "a spec with dmc or pool: statistics of the entries that it merges, for "
                   "bases that go with it");
  verb->add_option(
          "--maps", options->maps,
          "write only what lathe needs with these keys, about a thirtieth of the bytes; with "
          "--basis FILE of what that file holds, without calibrating")
      ->check(CLI::IsMember({"after", "centred", "block", "before"}));
  verb->add_option("--basis", options->model.basis, "with --maps: a file of statistics to read")
      ->needs("--maps");
  verb->add_option("-s,--seed", options->run.seed, "seed of the random tokens")
      ->capture_default_str();
  verb->add_option(
      "-o,--output", options->output,
      "file to write (default: the model's basis.safetensors, or basis-dmc-12.safetensors and "
      "the like with --kv; of --random-model: none)");
}

}  // namespace kvlathe
