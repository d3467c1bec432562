// `kvlathe bench serve` spells its options as `vllm bench serve` does.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "load_generation/load_metrics.h"
#include "load_generation/load_report.h"

namespace kvlathe {

struct BenchServerOptions {
  std::string base_url;  // empty: host and port
  std::string host = "127.0.0.1";
  int port = 8080;
  std::string backend = "openai";
  std::string endpoint;  // empty: that of the backend
  std::string model;     // empty: the first of the server
  std::string api_key;
  double timeout_s = 21600;
  double ready_check_timeout_s = 0;
};

struct BenchWorkloadOptions {
  std::string dataset_name = "random";
  std::string dataset_path;
  std::string text;  // empty: sample.txt
  std::string prompt_format = "auto";
  double bytes_per_token = 0;  // 0: measured, or 4
  int vocab_size = 0;          // 0: the server's
  int random_input_len = 1024, random_output_len = 128;
  double random_range_ratio = 0;
  int output_len = 0;  // of records without one
  double scale = 1;
  int fit_context = 0;  // 0: nothing is fitted
  uint64_t seed = 0;
};

struct BenchTrafficOptions {
  int64_t num_prompts = 1000;
  double duration_s = 0;
  double request_rate = std::numeric_limits<double>::infinity();
  std::vector<double> request_rates;  // a sweep
  double slo_ms = 0;                  // of p90 normalised latency; 0: none
  double burstiness = 1;
  int max_concurrency = 0;
  int num_warmups = 0;
  bool ignore_eos = true;
  std::string kv;
  std::optional<double> temperature;
  std::string extra_body;
};

struct BenchOutputOptions {
  std::vector<std::string> percentile_metrics = {"ttft", "tpot", "itl"};
  std::vector<double> percents = {99};
  std::vector<std::string> goodput;
  bool save_result = false, save_detailed = false, json = false, dry_run = false;
  std::string result_dir = ".", result_filename, label;
  std::vector<std::string> metadata;
  std::vector<std::string> plot;  // result files
  std::string svg;
  std::string plot_statistic = "p90";
};

struct ServeBenchOptions {
  BenchServerOptions server;
  BenchWorkloadOptions workload;
  BenchTrafficOptions traffic;
  BenchOutputOptions output;

  bool is_chat() const { return endpoint().find("chat") != std::string::npos; }
  std::string endpoint() const;
  // Returns what a plot calls the result: the label, or else the level of the cache, or the
  // backend.
  std::string label() const;
};

void AddServeBenchOptions(CLI::App* verb, ServeBenchOptions* options);

}  // namespace kvlathe
