#include "server/audit/audit_metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <utility>

namespace kvlathe::server {

namespace {

using AuditCounters = prometheus::Family<prometheus::Counter>;
using AuditHistograms = prometheus::Family<prometheus::Histogram>;

const prometheus::Histogram::BucketBoundaries& KlBuckets() {
  static const prometheus::Histogram::BucketBoundaries buckets = {
      1e-6,  1e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01,
      0.025, 0.05, 0.1,  0.25,   0.5,  1,    2.5,    5,    10};
  return buckets;
}

const prometheus::Histogram::BucketBoundaries& PartedBuckets() {
  static const prometheus::Histogram::BucketBoundaries buckets = {0,  1,   3,   7,   15,   31,
                                                                  63, 127, 255, 511, 1023, 2047};
  return buckets;
}

}  // namespace

struct AuditMetrics::Series {
  Series(prometheus::Registry* of, std::map<std::string, std::string> on_all)
      : registry(*of), labels(std::move(on_all)) {}

  AuditCounters& Counters(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  prometheus::Gauge& Gauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
  }
  AuditHistograms& Histograms(const char* name, const char* help) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
  }
  prometheus::Labels Of(const AuditLabels& of) const {
    prometheus::Labels all = labels;
    all["kv"] = of.kv;
    if (of.rate.has_value()) all["rate"] = fmt::format("{}", *of.rate);
    return all;
  }
  prometheus::Labels With(prometheus::Labels all, const char* name, std::string_view value) const {
    all[name] = std::string(value);
    return all;
  }

  prometheus::Registry& registry;
  prometheus::Labels labels;

  prometheus::Gauge& share = Gauge("kvlathe_audit_share",
                                   "Share of ended requests, and of the busy time, that is asked "
                                   "for.");
  prometheus::Gauge& queued = Gauge("kvlathe_audit_queued", "Answers that wait for their replay.");
  prometheus::Gauge& used_bytes =
      Gauge("kvlathe_audit_bytes_used", "Bytes of KV memory that the replay holds.");
  prometheus::Gauge& budget_bytes =
      Gauge("kvlathe_audit_bytes_budget", "Bytes of KV memory that replays may hold.");
  AuditCounters& requests =
      Counters("kvlathe_audit_requests_total", "Answers that were replayed, by cache.");
  AuditCounters& skipped = Counters("kvlathe_audit_skipped_total",
                                    "Answers that were chosen and not replayed, by reason.");
  AuditCounters& positions =
      Counters("kvlathe_audit_positions_total", "Positions of answers that were compared.");
  AuditCounters& agreements =
      Counters("kvlathe_audit_agreements_total", "Of these, with the likeliest token of none.");
  AuditCounters& seconds =
      Counters("kvlathe_audit_seconds_total",
               "Time of replays: beside requests, or idle, while there were none.");
  AuditHistograms& kl =
      Histograms("kvlathe_audit_kl", "KL divergence of none to the cache at a position, in nats.");
  AuditHistograms& parted_at =
      Histograms("kvlathe_audit_parted_at",
                 "Tokens of an answer before its likeliest token is another than that of none, of "
                 "answers that have one.");
};

AuditMetrics::AuditMetrics(prometheus::Registry* registry,
                           std::map<std::string, std::string> labels, double share)
    : series_(std::make_unique<Series>(registry, std::move(labels))) {
  series_->share.Set(share);
  for (const char* when : {"beside", "idle"}) {
    series_->seconds.Add(series_->With(series_->labels, "when", when));
  }
}

AuditMetrics::~AuditMetrics() = default;

void AuditMetrics::CountAudited(const AuditLabels& of, const ReplayScore& score) {
  const prometheus::Labels labels = series_->Of(of);
  series_->requests.Add(labels).Increment();
  series_->positions.Add(labels).Increment(static_cast<double>(score.kl.size()));
  series_->agreements.Add(labels).Increment(static_cast<double>(score.n_agree));
  prometheus::Histogram& kl = series_->kl.Add(labels, KlBuckets());
  for (const double value : score.kl) kl.Observe(value);
  prometheus::Histogram& parted_at = series_->parted_at.Add(labels, PartedBuckets());
  if (score.first_parted.has_value()) parted_at.Observe(static_cast<double>(*score.first_parted));
}

void AuditMetrics::CountSkipped(const AuditLabels& of, std::string_view reason) {
  series_->skipped.Add(series_->With(series_->Of(of), "reason", reason)).Increment();
}

void AuditMetrics::CountSeconds(double seconds, bool is_beside) {
  const char* const when = is_beside ? "beside" : "idle";
  series_->seconds.Add(series_->With(series_->labels, "when", when)).Increment(seconds);
}

void AuditMetrics::SetQueued(int n_queued) { series_->queued.Set(n_queued); }

void AuditMetrics::SetBytes(int64_t n_used, int64_t n_budget) {
  series_->used_bytes.Set(static_cast<double>(n_used));
  series_->budget_bytes.Set(static_cast<double>(n_budget));
}

}  // namespace kvlathe::server
