#include "evaluation/bench/bench_scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "base/random.h"
#include "engine/engine.h"

namespace kvlathe {
namespace {

using Clock = std::chrono::steady_clock;

double Microseconds(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

// The value of which `share` of the values are smaller.
double QuantileOf(std::vector<double> values, double share) {
  const double place = share * static_cast<double>(values.size());
  const auto at = values.begin() + std::min(std::ssize(values) - 1, static_cast<ptrdiff_t>(place));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

double MedianOf(std::vector<double> values) { return QuantileOf(std::move(values), 0.5); }

// When the parts of the last step began and ended.
class StepTimes : public EngineObserver {
 public:
  void OnStepBegan(const StepWork& work, const EngineLoad&) override {
    work_ = work;
    computed_.reset();
    began_ = Clock::now();
    n_began_.fetch_add(1, std::memory_order_release);
  }
  void OnFirstToken(RequestId, double) override { NoteComputed(); }
  void OnToken(RequestId, int32_t) override { NoteComputed(); }
  void OnStepEnded(const StepWork&, const EngineLoad&, double, const Status&) override {
    ended_ = Clock::now();
    NoteComputed();
  }

  const StepWork& work() const { return work_; }
  Clock::time_point began() const { return began_; }
  Clock::time_point computed() const { return *computed_; }
  Clock::time_point ended() const { return ended_; }
  int n_began() const { return n_began_.load(std::memory_order_acquire); }

 private:
  // The first token is told when the model has computed, and one token was chosen.
  void NoteComputed() {
    if (!computed_) computed_ = Clock::now();
  }

  StepWork work_;
  Clock::time_point began_, ended_;
  std::optional<Clock::time_point> computed_;
  std::atomic<int> n_began_ = 0;
};

Request RandomRequest(const Model& model, int n_prompt, int max_tokens, Random* random) {
  Request request;
  request.max_tokens = max_tokens;
  for (int i = 0; i < n_prompt; ++i) {
    request.prompt.push_back(static_cast<int32_t>(random->Below(model.config().vocab_size)));
  }
  return request;
}

Status MeasureSteps(Model* model, int64_t kv_budget_bytes, SchedulerBenchReport* report) {
  const SchedulerBenchOptions& options = report->options;
  BlockPool pool(kv_budget_bytes, &model->machine().memory());
  StepTimes times;
  Engine engine({model}, &pool, {.max_sequences = options.n_sequences, .observer = &times});
  Random random(1);
  // Long enough for the last prompt to be read while the first still decodes.
  const int max_tokens = 2 * options.n_steps + options.n_sequences + 8;
  for (int i = 0; i < options.n_sequences; ++i) {
    KVL_RETURN_IF_ERROR(
        engine
            .Submit(RandomRequest(*model, options.n_prompt, max_tokens, &random), nullptr, nullptr)
            .status());
  }
  std::vector<double> steps, schedulers, samplings;
  for (bool has_more = true; has_more && std::ssize(steps) < options.n_steps;) {
    const Clock::time_point begin = Clock::now();
    has_more = engine.Step();
    const Clock::time_point end = Clock::now();
    if (times.work().n_decode_tokens != options.n_sequences) continue;
    steps.push_back(Microseconds(begin, end));
    schedulers.push_back(Microseconds(begin, times.began()) + Microseconds(times.ended(), end));
    samplings.push_back(Microseconds(times.computed(), times.ended()));
  }
  if (steps.empty()) {
    return Error(StatusCode::kResourceExhausted,
                 "{} sequences never decoded together; raise --kv-memory or give fewer",
                 options.n_sequences);
  }
  report->step_ms = MedianOf(steps) / 1e3;
  report->scheduler_us = MedianOf(schedulers);
  report->scheduler_p99_us = QuantileOf(schedulers, 0.99);
  report->sampling_us = MedianOf(samplings);
  return OkStatus();
}

Status MeasureFirstSteps(Model* model, int64_t kv_budget_bytes, SchedulerBenchReport* report) {
  BlockPool pool(kv_budget_bytes, &model->machine().memory());
  StepTimes times;
  Engine engine({model}, &pool, {.observer = &times});
  std::atomic<bool> stops = false;
  std::atomic<bool> is_idle = false;
  std::thread stepping([&] {
    while (!stops) {
      is_idle = true;
      engine.WaitForWork(std::chrono::milliseconds(100));
      is_idle = false;
      while (engine.Step()) {
      }
    }
  });
  Random random(2);
  std::vector<double> starts;
  Status status;
  for (int i = 0; i < report->options.n_idle_starts && status.ok(); ++i) {
    while (!is_idle) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // as long as between two requests
    const int n_began = times.n_began();
    const Clock::time_point submitted = Clock::now();
    status = engine.Submit(RandomRequest(*model, 8, 1, &random), nullptr, nullptr).status();
    while (status.ok() && times.n_began() == n_began) std::this_thread::yield();
    if (status.ok()) starts.push_back(Microseconds(submitted, times.began()));
  }
  stops = true;
  engine.Wake();
  stepping.join();
  KVL_RETURN_IF_ERROR(status);
  report->first_step_us = MedianOf(starts);
  report->longest_first_step_us = *std::ranges::max_element(starts);
  return OkStatus();
}

}  // namespace

StatusOr<SchedulerBenchReport> BenchScheduler(Model* model, const SchedulerBenchOptions& options,
                                              int64_t kv_budget_bytes) {
  SchedulerBenchReport report = {.options = options};
  KVL_RETURN_IF_ERROR(MeasureSteps(model, kv_budget_bytes, &report));
  KVL_RETURN_IF_ERROR(MeasureFirstSteps(model, kv_budget_bytes, &report));
  return report;
}

nlohmann::ordered_json ToJson(const SchedulerBenchReport& report) {
  return {{"sequences", report.options.n_sequences},
          {"prompt_tokens", report.options.n_prompt},
          {"steps", report.options.n_steps},
          {"step_ms", report.step_ms},
          {"scheduler_us", report.scheduler_us},
          {"scheduler_p99_us", report.scheduler_p99_us},
          {"scheduler_share", report.scheduler_share()},
          {"sampling_us", report.sampling_us},
          {"first_step_us", report.first_step_us},
          {"longest_first_step_us", report.longest_first_step_us}};
}

std::string ToText(const SchedulerBenchReport& report) {
  return fmt::format(
      "{} sequences behind prompts of {} tokens, median of {} decode steps\n"
      "  step        {:.2f} ms\n"
      "  scheduler   {:.1f} us, {:.2f}% of the step; 99th percentile {:.1f} us\n"
      "  sampling    {:.1f} us\n"
      "idle engine, from Submit to the first step\n"
      "  median      {:.0f} us\n"
      "  longest     {:.0f} us\n",
      report.options.n_sequences, report.options.n_prompt, report.options.n_steps, report.step_ms,
      report.scheduler_us, 100 * report.scheduler_share(), report.scheduler_p99_us,
      report.sampling_us, report.first_step_us, report.longest_first_step_us);
}

}  // namespace kvlathe
