#include "server/prefill/prefill_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <utility>

namespace kvlathe::server {

namespace {

using PromptLabels = std::map<std::string, std::string>;

// What both roles count.
struct TravelSeries {
  prometheus::Family<prometheus::Counter>& CounterFamily(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  prometheus::Counter& Counter(const char* name, const char* help) {
    return CounterFamily(name, help).Add(labels);
  }
  prometheus::Histogram& Seconds(const char* name, const char* help) {
    static const prometheus::Histogram::BucketBoundaries buckets = {
        0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels,
                                                                                     buckets);
  }
  PromptLabels With(const std::string& name, std::string_view value) const {
    PromptLabels all = labels;
    all[name] = value;
    return all;
  }

  prometheus::Registry& registry;
  PromptLabels labels;
};

}  // namespace

struct AskedPromptMetrics::Series {
  TravelSeries add;
  prometheus::Counter& read = add.Counter("kvlathe_remote_prompts_read_total",
                                          "Prompts that another machine read for a request.");
  prometheus::Counter& tokens =
      add.Counter("kvlathe_remote_prompt_tokens_total", "Tokens of these prompts.");
  prometheus::Counter& bytes = add.Counter("kvlathe_remote_prompt_bytes_total",
                                           "Bytes that prefill replicas sent, failed streams too.");
  prometheus::Family<prometheus::Counter>& failed =
      add.CounterFamily("kvlathe_remote_prompts_failed_total",
                        "Attempts to have a prompt read elsewhere that failed, by reason.");
  prometheus::Histogram& seconds =
      add.Seconds("kvlathe_remote_prompt_seconds",
                  "From the question for a prompt until all of its cache was here.");
};

AskedPromptMetrics::AskedPromptMetrics(prometheus::Registry* registry, PromptLabels labels)
    : series_(new Series{.add = {*registry, std::move(labels)}}) {
  for (const std::string_view reason : kAttemptReasons) {
    series_->failed.Add(series_->add.With("reason", reason));
  }
}

AskedPromptMetrics::~AskedPromptMetrics() = default;

void AskedPromptMetrics::Count(const PromptAttempt& attempt) {
  const bool was_read = attempt.reason.empty();
  // What came and could not be used was counted when it came.
  if (attempt.reason != "unused") series_->bytes.Increment(static_cast<double>(attempt.n_bytes));
  if (!was_read) {
    return series_->failed.Add(series_->add.With("reason", attempt.reason)).Increment();
  }
  series_->read.Increment();
  series_->tokens.Increment(static_cast<double>(attempt.n_tokens));
  series_->seconds.Observe(attempt.seconds);
}

struct SentPromptMetrics::Series {
  TravelSeries add;
  prometheus::Family<prometheus::Counter>& sent =
      add.CounterFamily("kvlathe_sent_prompts_total",
                        "Prompts that were read for decode replicas, by the status of the answer.");
  prometheus::Counter& tokens =
      add.Counter("kvlathe_sent_prompt_tokens_total", "Tokens of these prompts.");
  prometheus::Counter& bytes =
      add.Counter("kvlathe_sent_prompt_bytes_total", "Bytes of their caches.");
  prometheus::Histogram& seconds = add.Seconds(
      "kvlathe_sent_prompt_seconds", "From the question for a prompt to the end of its stream.");
};

SentPromptMetrics::SentPromptMetrics(prometheus::Registry* registry, PromptLabels labels)
    : series_(new Series{.add = {*registry, std::move(labels)}}) {
  series_->sent.Add(series_->add.With("status", "200"));
}

SentPromptMetrics::~SentPromptMetrics() = default;

void SentPromptMetrics::Count(const SentPrompt& sent) {
  const std::string status = std::to_string(sent.http_status);
  series_->sent.Add(series_->add.With("status", status)).Increment();
  series_->tokens.Increment(static_cast<double>(sent.n_tokens));
  series_->bytes.Increment(static_cast<double>(sent.n_bytes));
  series_->seconds.Observe(sent.seconds);
}

}  // namespace kvlathe::server
