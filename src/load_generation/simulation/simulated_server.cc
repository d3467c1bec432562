#include "load_generation/simulation/simulated_server.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "kv/blocks/block_pool.h"
#include "kv/capacity.h"
#include "load_generation/simulation/idle_machine.h"
#include "model/config.h"
#include "model/model_facts.h"
#include "model/tensor_source.h"

namespace kvlathe {
namespace {

ModelConfig SimulatedConfig() {
  ModelConfig c;
  c.model_type = "llama";
  c.n_layers = 2;
  c.hidden_dim = 64;
  c.n_heads = 3;
  c.n_kv_heads = 3;
  c.head_dim = 64;
  c.ffn_dim = 64;
  c.vocab_size = kSimulatedVocabulary;
  c.max_seq_len = kSimulatedContext;
  return c;
}

// Of a model with random weights, of which nothing has to be known.
class NoStatistics : public PlanSource {
 public:
  explicit NoStatistics(ThreadPool* threads) : threads_(threads) {}

  bool is_random() const override { return true; }
  StatusOr<const CalibrationStatistics*> Statistics(const StatisticsNeed&) override {
    return Refused();
  }
  StatusOr<const FisherWeights*> Fisher(const Spec&) override { return Refused(); }
  StatusOr<std::vector<std::vector<double>>> ValueGrams(int) override { return Refused(); }
  StatusOr<std::vector<std::vector<double>>> KeyGrams(int) override { return Refused(); }
  StatusOr<std::vector<std::vector<double>>> OutputGrams() override { return Refused(); }
  StatusOr<std::vector<std::vector<float>>> ValueBiases() override { return Refused(); }
  std::vector<std::vector<float>> KeyBiases() override { return {}; }
  ThreadPool* threads() override { return threads_; }

 private:
  static Status Refused() {
    return Error(StatusCode::kInvalidArgument,
                 "a simulated server has no model that this cache could be made for; choose "
                 "another --kv");
  }

  ThreadPool* threads_;
};

// One run of a load. Seconds are simulated ones, from its start on.
class Run : public EngineObserver {
 public:
  Run(Model* model, const Workload& workload, const LoadOptions& load,
      const SimulatedServerOptions& options)
      : workload_(workload),
        load_(load),
        costs_(options.costs),
        pool_(options.kv_bytes, &model->machine().memory()),
        engine_({model}, &pool_,
                {.max_batch_tokens = options.max_batch_tokens,
                 .max_sequences = options.max_sequences,
                 .observer = this}) {}

  StatusOr<LoadRecords> ServeAll() {
    const auto n_requests = static_cast<size_t>(load_.n_requests);
    records_.requests.resize(n_requests);
    if (!is_closed()) due_s_ = ArrivalTimes(load_.arrivals, load_.n_requests);
    while (n_ended_ < n_requests) {
      KVL_RETURN_IF_ERROR(SendWhatIsDue());
      if (n_ended_ == n_sent_) {
        now_s_ = due_s_[n_sent_];
        continue;
      }
      was_full_ = is_full();
      engine_.Step();
    }
    records_.duration_s = now_s_;
    return std::move(records_);
  }

  void OnStepBegan(const StepWork& work, const EngineLoad&) override {
    now_s_ += costs_.SecondsOf(work);
  }

 private:
  bool is_closed() const { return std::isinf(load_.arrivals.rate); }
  bool is_full() const {
    return load_.max_concurrency > 0 &&
           n_sent_ - n_ended_ == static_cast<size_t>(load_.max_concurrency);
  }

  Status SendWhatIsDue() {
    while (n_sent_ < records_.requests.size() && !is_full() &&
           (is_closed() || due_s_[n_sent_] <= now_s_)) {
      KVL_RETURN_IF_ERROR(Send(n_sent_));
      ++n_sent_;
    }
    return OkStatus();
  }

  // A request that becomes due while a step is under way is sent then, if the client may, and seen
  // with the next step.
  Status Send(size_t idx) {
    LoadRequest wanted = workload_.RequestAt(load_.first_index + static_cast<int64_t>(idx));
    RequestRecord& record = records_.requests[idx];
    record.arrival_s = is_closed() ? now_s_ : due_s_[idx];
    record.start_s = was_full_ ? now_s_ : record.arrival_s;
    record.n_input = wanted.n_input;
    record.n_asked = wanted.n_output;
    record.is_counted_by_server = true;
    Request request{.prompt = std::move(wanted.prompt_ids), .max_tokens = wanted.n_output};
    const auto on_token = [this, idx](RequestId, const GeneratedToken&) {
      TakeToken(&records_.requests[idx]);
      return FinishReason::kNone;
    };
    const auto on_finish = [this, idx](RequestId, const RequestOutcome& outcome) {
      End(outcome, &records_.requests[idx]);
    };
    return engine_.Submit(std::move(request), on_token, on_finish).status();
  }

  void TakeToken(RequestRecord* record) {
    const double since_start = now_s_ - record->start_s;
    if (record->n_output++ == 0) {
      record->ttft_s = since_start;
    } else {
      record->itl_s.push_back(since_start - record->latency_s);
    }
    record->latency_s = since_start;
  }

  void End(const RequestOutcome& outcome, RequestRecord* record) {
    ++n_ended_;
    if (outcome.finish_reason == FinishReason::kLength) return;
    record->error_kind = "engine";
    record->error = MessageOf(outcome.status);
  }

  const Workload& workload_;
  const LoadOptions& load_;
  const StepCosts costs_;
  BlockPool pool_;
  Engine engine_;
  LoadRecords records_;
  std::vector<double> due_s_;  // [n_requests], in an open loop
  double now_s_ = 0;
  size_t n_sent_ = 0, n_ended_ = 0;
  bool was_full_ = false;  // as many as may be were under way when the last step began
};

}  // namespace

double StepCosts::SecondsOf(const StepWork& work) const {
  return 1e-3 * (step + prompt_token * work.n_fill_tokens + decode_token * work.n_decode_tokens +
                 prompt_position * static_cast<double>(work.n_fill_positions) +
                 decode_position * static_cast<double>(work.n_decode_positions));
}

SimulatedServer::SimulatedServer() = default;
SimulatedServer::~SimulatedServer() = default;

StatusOr<std::unique_ptr<SimulatedServer>> SimulatedServer::Create(const std::string& text) {
  KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(text));
  std::unique_ptr<SimulatedServer> server(new SimulatedServer());
  const ModelConfig config = SimulatedConfig();
  server->source_ = std::make_unique<NoStatistics>(&server->threads_);
  server->planner_ =
      std::make_unique<CachePlanner>(FactsOf(config, DType::kBf16), server->source_.get());
  KVL_RETURN_IF_ERROR(server->planner_->Check(spec));
  KVL_ASSIGN_OR_RETURN(const CachePlan plan, server->planner_->MakePlan(spec));
  KVL_ASSIGN_OR_RETURN(std::shared_ptr<ModelWeights> weights,
                       ModelWeights::Load(config, DType::kBf16, MakeRandomSource(1),
                                          std::make_shared<IdleMachine>(&server->threads_)));
  KVL_ASSIGN_OR_RETURN(server->model_, Model::Create(std::move(weights), plan));
  return server;
}

StatusOr<LoadRecords> SimulatedServer::Serve(const Workload& workload, const LoadOptions& load,
                                             const SimulatedServerOptions& options) {
  Run run(model_.get(), workload, load, options);
  return run.ServeAll();
}

int64_t SimulatedServer::bytes_per_token() const {
  constexpr int64_t kMany = 64 * 1024;
  const CacheLayout& layout = model_->layout();
  return (SequenceBytes(layout, 2 * kMany, 1, kMany) - SequenceBytes(layout, kMany, 1, kMany)) /
         kMany;
}

}  // namespace kvlathe
