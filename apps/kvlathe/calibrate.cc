// kvlathe calibrate: statistics of a model's queries, keys and values -> basis.safetensors.
#include <fmt/format.h>

#include "base/clock.h"
#include "calibration/fingerprint.h"
#include "calibration_run.h"
#include "io/files.h"
#include "workspace.h"

namespace kvlathe {
namespace {

struct CalibrateOptions {
  ModelOptions model;
  CalibrationRun run;
  std::string output;
};

Status RunCalibrate(const CalibrateOptions& options) {
  Stopwatch watch;
  KVL_ASSIGN_OR_RETURN(auto workspace, Workspace::Open(options.model));
  const std::string path =
      options.output.empty() ? options.model.model + "/basis.safetensors" : options.output;
  KVL_ASSIGN_OR_RETURN(const CalibrationStatistics statistics,
                       RunCalibration(workspace.get(), workspace->model_hash(), options.run));
  KVL_RETURN_IF_ERROR(WriteStatistics(statistics, path));
  if (options.model.json) {
    const nlohmann::ordered_json json = {{"basis", path},
                                         {"tokens", statistics.source.n_tokens},
                                         {"sequence_tokens", statistics.source.sequence_tokens},
                                         {"token_source", statistics.source.token_source},
                                         {"seed", statistics.source.seed},
                                         {"seconds", watch.Seconds()}};
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("{}: {} tokens ({}), {:.1f} s\n", path, statistics.source.n_tokens,
               statistics.source.token_source, watch.Seconds());
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
  verb->add_option("--kv-memory", options->model.kv_memory, "KV cache budget while calibrating");
  auto* random =
      verb->add_option("--random-tokens", options->run.n_random_tokens, "random tokens to run")
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
          ->capture_default_str();
  verb->add_option("--text", options->run.text_path, "calibrate on a text instead")
      ->excludes(random);
  verb->add_option("-s,--seed", options->run.seed, "seed of the random tokens")
      ->capture_default_str();
  verb->add_option("-o,--output", options->output,
                   "file to write (default: the model's basis.safetensors)");
}

}  // namespace kvlathe
