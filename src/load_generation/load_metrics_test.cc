#include "load_generation/load_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "load_generation/load_report.h"

namespace kvlathe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// A request whose `n` tokens come every `gap` seconds, the first after `ttft`.
RequestRecord Record(double start, double ttft, double gap, int n, double arrival = -1) {
  RequestRecord record;
  record.arrival_s = arrival < 0 ? start : arrival;
  record.start_s = start;
  record.ttft_s = ttft;
  record.itl_s.assign(static_cast<size_t>(n - 1), gap);
  record.latency_s = ttft + gap * (n - 1);
  record.n_input = 10;
  record.n_output = record.n_asked = n;
  record.is_counted_by_server = true;
  return record;
}

RequestRecord Failed(const std::string& kind) {
  RequestRecord record;
  record.error_kind = kind;
  record.error = "why";
  return record;
}

TEST(PercentileTest, IsLinearBetweenValues) {
  EXPECT_EQ(PercentileOf({4, 1, 3, 2}, 50), 2.5);
  EXPECT_NEAR(PercentileOf({1, 2, 3, 4}, 90), 3.7, 1e-12);
  EXPECT_EQ(PercentileOf({5}, 99), 5);
  EXPECT_EQ(PercentileOf({}, 99), 0);
  EXPECT_EQ(PercentileOf({1, 2, 3}, 100), 3);
}

TEST(LoadMetricsTest, OfATimelineByHand) {
  // Two requests at the same time, 5 and 3 tokens; the second waited 1 s in the client.
  LoadRecords records{{Record(0, 0.5, 0.1, 5), Record(1, 0.2, 0.3, 3, 0)}, 2};
  const double percents[] = {50, 99};
  const LoadMetrics m = MetricsOf(records, percents, {});
  EXPECT_EQ(m.completed, 2);
  EXPECT_EQ(m.failed, 0);
  EXPECT_EQ(m.total_input, 20);
  EXPECT_EQ(m.total_output, 8);
  EXPECT_EQ(m.request_throughput, 1);
  EXPECT_EQ(m.output_throughput, 4);
  EXPECT_EQ(m.total_token_throughput, 14);
  EXPECT_FALSE(m.request_goodput.has_value());
  EXPECT_NEAR(m.ttft.mean, 350, 1e-9);
  EXPECT_NEAR(m.ttft.median, 350, 1e-9);
  EXPECT_NEAR(m.ttft.std, 150, 1e-9);
  EXPECT_NEAR(m.ttft.percentiles[1], 497, 1e-9);
  EXPECT_NEAR(m.tpot.mean, 200, 1e-9);                      // 100 and 300
  EXPECT_NEAR(m.itl.mean, 1000.0 / 6, 1e-9);                // 4 x 100, 2 x 300
  EXPECT_NEAR(m.e2el.mean, 850, 1e-9);                      // 900 and 800
  EXPECT_NEAR(m.client_queue.mean, 500, 1e-9);              // 0 and 1000
  EXPECT_NEAR(m.normalized.mean, (180 + 600) / 2.0, 1e-9);  // 900 / 5, 1800 / 3
  EXPECT_NEAR(m.normalized.percentiles[0], 180 + 0.9 * 420, 1e-9);
  EXPECT_NEAR(*m.p90_normalized_of_all_ms, 180 + 0.9 * 420, 1e-9);
  EXPECT_EQ(m.max_output_tokens_per_s,
            5);  // all of the first in second 0, those of the other in second 1
  EXPECT_EQ(m.max_concurrent_requests, 1);
}

TEST(LoadMetricsTest, PeaksAreOfTheBusiestMoment) {
  LoadRecords records{{Record(0, 0.5, 0.25, 3), Record(0.5, 0.1, 0.1, 4), Record(1, 0.1, 0.1, 2)},
                      2};
  const LoadMetrics m = MetricsOf(records, {}, {});
  EXPECT_EQ(m.max_concurrent_requests, 2);  // the first ends at 1, where the third begins
  EXPECT_EQ(m.max_output_tokens_per_s, 6);
}

TEST(LoadMetricsTest, FailedRequestsAreCountedByKindAndAreInfinitelySlow) {
  LoadRecords records;
  for (int i = 0; i < 8; ++i) records.requests.push_back(Record(i, 0.1, 0.1, 2));
  records.requests.push_back(Failed("http 429"));
  records.duration_s = 10;
  LoadMetrics m = MetricsOf(records, {}, {});
  EXPECT_EQ(m.completed, 8);
  EXPECT_FALSE(m.p90_normalized_of_all_ms.has_value());  // one in nine
  EXPECT_NEAR(m.normalized.percentiles[0], 100, 1e-9);
  for (int i = 0; i < 8; ++i) records.requests.push_back(Record(i, 0.1, 0.1, 2));
  m = MetricsOf(records, {}, {});
  EXPECT_NEAR(*m.p90_normalized_of_all_ms, 100, 1e-9);  // one in seventeen
  records.requests.push_back(Failed("timeout"));
  records.requests.push_back(Failed("http 429"));
  m = MetricsOf(records, {}, {});
  EXPECT_EQ(m.failed, 3);
  EXPECT_THAT(m.errors, ElementsAre(std::pair("http 429", 2), std::pair("timeout", 1)));
}

TEST(LoadMetricsTest, GoodputKeepsEveryBound) {
  const std::string texts[] = {"ttft:300", "tpot:150"};
  const auto bounds = GoodputBounds::Parse(texts);
  ASSERT_TRUE(bounds.ok());
  // Late first token; good; slow tokens; one token has no time by token.
  LoadRecords records{{Record(0, 0.4, 0.1, 3), Record(0, 0.2, 0.1, 3), Record(0, 0.2, 0.2, 3),
                       Record(0, 0.2, 0.2, 1)},
                      4};
  EXPECT_EQ(MetricsOf(records, {}, *bounds).request_goodput, 0.5);
  for (const std::string text :
       {"ttft", "ttft:", "ttft:x", "itl:5", "e2el:-1", "tpot:1s", "ttft:nan"}) {
    EXPECT_THAT(MessageOf(GoodputBounds::Parse(std::span(&text, 1)).status()), HasSubstr(text))
        << text;
  }
}

TEST(LoadMetricsTest, ShortAnswersAndCountsByPiecesAreSaid) {
  RequestRecord record = Record(0, 0.1, 0.1, 3);
  record.n_asked = 4;
  record.is_counted_by_server = false;
  const LoadMetrics m = MetricsOf({{record}, 1}, {}, {});
  EXPECT_EQ(m.n_short, 1);
  EXPECT_THAT(ToText(m, {.percents = {}}), HasSubstr("Output tokens are pieces of text"));
  EXPECT_EQ(ToJson(m, {.percents = {}})["tokens_counted_by"], "pieces of text");
}

TEST(LoadReportTest, HasTheKeysAndLinesOfVllm) {
  const double percents[] = {99, 99.9};
  LoadRecords records{{Record(0, 0.5, 0.1, 5)}, 2};
  const ReportOptions options{{"ttft", "e2el"}, {99, 99.9}, 16, 2.5};
  const LoadMetrics m = MetricsOf(records, percents, {});
  const nlohmann::json json = ToJson(m, options);
  for (const char* key :
       {"duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
        "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
        "max_output_tokens_per_s", "max_concurrent_requests", "mean_ttft_ms", "median_ttft_ms",
        "std_ttft_ms", "p99_ttft_ms", "p99.9_ttft_ms", "mean_e2el_ms", "p90_normalized_latency_ms",
        "p99_normalized_latency_ms"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_FALSE(json.contains("mean_itl_ms"));
  EXPECT_TRUE(json["request_goodput"].is_null());
  const std::string text = ToText(m, options);
  EXPECT_THAT(text, HasSubstr("============ Serving Benchmark Result ============\n"
                              "Successful requests:                     1         \n"));
  EXPECT_THAT(text, HasSubstr("Maximum request concurrency:             16        \n"
                              "Request rate configured (RPS):           2.50      \n"));
  EXPECT_THAT(text, HasSubstr("---------------Time to First Token----------------\n"
                              "Mean TTFT (ms):                          500.00    \n"));
  EXPECT_THAT(text, HasSubstr("P99.9 TTFT (ms):"));
  EXPECT_THAT(text, Not(HasSubstr("ITL")));
  const nlohmann::json details = DetailsOf(records);
  for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times",
                          "queue_times", "generated_texts", "errors"}) {
    EXPECT_EQ(details[key].size(), 1u) << key;
  }
  EXPECT_TRUE(CheckPercentileMetrics({"ttft", "client_queue_time"}).ok());
  EXPECT_THAT(MessageOf(CheckPercentileMetrics({"latency"})), HasSubstr("no 'latency'"));
}

}  // namespace
}  // namespace kvlathe
