// Time of sums over ranks and of small messages there and back. Without mpirun the ranks are
// threads:
//   build/release/bin/comm_bench
//   mpirun -n 2 build/release/bin/comm_bench
#include <benchmark/benchmark.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi_communicator.h"
#include "comm/thread_communicator.h"

namespace kvlathe {
namespace {

// The ranks that are threads of this process, or the one that mpirun made of it.
std::vector<std::unique_ptr<Communicator>> ranks_of_process;

using Round = std::function<Status(Communicator&)>;

// Every rank of this process does as many rounds; those of the first are measured.
void MeasureRounds(benchmark::State& state, const std::function<Round()>& make_round) {
  std::vector<std::jthread> others;
  for (size_t i = 1; i < ranks_of_process.size(); ++i) {
    others.emplace_back([&state, &make_round, i] {
      const Round round = make_round();
      for (benchmark::IterationCount n = 0; n < state.max_iterations; ++n) {
        if (!round(*ranks_of_process[i]).ok()) return;
      }
    });
  }
  const Round round = make_round();
  for (auto _ : state) {
    if (const Status status = round(*ranks_of_process[0]); !status.ok()) {
      state.SkipWithError(MessageOf(status).c_str());
      return;
    }
  }
}

void BM_AllReduce(benchmark::State& state) {
  const size_t n_values = static_cast<size_t>(state.range(0)) / sizeof(float);
  MeasureRounds(state, [n_values]() -> Round {
    return [values = std::make_shared<std::vector<float>>(n_values)](Communicator& all) {
      return all.AllReduce(*values);
    };
  });
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void BM_MessageThereAndBack(benchmark::State& state) {
  MeasureRounds(state, [n_bytes = static_cast<size_t>(state.range(0))]() -> Round {
    return [bytes = std::vector<std::byte>(n_bytes)](Communicator& all) -> Status {
      if (all.rank() > 1) return OkStatus();
      if (all.rank() == 0) KVL_RETURN_IF_ERROR(all.SendMessage(1, bytes));
      KVL_RETURN_IF_ERROR(all.ReceiveMessage(1 - all.rank()).status());
      return all.rank() == 1 ? all.SendMessage(0, bytes) : OkStatus();
    };
  });
}

// Ranks that are processes do not know each other's clocks, so numbers of rounds are fixed.
void RegisterAll() {
  for (const int64_t bytes : {4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20}) {
    benchmark::RegisterBenchmark("BM_AllReduce", BM_AllReduce)
        ->Arg(bytes)
        ->Iterations(bytes <= (64 << 10) ? 5000 : 200)
        ->Repetitions(5)
        ->ReportAggregatesOnly()
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
  benchmark::RegisterBenchmark("BM_MessageThereAndBack", BM_MessageThereAndBack)
      ->Arg(256)
      ->Iterations(5000)
      ->Repetitions(5)
      ->ReportAggregatesOnly()
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

// Of the ranks but the first, who all measure the same.
class SilentReporter final : public benchmark::BenchmarkReporter {
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

int RunBenchmarks(int n_arguments, char** arguments) {
  benchmark::Initialize(&n_arguments, arguments);
  if (!IsStartedByMpi()) {
    ranks_of_process = MakeThreadGroup(2);
    RegisterAll();
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  }
  auto all = JoinMpi();
  if (!all.ok()) {
    std::fprintf(stderr, "%s\n", MessageOf(all.status()).c_str());
    return 1;
  }
  ranks_of_process.push_back(*std::move(all));
  RegisterAll();
  if (ranks_of_process[0]->rank() == 0) {
    benchmark::RunSpecifiedBenchmarks();
  } else {
    SilentReporter silent;
    benchmark::RunSpecifiedBenchmarks(&silent);
  }
  ranks_of_process.clear();
  return 0;
}

}  // namespace
}  // namespace kvlathe

int main(int n_arguments, char** arguments) {
  return kvlathe::RunBenchmarks(n_arguments, arguments);
}
