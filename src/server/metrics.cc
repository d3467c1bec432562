#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "format/rows/block_layout.h"

namespace kvlathe::server {

namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

// Seconds: from a step of a small model to a request that writes a book.
const Buckets& LatencyBuckets() {
  static const Buckets buckets = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                  1,     2.5,    5,     10,   30,    60,   120, 300,  1200};
  return buckets;
}

const Buckets& TokenBuckets() {
  static const Buckets buckets = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
  return buckets;
}

}  // namespace

struct ServerMetrics::Series {
  explicit Series(const std::string& model_name) : labels{{"model_name", model_name}} {}

  Gauge& AddGauge(const std::string& name, const std::string& help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
  }
  Counter& AddCounter(const std::string& name, const std::string& help) {
    return CounterFamily(name, help).Add(labels);
  }
  Family<Counter>& CounterFamily(const std::string& name, const std::string& help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  Histogram& AddHistogram(const std::string& name, const std::string& help,
                          const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels,
                                                                                     buckets);
  }
  std::map<std::string, std::string> With(const std::string& name, std::string_view value) const {
    std::map<std::string, std::string> all = labels;
    all[name] = value;
    return all;
  }

  std::map<std::string, std::string> labels;
  prometheus::Registry registry;

  Gauge& running = AddGauge("vllm:num_requests_running", "Requests that the engine runs.");
  Gauge& waiting = AddGauge("vllm:num_requests_waiting", "Requests that wait to be admitted.");
  Gauge& usage = AddGauge("vllm:kv_cache_usage_perc",
                          "KV memory that requests use, from 0 to 1; what is only stored is free.");
  Gauge& used_bytes = AddGauge("kvlathe_kv_bytes_used", "Bytes of KV memory that requests use.");
  Gauge& stored_bytes =
      AddGauge("kvlathe_kv_bytes_stored",
               "Bytes of KV memory that only stored prefixes hold; requests take them if need be.");
  Gauge& reference_bytes =
      AddGauge("kvlathe_kv_bytes_uncompressed",
               "Bytes that the positions of running requests would take in 16-bit caches.");
  Family<Gauge>& kind_bytes =
      prometheus::BuildGauge()
          .Name("kvlathe_kv_bytes_by_kind")
          .Help(
              "Bytes of the caches of running requests, each by itself, by what they are spent "
              "on.")
          .Register(registry);
  Gauge& reserved_bytes =
      AddGauge("kvlathe_kv_bytes_reserved", "Bytes of KV memory that the process holds.");
  Gauge& budget_bytes = AddGauge("kvlathe_kv_bytes_budget", "Bytes of KV memory that may be used.");
  Gauge& queued_prompt = AddGauge("kvlathe_queued_prompt_tokens",
                                  "Prompt tokens of requests that have no first token yet.");
  Gauge& outstanding = AddGauge("kvlathe_outstanding_tokens",
                                "Prompt tokens to read and tokens expected to be generated.");
  Gauge& disk_files =
      AddGauge("kvlathe_prefix_disk_files", "Files of stored prefixes that can be read.");
  Gauge& disk_bytes = AddGauge("kvlathe_prefix_disk_bytes", "Bytes of these files.");
  Gauge& connections = AddGauge("kvlathe_http_connections", "Open connections.");

  Counter& preemptions =
      AddCounter("vllm:num_preemptions_total", "Times that a request gave up its cache.");
  Counter& pressed =
      AddCounter("kvlathe_kv_pressed_tokens_total",
                 "Positions of caches that were compressed further because memory was short.");
  Counter& drafted =
      AddCounter("vllm:spec_decode_num_draft_tokens_total", "Drafted tokens that were checked.");
  Counter& accepted = AddCounter("vllm:spec_decode_num_accepted_tokens_total",
                                 "Drafted tokens that were generated.");
  Counter& prefix_queries =
      AddCounter("vllm:prefix_cache_queries_total", "Prompt tokens that were looked for in store.");
  Counter& prefix_hits = AddCounter("vllm:prefix_cache_hits_total",
                                    "Prompt tokens that were stored and not computed.");
  Counter& disk_read =
      AddCounter("kvlathe_prefix_disk_read_total", "Files that were read for a request.");
  Counter& disk_written =
      AddCounter("kvlathe_prefix_disk_written_total", "Files of prefixes that were written.");
  Counter& disk_ignored =
      AddCounter("kvlathe_prefix_disk_ignored_total",
                 "Files that were torn, foreign or unreadable, and left alone.");
  Counter& disk_failed = AddCounter("kvlathe_prefix_disk_failed_total",
                                    "Files that could not be written, as on a full disk.");
  Counter& disk_lost = AddCounter("kvlathe_prefix_disk_lost_total",
                                  "Prefixes that memory gave up before they were written.");
  Counter& prompt_tokens =
      AddCounter("vllm:prompt_tokens_total", "Prompt tokens of ended requests.");
  Counter& generated = AddCounter("vllm:generation_tokens_total", "Generated tokens.");
  Counter& computed = AddCounter("kvlathe_prefill_tokens_total",
                                 "Prompt tokens computed, with those computed again.");
  Counter& failed_steps = AddCounter("kvlathe_failed_steps_total", "Steps that failed as a whole.");
  Family<Counter>& ended =
      CounterFamily("vllm:request_success_total", "Requests that ended, by finished_reason.");
  Family<Counter>& answers =
      CounterFamily("kvlathe_http_answers_total", "Answers of HTTP, by route and status.");

  Histogram& ttft = AddHistogram("vllm:time_to_first_token_seconds",
                                 "From a request's arrival to its first token.", LatencyBuckets());
  Histogram& itl = AddHistogram("vllm:inter_token_latency_seconds",
                                "Between two tokens of a request.", LatencyBuckets());
  Histogram& e2e = AddHistogram("vllm:e2e_request_latency_seconds",
                                "From a request's arrival to its end.", LatencyBuckets());
  Histogram& queue = AddHistogram("vllm:request_queue_time_seconds",
                                  "From a request's arrival to its admission.", LatencyBuckets());
  Histogram& decode = AddHistogram("vllm:request_decode_time_seconds",
                                   "From a request's first token to its end.", LatencyBuckets());
  Histogram& step_tokens =
      AddHistogram("vllm:iteration_tokens_total", "Tokens in one step.", TokenBuckets());
  Histogram& step = AddHistogram("kvlathe_step_seconds", "Time of one step.", LatencyBuckets());
};

ServerMetrics::ServerMetrics(const std::string& model_name, const std::string& device,
                             int64_t kv_budget_bytes, int64_t positions_budget)
    : series_(std::make_unique<Series>(model_name)) {
  series_->budget_bytes.Set(static_cast<double>(kv_budget_bytes));
  prometheus::Labels config = series_->labels;
  config["block_size"] = std::to_string(kBlockSize);
  config["num_gpu_blocks"] = std::to_string(positions_budget / kBlockSize);
  prometheus::BuildGauge()
      .Name("vllm:cache_config_info")
      .Help("Positions in a block, and blocks of a sequence that the budget holds.")
      .Register(series_->registry)
      .Add(config)
      .Set(1);
  prometheus::Labels runs_on = series_->labels;
  runs_on["device"] = device;
  prometheus::BuildGauge()
      .Name("kvlathe_device_info")
      .Help("What the model runs on.")
      .Register(series_->registry)
      .Add(runs_on)
      .Set(1);
  // Series that are there from the beginning are zero, not missing, before the first request.
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    series_->ended.Add(series_->With("finished_reason", reason));
  }
  SetByteKinds({});
}

ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::CountAdmitted(double queue_ms) { series_->queue.Observe(queue_ms / 1e3); }

void ServerMetrics::CountPreempted() { series_->preemptions.Increment(); }

void ServerMetrics::CountPressed(int64_t n_positions) {
  series_->pressed.Increment(static_cast<double>(n_positions));
}

void ServerMetrics::CountDrafted(int n_checked, int n_accepted) {
  series_->drafted.Increment(n_checked);
  series_->accepted.Increment(n_accepted);
}

void ServerMetrics::CountPrefix(int n_prompt, int n_stored) {
  series_->prefix_queries.Increment(n_prompt);
  series_->prefix_hits.Increment(n_stored);
}

void ServerMetrics::CountStep(const StepWork& work, double seconds, bool failed) {
  series_->computed.Increment(work.n_fill_tokens);
  series_->step_tokens.Observe(work.n_fill_tokens + work.n_decode_tokens);
  series_->step.Observe(seconds);
  if (failed) series_->failed_steps.Increment();
}

void ServerMetrics::CountFirstToken(double ttft_ms) { series_->ttft.Observe(ttft_ms / 1e3); }

void ServerMetrics::CountToken() { series_->generated.Increment(); }

void ServerMetrics::CountTokenAfter(double seconds_since_last) {
  series_->itl.Observe(seconds_since_last);
}

void ServerMetrics::CountEnded(const Ended& ended) {
  series_->ended.Add(series_->With("finished_reason", ended.finish_reason)).Increment();
  series_->prompt_tokens.Increment(ended.n_prompt_tokens);
  series_->e2e.Observe(ended.e2e_seconds);
  if (ended.ttft_seconds > 0) series_->decode.Observe(ended.e2e_seconds - ended.ttft_seconds);
}

void ServerMetrics::CountAnswer(std::string_view route, int status) {
  prometheus::Labels labels = series_->With("route", route);
  labels["status"] = std::to_string(status);
  series_->answers.Add(labels).Increment();
}

void ServerMetrics::SetUsage(const PoolUsage& usage) {
  series_->used_bytes.Set(static_cast<double>(usage.needed_bytes()));
  series_->reserved_bytes.Set(static_cast<double>(usage.reserved_bytes));
  series_->stored_bytes.Set(static_cast<double>(usage.kept_bytes));
  series_->usage.Set(static_cast<double>(usage.needed_bytes()) /
                     static_cast<double>(usage.budget_bytes));
}

void ServerMetrics::SetByteKinds(const ByteKinds& kinds) {
  for (const auto& [name, member] : kByteKinds) {
    series_->kind_bytes.Add(series_->With("kind", name)).Set(static_cast<double>(kinds.*member));
  }
}

void ServerMetrics::SetReferenceBytes(int64_t n_bytes) {
  series_->reference_bytes.Set(static_cast<double>(n_bytes));
}

void ServerMetrics::SetRequests(int n_running, int n_waiting) {
  series_->running.Set(n_running);
  series_->waiting.Set(n_waiting);
}

void ServerMetrics::SetLoad(const QueueLoad& load) {
  series_->queued_prompt.Set(static_cast<double>(load.n_prompt_tokens));
  series_->outstanding.Set(static_cast<double>(load.total()));
}

void ServerMetrics::SetArchive(const ArchiveStats& stats) {
  series_->disk_files.Set(static_cast<double>(stats.n_files));
  series_->disk_bytes.Set(static_cast<double>(stats.n_bytes));
  const auto raise_to = [](Counter& counter, int64_t n) {
    counter.Increment(static_cast<double>(n) - counter.Value());
  };
  raise_to(series_->disk_read, stats.n_read);
  raise_to(series_->disk_written, stats.n_written);
  raise_to(series_->disk_ignored, stats.n_ignored);
  raise_to(series_->disk_failed, stats.n_failed_writes);
  raise_to(series_->disk_lost, stats.n_lost);
}

void ServerMetrics::SetConnections(int n_connections) { series_->connections.Set(n_connections); }

prometheus::Registry* ServerMetrics::registry() { return &series_->registry; }

const std::map<std::string, std::string>& ServerMetrics::labels() const { return series_->labels; }

std::string ServerMetrics::Serialize() const {
  return prometheus::TextSerializer().Serialize(series_->registry.Collect());
}

}  // namespace kvlathe::server
