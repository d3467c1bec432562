// Several verbs share these command-line options. Spellings follow llama.cpp and vLLM.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/ranks/model_shard.h"
#include "runtime/open_options.h"

namespace kvlathe {

struct Verbs;
class Workspace;

// What the verbs that use a model share.
struct ModelOptions : OpenOptions {
  std::string device_text = "cpu";         // --device, checked when parsed
  std::string device_memory;               // --device-memory, as it was written
  std::string kv_memory;                   // --kv-memory, likewise
  std::string dtype = "bf16";              // --dtype
  std::string weights_name;                // --weights; empty: those of the file
  std::string schedule_name = "balanced";  // --schedule
  bool json = false;
};

// --device, of which anything but cpu, cuda and cuda:N is refused when it is parsed.
void AddDeviceOption(CLI::App* app, std::string* device_text);
// -m, --device, -t, --pin and what a model needs to be loaded.
void AddWeightOptions(CLI::App* app, ModelOptions* options);
// These and --json.
void AddModelOptions(CLI::App* app, ModelOptions* options);
// --kv, --basis, --profile, --kv-memory, -c, --schedule, --deterministic.
void AddCacheOptions(CLI::App* app, ModelOptions* options, const std::string& default_kv);

// --tp, --pp, --rank-timeout of a verb that opens its model with `open`.
void AddRankOptions(CLI::App* app, Verbs* verbs, ModelOptions* options,
                    std::function<StatusOr<std::unique_ptr<Workspace>>()> open);

// -n: how many tokens to generate, at least 1, or kUntilTheEnd.
inline constexpr int kUntilTheEnd = -1;
void AddMaxTokensOption(CLI::App* app, int* max_tokens, const std::string& help);

// All of standard input, byte for byte.
StatusOr<std::string> ReadStandardInput();

// q4_k, bf16, ..., checked when parsed; none for the empty text.
std::optional<WeightType> ParseWeightType(const std::string& name);

// static, lpt or balanced, checked when parsed.
Schedule ParseSchedule(const std::string& name);

// A verb whose model several ranks may share.
struct RankedVerb {
  ModelOptions* model = nullptr;
  RankGrid grid;
  double timeout_s = 3.5;  // mpirun may take a second more to end a group
  // Opens the model as the verb does.
  std::function<StatusOr<std::unique_ptr<Workspace>>()> open;
};

// A verb registers itself and leaves here what is to run.
struct Verbs {
  CLI::App* app;
  std::function<Status()> chosen;
  std::shared_ptr<RankedVerb> ranked;  // of the verb that is chosen, where it has AddRankOptions

  // The subcommand with its help; `run` is called when it is chosen and parsed.
  CLI::App* Add(const std::string& name, const std::string& summary, const std::string& example,
                std::function<Status()> run);
};

void AddRunVerb(Verbs* verbs);
void AddServeVerb(Verbs* verbs);
void AddChatVerb(Verbs* verbs);
void AddAuditVerb(Verbs* verbs);
void AddCompareVerb(Verbs* verbs);
void AddCalibrateVerb(Verbs* verbs);
void AddTuneVerb(Verbs* verbs);
void AddReportVerb(Verbs* verbs);
void AddChartVerb(Verbs* verbs);
void AddEvalVerb(Verbs* verbs);
void AddInspectVerb(Verbs* verbs);
void AddSpecsVerb(Verbs* verbs);
void AddPrefixVerb(Verbs* verbs);
void AddTokenizeVerb(Verbs* verbs);
void AddConvertVerb(Verbs* verbs);
void AddBenchVerb(Verbs* verbs);
void AddRetrofitVerb(Verbs* verbs);
void AddCompletionsVerb(Verbs* verbs);
void AddManualVerb(Verbs* verbs);

}  // namespace kvlathe
