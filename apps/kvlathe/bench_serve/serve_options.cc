#include "kvlathe/bench_serve/serve_options.h"

namespace kvlathe {
namespace {

void AddServer(CLI::App* verb, BenchServerOptions* o) {
  verb->add_option("--base-url", o->base_url,
                   "the server, http://HOST:PORT[/PATH], in place of --host and --port");
  verb->add_option("--host", o->host, "its host")->capture_default_str();
  verb->add_option("--port", o->port, "its port")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  verb->add_option("--backend", o->backend,
                   "openai or vllm: /v1/completions; openai-chat: /v1/chat/completions")
      ->check(CLI::IsMember({"openai", "vllm", "openai-chat"}))
      ->capture_default_str();
  verb->add_option("--endpoint", o->endpoint, "where requests go, if elsewhere");
  verb->add_option("--model", o->model,
                   "the model that requests name (default: the server's first)");
  verb->add_option("--api-key", o->api_key, "sent as a bearer token (default: $OPENAI_API_KEY)");
  verb->add_option("--request-timeout", o->timeout_s, "seconds until a request counts as failed")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  verb->add_option("--ready-check-timeout-sec", o->ready_check_timeout_s,
                   "how long to wait for the server to answer")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

void AddWorkload(CLI::App* verb, BenchWorkloadOptions* o) {
  verb->add_option("--dataset-name", o->dataset_name,
                   "random; imdb, arxiv, cocktail, cocktail-long, humaneval, pg19: lengths as the "
                   "papers' tables have "
                   "them; file (also custom, sharegpt): --dataset-path")
      ->check(CLI::IsMember({"random", "imdb", "arxiv", "cocktail", "cocktail-long", "humaneval",
                             "pg19", "file", "custom", "sharegpt"}))
      ->capture_default_str();
  verb->add_option("--dataset-path", o->dataset_path,
                   "JSON Lines with prompt and output_len, or ShareGPT's JSON");
  verb->add_option("--text", o->text,
                   "text from which prompts are cut (default: the one that comes with kvlathe)");
  verb->add_option(
          "--prompt-format", o->prompt_format,
          "ids: prompts of token ids; text; auto: ids where the server takes and makes them")
      ->check(CLI::IsMember({"auto", "ids", "text"}))
      ->capture_default_str();
  verb->add_option("--bytes-per-token", o->bytes_per_token,
                   "of prompts that are text (default: as the server tokenizes, or 4)")
      ->check(CLI::Range(0.1, 100.0));
  verb->add_option("--vocab-size", o->vocab_size, "random ids are below it (default: the server's)")
      ->check(CLI::Range(1, 1 << 24));
  verb->add_option("--random-input-len", o->random_input_len, "tokens of a prompt of random")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  verb->add_option("--random-output-len", o->random_output_len, "tokens of an answer of random")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  verb->add_option("--random-range-ratio", o->random_range_ratio,
                   "lengths of random are even in [1 - R, 1 + R] times that")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  verb->add_option("--output-len", o->output_len, "tokens of an answer where the file has none")
      ->check(CLI::Range(1, 1 << 24));
  verb->add_option("--scale", o->scale, "every length times this")
      ->check(CLI::Range(1e-6, 1e3))
      ->capture_default_str();
  verb->add_option("--fit-context", o->fit_context,
                   "scale so that the longest prompt and answer have this many tokens together; "
                   "the factor is printed")
      ->check(CLI::Range(2, 1 << 24));
  verb->add_option("--seed", o->seed, "of arrivals, lengths and prompts")->capture_default_str();
}

void AddTraffic(CLI::App* verb, BenchTrafficOptions* o) {
  CLI::Option* const n = verb->add_option("--num-prompts", o->num_prompts, "requests")
                             ->check(CLI::Range(int64_t{1}, int64_t{1} << 32))
                             ->capture_default_str();
  verb->add_option("--duration", o->duration_s,
                   "seconds in which requests begin, in place of their number")
      ->check(CLI::PositiveNumber)
      ->excludes(n);
  CLI::Option* const rate =
      verb->add_option(
              "--request-rate", o->request_rate,
              "requests a second; inf: --max-concurrency clients, one request after another each")
          ->check(CLI::PositiveNumber)
          ->capture_default_str();
  verb->add_option("--request-rates", o->request_rates, "a sweep: rates, ascending")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->excludes(rate);
  verb->add_option("--slo-normalized-latency", o->slo_ms,
                   "milliseconds: a sweep ends at the first rate whose p90 of latency / output "
                   "tokens is above it, and says "
                   "which rate would reach it")
      ->check(CLI::PositiveNumber);
  verb->add_option("--burstiness", o->burstiness,
                   "shape of the gamma distribution of gaps; 1: Poisson")
      ->check(CLI::Range(1e-3, 1e6))
      ->capture_default_str();
  verb->add_option("--max-concurrency", o->max_concurrency,
                   "most requests under way at the same time")
      ->check(CLI::Range(1, 65536));
  verb->add_option("--num-warmups", o->num_warmups, "requests before, which do not count")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  verb->add_flag(
      "--ignore-eos,!--no-ignore-eos", o->ignore_eos,
      "go on behind the end of sequence, so that answers have the length asked for (the default)");
  verb->add_option("--kv", o->kv, "level of the cache, the field kv of requests to kvlathe serve");
  verb->add_option("--temperature", o->temperature, "of sampling (default: the server's)")
      ->check(CLI::Range(0.0, 100.0));
  verb->add_option("--extra-body", o->extra_body,
                   "a JSON object whose members are added to requests");
}

void AddOutput(CLI::App* verb, BenchOutputOptions* o) {
  verb->add_option("--percentile-metrics", o->percentile_metrics,
                   "of ttft, tpot, itl, e2el, client_queue_time, a list")
      ->delimiter(',');
  verb->add_option("--metric-percentiles", o->percents, "percentiles of them, a list")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0));
  verb->add_option("--goodput", o->goodput,
                   "bounds in ms that a good request keeps: ttft:200 tpot:50 e2el:3000");
  verb->add_flag("--save-result", o->save_result, "write the result to a JSON file");
  verb->add_flag("--save-detailed", o->save_detailed, "with every request's times and text");
  verb->add_option("--result-dir", o->result_dir, "its folder")->capture_default_str();
  verb->add_option("--result-filename", o->result_filename,
                   "its name (default: from label, rate, model and date)");
  verb->add_option("--label", o->label,
                   "what the result is called (default: the level, or the backend)");
  verb->add_option("--metadata", o->metadata, "KEY=VALUE, added to the result");
  verb->add_flag("--json", o->json, "one JSON object");
  verb->add_flag("--dry-run", o->dry_run, "no load: say how long prompts and answers would be");
  verb->add_option("--plot", o->plot, "no load: draw these result files, latency against rate");
  verb->add_option("--svg", o->svg, "where --plot draws");
  verb->add_option("--plot-statistic", o->plot_statistic, "of normalised latency")
      ->check(CLI::IsMember({"mean", "median", "p90", "p99"}))
      ->capture_default_str();
}

}  // namespace

std::string ServeBenchOptions::endpoint() const {
  if (!server.endpoint.empty()) return server.endpoint;
  return server.backend == "openai-chat" ? "/v1/chat/completions" : "/v1/completions";
}

std::string ServeBenchOptions::label() const {
  if (!output.label.empty()) return output.label;
  return traffic.kv.empty() ? server.backend : traffic.kv;
}

void AddServeBenchOptions(CLI::App* verb, ServeBenchOptions* options) {
  AddServer(verb, &options->server);
  AddWorkload(verb, &options->workload);
  AddTraffic(verb, &options->traffic);
  AddOutput(verb, &options->output);
}

}  // namespace kvlathe
