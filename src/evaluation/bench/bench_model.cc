#include "evaluation/bench/bench_model.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/clock.h"
#include "base/random.h"
#include "base/units.h"
#include "cpu/kernels/limits/machine_limits.h"
#include "engine/kv_forecast.h"
#include "evaluation/bench/bench_attention.h"
#include "evaluation/quality.h"
#include "kv/blocks/block_pool.h"
#include "kv/capacity.h"

namespace kvlathe {
namespace {

// BF16 or F32 numbers of about unit size: valid rows in any layout.
void DrawRandom(DType row_type, int64_t n_bytes, uint64_t seed, std::vector<std::byte>* bytes) {
  bytes->assign(RoundUp(n_bytes, int64_t{sizeof(uint64_t)}), std::byte{});
  if (row_type == DType::kF32) {
    float* values = reinterpret_cast<float*>(bytes->data());
    for (int64_t i = 0; i < n_bytes / 4; ++i) {
      values[i] = static_cast<float>(MixBits(seed + i) >> 40) * 0x1.0p-23f - 1.0f;
    }
    return;
  }
  // Exponents 2^-4 to 2^-1 and random signs and mantissas, four numbers at a time.
  uint64_t* words = reinterpret_cast<uint64_t*>(bytes->data());
  for (int64_t i = 0; i < n_bytes / 8; ++i) {
    words[i] = (MixBits(seed + i) & 0x81ff81ff81ff81ffull) | 0x3d803d803d803d80ull;
  }
}

// Writes random rows to places of a machine.
class RandomRows {
 public:
  RandomRows(DType row_type, Device* memory) : row_type_(row_type), memory_(*memory) {}

  void Fill(const ObjectPlace& place, int64_t n_bytes, uint64_t seed) {
    if (n_bytes == 0) return;
    DrawRandom(row_type_, n_bytes, seed, &drawn_);
    memory_.Upload(place, std::span(drawn_).first(static_cast<size_t>(n_bytes)));
  }

 private:
  DType row_type_;
  Device& memory_;
  std::vector<std::byte> drawn_;
};

void FillRandomSinks(const CacheLayout& layout, SequenceCache* cache, uint64_t seed) {
  RandomRows rows(layout.shape(0, 0).row_type, &cache->device());
  for (int l = 0; l < layout.n_layers; ++l) {
    for (int g = 0; g < layout.n_kv_heads; ++g) {
      const BlockShape& shape = layout.shape(l, g);
      const int64_t n_sink = layout.n_sink * SizeOf(shape.row_type);
      const CacheHead head = cache->head(l, g);
      if (head.sink_k().is_null()) continue;
      rows.Fill(head.sink_k(), n_sink * layout.head_dim, seed);
      rows.Fill(head.sink_v(), n_sink * shape.sink_value_width(), seed);
    }
  }
}

// Fills the plain blocks from first_block on in every head.
void FillRandomBlocks(const CacheLayout& layout, int64_t first_block, SequenceCache* cache,
                      uint64_t seed) {
  RandomRows rows(layout.shape(0, 0).row_type, &cache->device());
  for (int l = 0; l < layout.n_layers; ++l) {
    for (int g = 0; g < layout.n_kv_heads; ++g) {
      const BlockShape shape = cache->head(l, g).shape();
      for (const ObjectId& block : cache->head(l, g).blocks().subspan(first_block)) {
        if (block.is_null()) continue;
        rows.Fill({block}, OpenBlockBytes(layout.codec(), shape), seed += 1 << 20);
      }
    }
  }
}

// Drops, cuts and seals what the step has ended. Of random rows the first are as good as any.
Status EndRandomStep(Model* model, SequenceCache* cache) {
  SequenceCache* caches[] = {cache};
  for (int l = 0; l < model->layout().n_layers; ++l) {
    if (cache->must_prune()) cache->DropPruned(l);
    if (cache->must_cut_keys()) KVL_RETURN_IF_ERROR(cache->ShrinkBlocks(l));
    if (cache->must_seal()) KVL_RETURN_IF_ERROR(model->SealRuns(l, caches));
  }
  return OkStatus();
}

std::vector<int32_t> RandomTokens(int n, int vocab_size, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& id : tokens) id = static_cast<int32_t>(random.Below(vocab_size));
  return tokens;
}

// Whether what stands for the depth is computed: where positions merge or heads drop what the model
// says, what is held depends on that, and the shards of other ranks are theirs to fill.
bool ReadsDepth(const Model& model) {
  return model.layout().CountsByHead() || model.weights().shard().grid.n_ranks() > 1;
}

// A cache of n_depth random positions, sealed as a prompt of them and n_prompt more would be.
StatusOr<std::unique_ptr<SequenceCache>> CacheOfDepth(Model* model, BlockPool* pool, int n_depth,
                                                      int n_prompt, uint64_t seed) {
  const CacheLayout& layout = model->layout();
  auto cache = std::make_unique<SequenceCache>(&layout, pool);
  if (n_depth == 0) return cache;
  if (layout.retention.has_value() && layout.retention->repeats_prompt()) {
    return Error(StatusCode::kUnimplemented,
                 "this cache reads its prompt again, and positions of a depth stand for no tokens; "
                 "leave the depth out");
  }
  cache->set_n_prompt(int64_t{n_depth} + n_prompt);
  if (ReadsDepth(*model)) {
    KVL_RETURN_IF_ERROR(
        Prefill(model, cache.get(), RandomTokens(n_depth, model->config().vocab_size, seed)));
    return cache;
  }
  // In steps, for a window to give back what it leaves behind, and to the end of each run.
  for (int64_t n_left = n_depth; n_left > 0;) {
    const int64_t n = std::min({n_left, int64_t{kBlockSize}, cache->max_step()});
    const int64_t n_entries = std::max(0, cache->head(0, 0).n_entries());
    const int64_t first_block =
        layout.DropsEntries() ? n_entries / kBlockSize : BlocksFor(layout, cache->n_tokens());
    KVL_RETURN_IF_ERROR(cache->Extend(static_cast<int>(n)));
    FillRandomBlocks(layout, first_block, cache.get(), seed += int64_t{1} << 40);
    KVL_RETURN_IF_ERROR(EndRandomStep(model, cache.get()));
    n_left -= n;
  }
  FillRandomSinks(layout, cache.get(), seed);
  return cache;
}

using Caches = std::vector<std::unique_ptr<SequenceCache>>;

// One for each sequence. Where their depth is read, one reads it, and the others are copies.
Status FillCaches(Model* model, const ModelBenchCase& test, BlockPool* pool, Caches* caches) {
  const bool copies = ReadsDepth(*model);
  for (int s = 0; s < test.n_parallel; ++s) {
    KVL_ASSIGN_OR_RETURN(auto cache, copies&& s > 0 ? caches->front()->Copy()
                                                    : CacheOfDepth(model, pool, test.n_depth,
                                                                   test.n_prompt, 7919 * (s + 1)));
    caches->push_back(std::move(cache));
  }
  return OkStatus();
}

// Of every decode step, the shares of its time.
struct StepShares {
  std::vector<double> rotate, plan;
};

Status RunOnce(Model* model, const ModelBenchCase& test, const std::vector<int32_t>& tokens,
               Caches* caches, double* seconds, StepShares* shares) {
  Stopwatch watch;
  if (test.n_prompt > 0) {
    for (auto& cache : *caches) {
      KVL_RETURN_IF_ERROR(Prefill(model, cache.get(), std::span(tokens).first(test.n_prompt)));
    }
  }
  for (int t = 0; t < test.n_gen; ++t) {
    std::vector<SequenceStep> steps;
    for (auto& cache : *caches) {
      KVL_RETURN_IF_ERROR(cache->Extend(1));
      steps.push_back({cache.get(), std::span(tokens).subspan(t, 1), SequenceStep::Logits::kLast});
    }
    const ForwardProfile before = model->profile();
    const Stopwatch step_watch;
    KVL_RETURN_IF_ERROR(model->Forward(steps));
    const double step_seconds = step_watch.Seconds();
    ForwardProfile spent = model->profile();
    spent.Add(before, -1);
    shares->rotate.push_back(spent.rotate / step_seconds);
    shares->plan.push_back(spent.plan / step_seconds);
  }
  *seconds = watch.Seconds();
  return OkStatus();
}

// The share of its positions that each head of a sequence has as entries. Empty where lengths alone
// say it.
std::vector<double> EntryShares(const CacheLayout& layout, const SequenceCache& cache) {
  std::vector<double> shares;
  if (!layout.ModelDecidesEntries()) return shares;
  const int n_behind = std::max(1, cache.n_tokens() - layout.n_sink);
  for (int l = 0; l < layout.n_layers; ++l) {
    for (int g = 0; g < layout.n_kv_heads; ++g) {
      shares.push_back(std::max(0, cache.head(l, g).n_entries()) / static_cast<double>(n_behind));
    }
  }
  return shares;
}

StepShare ShareOfSteps(std::vector<double> shares) {
  if (shares.empty()) return {};
  std::ranges::sort(shares);
  const auto at = [&](double rank) {
    return shares[static_cast<size_t>(std::lround(rank * static_cast<double>(shares.size() - 1)))];
  };
  return {at(0.5), at(0.99)};
}

std::string TestName(const ModelBenchCase& test) {
  std::string name =
      test.n_prompt > 0 ? fmt::format("pp{}", test.n_prompt) : fmt::format("tg{}", test.n_gen);
  if (test.n_depth > 0) name += fmt::format(" @ d{}", test.n_depth);
  if (test.n_parallel > 1) name += fmt::format(" x{}", test.n_parallel);
  return name;
}

// Rows, and columns as rows, of what follows attention in a layer.
int64_t CountFeedForward(const ModelConfig& c, int layer_idx) {
  const int per_column = c.has_gate() ? 3 : 2;
  if (!c.has_experts(layer_idx)) return int64_t{per_column} * c.ffn_dim;
  const ExpertsConfig& e = *c.experts;
  return e.n_experts + per_column * (int64_t{e.n_used} * e.ffn_dim + e.shared_ffn_dim);
}

// Weights that a token is multiplied with.
int64_t CountWeights(const Model& model) {
  const ModelConfig& c = model.config();
  int64_t n_rows = c.vocab_size;
  for (int l = 0; l < c.n_layers; ++l) {
    n_rows += int64_t{c.n_heads + c.n_kv_heads} * c.head_dim + CountFeedForward(c, l);
    for (int g = 0; g < c.n_kv_heads; ++g) {
      n_rows += int64_t{model.layout().shape(l, g).rank_v} * (1 + c.gqa_group());
    }
  }
  return n_rows * c.hidden_dim;
}

double LimitOfGeneration(const Model& model, int n_parallel, int64_t kv_bytes,
                         const StepLimits& limits) {
  const double n_weights = static_cast<double>(CountWeights(model));
  const double linear =
      std::max(static_cast<double>(model.weight_bytes(n_parallel)) / limits.read_bytes_per_s,
               2 * n_weights * n_parallel / limits.gemm_flops);
  return n_parallel / (linear + static_cast<double>(kv_bytes) / limits.read_bytes_per_s);
}

// Of a row of generation whose speed is known.
double ShareOfBandwidth(const ModelBenchRow& row, const StepLimits& limits) {
  const auto step_bytes = static_cast<double>(row.weight_bytes + row.kv_bytes);
  return step_bytes * row.avg_ts / row.test.n_parallel / limits.read_bytes_per_s;
}

}  // namespace

StatusOr<StepLimits> MeasureStepLimits(ThreadPool* pool, Isa isa, bool with_products) {
  StepLimits limits;
  KVL_ASSIGN_OR_RETURN(const double gb_per_s, MeasureReadBandwidth(*pool, isa));
  limits.read_bytes_per_s = 1e9 * gb_per_s;
  if (with_products) {
    KVL_ASSIGN_OR_RETURN(limits.gemm_flops, MeasureGemmPeak(*pool, isa));
  }
  return limits;
}

StatusOr<StepLimits> MeasureDeviceLimits(Machine* machine) {
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  constexpr int kCopies = 20;
  Device& memory = machine->memory();
  // Twice this, and half of what is free stays so.
  const int64_t n_bytes = std::min(kMaxBytes, memory.n_free_bytes() / 4);
  KVL_ASSIGN_OR_RETURN(const MachineBuffer from,
                       MachineBuffer::Allocate(&memory, n_bytes, "measuring the bandwidth"));
  KVL_ASSIGN_OR_RETURN(const MachineBuffer to,
                       MachineBuffer::Allocate(&memory, n_bytes, "measuring the bandwidth"));
  memory.Fill(from.place(), std::byte{}, n_bytes);
  memory.Copy(to.place(), from.place(), n_bytes);
  KVL_RETURN_IF_ERROR(machine->backend().Finish().status());
  const Stopwatch watch;
  for (int i = 0; i < kCopies; ++i) memory.Copy(to.place(), from.place(), n_bytes);
  KVL_RETURN_IF_ERROR(machine->backend().Finish().status());
  // A copy reads and writes.
  return StepLimits{.read_bytes_per_s = 2.0 * kCopies * static_cast<double>(n_bytes) /
                                        std::max(watch.Seconds(), 1e-9)};
}

StatusOr<ModelBenchRow> BenchModel(Model* model, const std::string& kv, const ModelBenchCase& test,
                                   int n_repetitions, int64_t kv_budget_bytes,
                                   const std::optional<StepLimits>& limits) {
  const int n_tokens = test.n_prompt + test.n_gen;
  if (n_tokens < 1 || test.n_depth < 0 || test.n_parallel < 1 || n_repetitions < 1) {
    return Error(StatusCode::kInvalidArgument, "bench model: nothing to measure in {}",
                 TestName(test));
  }
  const ModelConfig& c = model->config();
  if (int64_t{test.n_depth} + n_tokens > c.max_seq_len) {
    return Error(StatusCode::kInvalidArgument, "{}: {} positions exceed the model's context of {}",
                 TestName(test), int64_t{test.n_depth} + n_tokens, c.max_seq_len);
  }
  const std::vector<int32_t> tokens = RandomTokens(n_tokens, c.vocab_size, 1);
  BlockPool pool(kv_budget_bytes, &model->machine().memory());
  std::vector<double> speeds;
  ForwardProfile filling;  // what stands for the depth, which is no part of a run
  std::vector<double> entry_shares;
  StepShares shares;
  ModelBenchRow row{.test = test, .grid = model->weights().shard().grid, .kv = kv};
  for (int repetition = -1; repetition < n_repetitions; ++repetition) {
    if (repetition == 0) model->ResetProfile();
    const ForwardProfile before = model->profile();
    Caches caches;
    KVL_RETURN_IF_ERROR(FillCaches(model, test, &pool, &caches));
    if (repetition >= 0) {
      filling.Add(model->profile());
      filling.Add(before, -1);
    }
    double seconds = 0;
    StepShares of_run;
    KVL_RETURN_IF_ERROR(RunOnce(model, test, tokens, &caches, &seconds, &of_run));
    row.kv_bytes = pool.usage().used_bytes;
    entry_shares = EntryShares(model->layout(), *caches.front());
    if (model->layout().CountsByHead()) {
      row.positions_per_entry = 1 / MergedCountsOf(*caches.front()).share();
    }
    if (repetition < 0) continue;
    shares.rotate.insert(shares.rotate.end(), of_run.rotate.begin(), of_run.rotate.end());
    shares.plan.insert(shares.plan.end(), of_run.plan.begin(), of_run.plan.end());
    speeds.push_back(double{1} * n_tokens * test.n_parallel / seconds);
    row.seconds += seconds;
  }
  const int64_t n_read = int64_t{test.n_depth} + test.n_prompt;
  const SequenceLength length = {.n_tokens = int64_t{test.n_depth} + n_tokens,
                                 .n_step = kChunkTokens,
                                 .n_prompt = n_read > 0 ? n_read : kEndlessPrompt};
  row.n_fit = SequencesThatFit(model->layout(), length, kv_budget_bytes, entry_shares);
  row.longest_prompt =
      LongestPrompt(model->layout(), kv_budget_bytes, kChunkTokens, c.max_seq_len, entry_shares);
  row.weight_bytes = model->weight_bytes(test.n_parallel);
  row.profile = model->profile();
  row.profile.Add(filling, -1);
  row.rotate = ShareOfSteps(std::move(shares.rotate));
  row.plan = ShareOfSteps(std::move(shares.plan));
  for (double s : speeds) row.avg_ts += s / speeds.size();
  if (limits.has_value() && test.n_prompt == 0) {
    row.bandwidth_share = ShareOfBandwidth(row, *limits);
    if (limits->gemm_flops > 0) {
      row.limit_ts = LimitOfGeneration(*model, test.n_parallel, row.kv_bytes, *limits);
    }
  }
  for (double s : speeds) row.stddev_ts += (s - row.avg_ts) * (s - row.avg_ts);
  row.stddev_ts = speeds.size() > 1 ? std::sqrt(row.stddev_ts / (speeds.size() - 1)) : 0;
  return row;
}

namespace {

// The shares of a row's time that this rank computes, waits for others, and sends and receives.
// Where waiting is not told from messages, it is theirs.
struct RankShares {
  explicit RankShares(const ModelBenchRow& row)
      : compute(1 - row.profile.messages / row.seconds),
        waiting(row.profile.waiting / row.seconds),
        messages((row.profile.messages - row.profile.waiting) / row.seconds) {}
  double compute, waiting, messages;
};

nlohmann::ordered_json RankSharesJson(const ModelBenchRow& row) {
  const RankShares shares(row);
  nlohmann::ordered_json json = {{"compute", shares.compute}};
  if (row.tells_waiting) json["waiting"] = shares.waiting;
  json["messages"] = shares.messages;
  return json;
}

bool IsOfRanks(const ModelBenchRow& row) { return row.grid.n_ranks() > 1; }

}  // namespace

nlohmann::ordered_json ToJson(const std::vector<ModelBenchRow>& rows, const std::string& device) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ModelBenchRow& r : rows) {
    const auto share = [&](double seconds) { return seconds / r.seconds; };
    list.push_back({{"n_prompt", r.test.n_prompt},
                    {"n_gen", r.test.n_gen},
                    {"n_depth", r.test.n_depth},
                    {"n_parallel", r.test.n_parallel},
                    {"kv", r.kv},
                    {"schedule", r.schedule},
                    {"avg_ts", r.avg_ts},
                    {"stddev_ts", r.stddev_ts},
                    {"weight_bytes", r.weight_bytes},
                    {"kv_bytes", r.kv_bytes},
                    {"n_fit", r.n_fit},
                    {"longest_prompt", r.longest_prompt},
                    {"time_share",
                     {{"linear", share(r.profile.linear)},
                      {"rotate", share(r.profile.rotate)},
                      {"append", share(r.profile.append)},
                      {"attention", share(r.profile.attention)},
                      {"seal", share(r.profile.seal)},
                      {"prune", share(r.profile.prune)},
                      {"other", share(r.profile.other)}}},
                    {"attention_share",
                     {{"plan", share(r.profile.plan)}, {"rebuild", share(r.profile.rebuild)}}}});
    if (r.test.n_gen > 0) {
      const auto percentiles = [](const StepShare& s) {
        return nlohmann::ordered_json{{"p50", s.p50}, {"p99", s.p99}};
      };
      list.back()["step_share"] = {{"rotate", percentiles(r.rotate)},
                                   {"plan", percentiles(r.plan)}};
    }
    if (IsOfRanks(r)) {
      list.back()["ranks"] = {{"tp", r.grid.n_tensor_ranks}, {"pp", r.grid.n_stages}};
      list.back()["rank_share"] = RankSharesJson(r);
    }
    if (r.bandwidth_share > 0) list.back()["bandwidth_share"] = r.bandwidth_share;
    if (r.limit_ts > 0) list.back()["limit_ts"] = r.limit_ts;
    if (r.positions_per_entry > 0) list.back()["positions_per_entry"] = r.positions_per_entry;
  }
  return {{"device", device}, {"rows", std::move(list)}};
}

std::string ToMarkdown(const std::vector<ModelBenchRow>& rows, const std::string& model_name,
                       int n_threads) {
  const bool has_ranks = std::ranges::any_of(rows, IsOfRanks);
  std::string text = fmt::format(
      "| model | threads | kv | test | t/s | of bandwidth | of limit | linear | rotate | append | "
      "attention | seal |{}\n"
      "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |{}\n",
      has_ranks ? " ranks | compute | waiting | messages |" : "",
      has_ranks ? " ---: | ---: | ---: | ---: |" : "");
  const auto if_known = [](double value, double share) {
    return value > 0 ? fmt::format("{:.2f}", share) : std::string();
  };
  for (const ModelBenchRow& r : rows) {
    const auto share = [&](double seconds) {
      return fmt::format("{:.1f}%", 100 * seconds / r.seconds);
    };
    text += fmt::format(
        "| {} | {} | {} | {} | {:.2f} ± {:.2f} | {} | {} | {} | {} | {} | {} | {} |", model_name,
        n_threads, r.kv, TestName(r.test) + (r.schedule == "balanced" ? "" : " " + r.schedule),
        r.avg_ts, r.stddev_ts, if_known(r.bandwidth_share, r.bandwidth_share),
        if_known(r.limit_ts, r.avg_ts / r.limit_ts), share(r.profile.linear),
        share(r.profile.rotate), share(r.profile.append), share(r.profile.attention),
        share(r.profile.seal));
    if (has_ranks) {
      const RankShares shares(r);
      text += fmt::format(" {} x {} | {:.1f}% | {} | {:.1f}% |", r.grid.n_tensor_ranks,
                          r.grid.n_stages, 100 * shares.compute,
                          r.tells_waiting ? fmt::format("{:.1f}%", 100 * shares.waiting) : "",
                          100 * shares.messages);
    }
    text += '\n';
  }
  return text;
}

}  // namespace kvlathe
