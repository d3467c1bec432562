// Command-line options that several verbs share. Spellings follow llama.cpp and vLLM.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "machine/attention/schedule.h"

namespace kvlathe {

struct ModelOptions {
  std::string model;            // -m
  std::vector<std::string> kv;  // --kv, repeats
  std::string basis;            // --basis
  std::string profile;          // --profile
  std::string kv_memory;        // --kv-memory
  std::string pre;              // --pre
  std::string dtype = "bf16";   // --dtype
  std::string schedule = "balanced";
  int ctx_size = 0;          // -c, 0: from the model
  int n_threads = 0;         // -t, 0: all processors
  bool pin_threads = false;  // --pin
  bool deterministic = false;
  bool json = false;
};

// -m, -t, --pin and what a model needs to be loaded.
void AddWeightOptions(CLI::App* app, ModelOptions* options);
// These and --json.
void AddModelOptions(CLI::App* app, ModelOptions* options);
// --kv, --basis, --profile, --kv-memory, -c, --schedule, --deterministic.
void AddCacheOptions(CLI::App* app, ModelOptions* options, const std::string& default_kv);

// -n: how many tokens to generate, at least 1, or kUntilTheEnd.
inline constexpr int kUntilTheEnd = -1;
void AddMaxTokensOption(CLI::App* app, int* max_tokens, const std::string& help);

// All of standard input, byte for byte.
StatusOr<std::string> ReadStandardInput();

// static, lpt or balanced, checked when parsed.
Schedule ParseSchedule(const std::string& name);

// A verb registers itself and leaves here what is to run.
struct Verbs {
  CLI::App* app;
  std::function<Status()> chosen;

  // The subcommand with its help; `run` is called when it is chosen and parsed.
  CLI::App* Add(const std::string& name, const std::string& summary, const std::string& example,
                std::function<Status()> run);
};

void AddRunVerb(Verbs* verbs);
void AddServeVerb(Verbs* verbs);
void AddChatVerb(Verbs* verbs);
void AddCompareVerb(Verbs* verbs);
void AddCalibrateVerb(Verbs* verbs);
void AddTuneVerb(Verbs* verbs);
void AddReportVerb(Verbs* verbs);
void AddChartVerb(Verbs* verbs);
void AddEvalVerb(Verbs* verbs);
void AddInspectVerb(Verbs* verbs);
void AddSpecsVerb(Verbs* verbs);
void AddTokenizeVerb(Verbs* verbs);
void AddBenchVerb(Verbs* verbs);
void AddRetrofitVerb(Verbs* verbs);

}  // namespace kvlathe
