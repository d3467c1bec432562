#include "kvlathe/bench_serve/bench_serve.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "io/files.h"
#include "kvlathe/bench_serve/serve_options.h"
#include "kvlathe/bench_serve/serve_workload.h"
#include "kvlathe/open_workspace.h"
#include "load_generation/load_run.h"
#include "load_generation/rate_sweep.h"
#include "load_generation/server_counters.h"

namespace kvlathe {
namespace {

Status Plot(const BenchOutputOptions& o) {
  if (o.svg.empty()) {
    return Error(StatusCode::kInvalidArgument, "--plot needs --svg FILE, which is drawn");
  }
  std::vector<ResultFile> files;
  for (const std::string& path : o.plot) {
    KVL_ASSIGN_OR_RETURN(nlohmann::json json, ReadJsonFile(path));
    files.push_back({path, std::move(json)});
  }
  KVL_ASSIGN_OR_RETURN(const std::string svg, PlotLatency(files, o.plot_statistic));
  KVL_RETURN_IF_ERROR(WriteFileAtomically(o.svg, svg));
  fmt::print("{}: {} files drawn\n", o.svg, files.size());
  return OkStatus();
}

Status SayLengths(const ServeBenchOptions& options) {
  KVL_ASSIGN_OR_RETURN(const BenchLengths lengths, LengthsOf(options.workload));
  if (options.output.json) {
    fmt::print("{}\n", ToJson(lengths, options.workload.dataset_name).dump());
    return OkStatus();
  }
  fmt::print("{}: every length times {:.6g}\n", options.workload.dataset_name, lengths.scale);
  for (const auto& [name, range] :
       {std::pair("prompt", lengths.input), {"answer", lengths.output}}) {
    fmt::print("{}: {:.6g} tokens on average, {} to {}\n", name, range.mean, range.min, range.max);
  }
  return OkStatus();
}

// One server and its load, at one rate or several.
class ServeBench {
 public:
  explicit ServeBench(const ServeBenchOptions& options) : o_(options) {}

  Status Run() {
    KVL_RETURN_IF_ERROR(Check());
    KVL_RETURN_IF_ERROR(OpenServer());
    return o_.traffic.request_rates.empty() ? RunOne() : RunSweep();
  }

 private:
  Status Check() {
    KVL_RETURN_IF_ERROR(CheckPercentileMetrics(o_.output.percentile_metrics));
    KVL_ASSIGN_OR_RETURN(bounds_, GoodputBounds::Parse(o_.output.goodput));
    const BenchTrafficOptions& t = o_.traffic;
    if (!std::ranges::is_sorted(t.request_rates)) {
      return Error(StatusCode::kInvalidArgument, "--request-rates must ascend");
    }
    const bool has_rate = std::isfinite(t.request_rate) || !t.request_rates.empty();
    if (t.duration_s > 0 && !has_rate && t.max_concurrency == 0) {
      return Error(StatusCode::kInvalidArgument,
                   "--duration needs --max-concurrency or --request-rate");
    }
    for (const std::string& item : o_.output.metadata) {
      if (item.find('=') == std::string::npos) {
        return Error(StatusCode::kInvalidArgument, "--metadata {}: not KEY=VALUE", item);
      }
    }
    if (!t.extra_body.empty()) {
      target_.style.extra_body = nlohmann::json::parse(t.extra_body, nullptr, false);
      if (!target_.style.extra_body.is_object()) {
        return Error(StatusCode::kInvalidArgument, "--extra-body: not a JSON object");
      }
    }
    return OkStatus();
  }

  Status OpenServer() {
    const BenchServerOptions& s = o_.server;
    const bool is_v6 = s.host.find(':') != std::string::npos;
    const std::string url =
        !s.base_url.empty()
            ? s.base_url
            : fmt::format("http://{}:{}", is_v6 ? "[" + s.host + "]" : s.host, s.port);
    KVL_ASSIGN_OR_RETURN(target_.server, ServerAddress::Parse(url));
    target_.endpoint = o_.endpoint();
    const char* const key = std::getenv("OPENAI_API_KEY");
    target_.api_key = !s.api_key.empty() ? s.api_key : key != nullptr ? key : "";
    target_.timeout_s = s.timeout_s;
    target_.style.is_chat = o_.is_chat();
    target_.style.kv = o_.traffic.kv;
    target_.style.ignore_eos = o_.traffic.ignore_eos;
    target_.style.temperature = o_.traffic.temperature;
    target_.style.model = s.model;
    asked_ = {target_.server, target_.api_key};
    if (s.model.empty()) {
      KVL_ASSIGN_OR_RETURN(target_.style.model, FirstModel(asked_, s.ready_check_timeout_s));
    }
    return OkStatus();
  }

  // The numbers of requests at a rate: as asked for, or as many as arrive in the duration.
  int64_t RequestsAt(double rate) const {
    if (o_.traffic.duration_s == 0 || !std::isfinite(rate)) return o_.traffic.num_prompts;
    return std::max<int64_t>(1, std::llround(rate * o_.traffic.duration_s));
  }

  // `n_requests` of the workload at a rate, from the request of number `first` on.
  StatusOr<LoadRecords> Load(const Workload& workload, double rate, int64_t n_requests,
                             int64_t first, bool is_warmup) {
    LoadOptions load;
    load.arrivals = {rate, o_.traffic.burstiness, o_.workload.seed};
    load.n_requests = n_requests;
    if (!std::isfinite(rate) && !is_warmup) load.duration_s = o_.traffic.duration_s;
    load.max_concurrency = o_.traffic.max_concurrency;
    load.first_index = first;
    const std::string what = std::isfinite(rate)
                                 ? fmt::format("{} requests at {:g} a second", n_requests, rate)
                                 : fmt::format("{} requests", n_requests);
    if (load.duration_s == 0) {
      load.on_ended = [progress = TerminalProgress(), what, n_requests](int64_t n_ended) {
        progress(what, static_cast<double>(n_ended) / static_cast<double>(n_requests));
      };
    }
    return RunLoad(target_, workload, load);
  }

  // Everything about one rate. `seed_step` makes the prompts of a sweep's rates differ.
  StatusOr<nlohmann::json> Measure(double rate, uint64_t seed_step) {
    KVL_ASSIGN_OR_RETURN(BenchWorkload made, MakeBenchWorkload(o_, asked_, target_.style.model,
                                                               o_.workload.seed + seed_step));
    if (seed_step == 0 && made.scale != 1) {
      fmt::print(stderr, "kvlathe: note: every length is times {:.6g}\n", made.scale);
    }
    if (o_.traffic.num_warmups > 0) {
      KVL_RETURN_IF_ERROR(Load(*made.workload, INFINITY, o_.traffic.num_warmups, 0, true).status());
    }
    const ServerCounters before = ReadServerCounters(asked_.address, asked_.api_key);
    KVL_ASSIGN_OR_RETURN(const LoadRecords records, Load(*made.workload, rate, RequestsAt(rate),
                                                         o_.traffic.num_warmups, false));
    const ServerCounters after = ReadServerCounters(asked_.address, asked_.api_key);
    metrics_ = MetricsOf(records, o_.output.percents, bounds_);
    SayErrors(records);
    nlohmann::json json = Header(rate);
    json["num_prompts"] = records.requests.size();
    json.update(made.description);
    json.update(ToJson(metrics_, Report(rate)));
    json["reconnected"] = records.n_reconnected;
    json["server"] = CountersJson(before, after);
    if (o_.output.save_detailed) json.update(DetailsOf(records));
    return json;
  }

  ReportOptions Report(double rate) const {
    return {o_.output.percentile_metrics, o_.output.percents, o_.traffic.max_concurrency, rate};
  }

  nlohmann::json Header(double rate) const {
    nlohmann::json json = {
        {"date", Date()},
        {"endpoint_type", o_.server.backend},
        {"backend", o_.server.backend},
        {"endpoint", target_.endpoint},
        {"label", o_.label()},
        {"model_id", target_.style.model},
        {"tokenizer_id", target_.style.model},
        {"burstiness", o_.traffic.burstiness},
        {"kv", o_.traffic.kv},
    };
    json["request_rate"] = std::isfinite(rate) ? nlohmann::json(rate) : nlohmann::json("inf");
    json["max_concurrency"] = o_.traffic.max_concurrency > 0
                                  ? nlohmann::json(o_.traffic.max_concurrency)
                                  : nlohmann::json();
    for (const std::string& item : o_.output.metadata) {
      const size_t equals = item.find('=');
      json[item.substr(0, equals)] = item.substr(equals + 1);
    }
    return json;
  }

  static std::string Date() {
    return fmt::format("{:%Y%m%d-%H%M%S}", fmt::localtime(std::time(nullptr)));
  }

  static nlohmann::json CountersJson(const ServerCounters& before, const ServerCounters& after) {
    const auto growth = [](const std::optional<double>& from, const std::optional<double>& to) {
      return to.has_value() ? nlohmann::json(*to - from.value_or(0)) : nlohmann::json();
    };
    nlohmann::json json = {
        {"preemptions", growth(before.preemptions, after.preemptions)},
        {"prefix_cache_hit_tokens", growth(before.prefix_hits, after.prefix_hits)},
        {"mean_queue_time_ms", nullptr}};
    const nlohmann::json seconds = growth(before.queue_seconds, after.queue_seconds);
    const nlohmann::json count = growth(before.queue_count, after.queue_count);
    if (seconds.is_number() && count.is_number() && count.get<double>() > 0) {
      json["mean_queue_time_ms"] = 1000 * seconds.get<double>() / count.get<double>();
    }
    return json;
  }

  // The first error of each kind, on standard error.
  void SayErrors(const LoadRecords& records) const {
    for (const auto& [kind, count] : metrics_.errors) {
      const auto first = std::ranges::find(records.requests, kind, &RequestRecord::error_kind);
      fmt::print(stderr, "kvlathe: note: {} of {} requests failed ({}): {}\n", count,
                 records.requests.size(), kind, first->error);
    }
  }

  Status NoneSucceeded() const {
    return Error(StatusCode::kInternal, "no request succeeded; the server is {}{}",
                 target_.server.HostHeader(), target_.endpoint);
  }

  Status Save(const nlohmann::json& json, const std::string& rate) const {
    if (!o_.output.save_result && !o_.output.save_detailed) return OkStatus();
    std::string name = o_.output.result_filename;
    if (name.empty()) {
      const std::string& model = target_.style.model;
      name = fmt::format("{}-{}qps-{}-{}.json", o_.label(), rate,
                         model.substr(model.rfind('/') + 1), Date());
      std::ranges::replace(name, '/', '_');
    }
    std::error_code error;
    std::filesystem::create_directories(o_.output.result_dir, error);
    const std::string path = (std::filesystem::path(o_.output.result_dir) / name).string();
    KVL_RETURN_IF_ERROR(WriteFileAtomically(path, json.dump() + "\n"));
    fmt::print(stderr, "kvlathe: note: the result is in {}\n", path);
    return OkStatus();
  }

  Status RunOne() {
    const double rate = o_.traffic.request_rate;
    KVL_ASSIGN_OR_RETURN(const nlohmann::json json, Measure(rate, 0));
    if (o_.output.json) {
      fmt::print("{}\n", json.dump());
    } else if (metrics_.completed > 0) {
      fmt::print("{}", ToText(metrics_, Report(rate)));
    }
    KVL_RETURN_IF_ERROR(Save(json, fmt::format("{:g}", rate)));
    return metrics_.completed == 0 ? NoneSucceeded() : OkStatus();
  }

  Status RunSweep() {
    const double bound = o_.traffic.slo_ms;
    std::vector<RatePoint> points;
    nlohmann::json runs = nlohmann::json::array();
    for (const double rate : o_.traffic.request_rates) {
      KVL_ASSIGN_OR_RETURN(nlohmann::json run, Measure(rate, points.size()));
      runs.push_back(std::move(run));
      points.push_back({rate, metrics_.p90_normalized_of_all_ms});
      if (!o_.output.json) fmt::print("{}", ToText(metrics_, Report(rate)));
      const bool keeps = points.back().p90_ms.has_value() && *points.back().p90_ms <= bound;
      if (bound > 0 && !keeps) break;
    }
    nlohmann::json json = {{"label", o_.label()},
                           {"date", Date()},
                           {"model_id", target_.style.model},
                           {"kv", o_.traffic.kv}};
    if (bound > 0) {
      const ServedRate served = ServedRateOf(points, bound);
      json["slo_normalized_latency_ms"] = bound;
      json["request_rate_at_slo"] = served.rate;
      json["request_rate_at_slo_is"] = ToString(served.kind);
      if (!o_.output.json) {
        fmt::print("Request rate at p90 normalized latency {:g} ms: {}{:.4g} req/s\n", bound,
                   served.kind == ServedRate::Kind::kBetween
                       ? ""
                       : std::string(ToString(served.kind)) + " ",
                   served.rate);
      }
    }
    const bool has_any =
        std::ranges::any_of(runs, [](const auto& run) { return run["completed"] > 0; });
    json["runs"] = std::move(runs);
    if (o_.output.json) fmt::print("{}\n", json.dump());
    KVL_RETURN_IF_ERROR(Save(json, "sweep"));
    return has_any ? OkStatus() : NoneSucceeded();
  }

  const ServeBenchOptions& o_;
  GoodputBounds bounds_;
  LoadTarget target_;
  AskedServer asked_;
  LoadMetrics metrics_;  // of the last rate
};

}  // namespace

void AddServeBench(CLI::App* bench, Verbs* verbs) {
  auto options = std::make_shared<ServeBenchOptions>();
  CLI::App* verb = bench->add_subcommand(
      "serve", "Load on a server with OpenAI's API, in the terms of vllm bench serve");
  verb->footer(
      "Example: kvlathe bench serve --dataset-name imdb --request-rate 2 --num-prompts 100 "
      "--max-concurrency 16");
  AddServeBenchOptions(verb, options.get());
  verb->callback([verbs, options] {
    verbs->chosen = [options] {
      if (!options->output.plot.empty()) return Plot(options->output);
      if (options->output.dry_run) return SayLengths(*options);
      return ServeBench(*options).Run();
    };
  });
}

}  // namespace kvlathe
