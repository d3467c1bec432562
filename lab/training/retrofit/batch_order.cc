#include "training/retrofit/batch_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/random.h"

namespace kvlathe {
namespace {

constexpr int kCycleTurns = 1000;

}  // namespace

int64_t PermutedIndex(uint64_t key, int64_t n, int64_t i) {
  // i -> a i + b modulo n is a permutation when a and n have no common divisor.
  Random random(key);
  uint64_t a = 1 + random.Below(static_cast<uint64_t>(n));
  const uint64_t b = random.Below(static_cast<uint64_t>(n));
  while (std::gcd(a, static_cast<uint64_t>(n)) != 1) ++a;
  const auto product = static_cast<unsigned __int128>(a) * static_cast<uint64_t>(i) + b;
  return static_cast<int64_t>(product % static_cast<uint64_t>(n));
}

StatusOr<BatchOrder> BatchOrder::Create(const TrainingRecipe* recipe, const Corpus* corpus) {
  BatchOrder order;
  order.recipe_ = recipe;
  order.corpus_ = corpus;
  if (corpus->info().vocab_size > recipe->model.vocab_size) {
    return Error(StatusCode::kInvalidArgument,
                 "the corpus has token ids up to {}, the recipe's model a vocabulary of {}",
                 corpus->info().vocab_size - 1, recipe->model.vocab_size);
  }
  for (const TrainingPhase& phase : recipe->phases) {
    KVL_RETURN_IF_ERROR(order.Check(phase));
    order.phases_.push_back(MakeOrder(phase, recipe->seed + order.phases_.size()));
  }
  const std::string& validation = recipe->validation_source;
  if (!validation.empty() && corpus->Find(validation) == nullptr) {
    return Error(StatusCode::kInvalidArgument, "the corpus has no source \"{}\" (validation)",
                 validation);
  }
  return order;
}

Status BatchOrder::Check(const TrainingPhase& phase) const {
  for (const auto& [name, weight] : phase.mixture) {
    const SourceInfo* source = corpus_->Find(name);
    if (source == nullptr) {
      return Error(StatusCode::kInvalidArgument, "the corpus has no source \"{}\"", name);
    }
    const int needed = phase.context + 1;
    if (source->row_tokens != 0 && source->row_tokens != needed) {
      return Error(StatusCode::kInvalidArgument,
                   "source \"{}\" has rows of {} tokens; a phase of context {} needs {}", name,
                   source->row_tokens, phase.context, needed);
    }
    if (source->n_tokens < needed + phase.context) {
      return Error(StatusCode::kInvalidArgument,
                   "source \"{}\" has {} tokens, too few for sequences of {}", name,
                   source->n_tokens, needed);
    }
  }
  return OkStatus();
}

BatchOrder::PhaseOrder BatchOrder::MakeOrder(const TrainingPhase& phase, uint64_t seed) {
  PhaseOrder order;
  double sum = 0, reached = 0;
  for (const auto& [name, weight] : phase.mixture) sum += weight;
  std::vector<int> turns;
  for (const auto& [name, weight] : phase.mixture) {
    reached += weight / sum;
    const auto end = static_cast<size_t>(reached * kCycleTurns + 0.5);
    order.n_turns.push_back(static_cast<int>(end - turns.size()));
    turns.resize(end, static_cast<int>(order.sources.size()));
    order.sources.push_back(name);
  }
  Random random(seed, /*stream=*/1);
  for (size_t i = turns.size(); i > 1; --i) std::swap(turns[i - 1], turns[random.Below(i)]);
  std::vector<int> n_seen(order.sources.size(), 0);
  for (const int source_idx : turns) {
    order.cycle.push_back({source_idx, n_seen[source_idx]++});
  }
  return order;
}

void BatchOrder::Read(int phase_idx, int64_t index, std::span<int64_t> out) const {
  const PhaseOrder& order = phases_[phase_idx];
  const Turn& turn = order.cycle[index % order.cycle.size()];
  const std::string& name = order.sources[turn.source_idx];
  const int64_t n_cycles = index / static_cast<int64_t>(order.cycle.size());
  const int64_t i = n_cycles * order.n_turns[turn.source_idx] + turn.n_before;
  const TokenView tokens = corpus_->tokens(name);
  const uint64_t key = MixBits(recipe_->seed ^ MixBits(1000 * phase_idx + turn.source_idx));
  if (corpus_->Find(name)->row_tokens == 0) return ReadStream(tokens, key, i, out);
  const auto row_tokens = static_cast<int64_t>(out.size());
  const int64_t n_rows = tokens.size() / row_tokens;
  const int64_t row = PermutedIndex(key + i / n_rows, n_rows, i % n_rows);
  tokens.Copy(row * row_tokens, out);
}

void BatchOrder::ReadStream(const TokenView& tokens, uint64_t key, int64_t index,
                            std::span<int64_t> out) const {
  const int64_t context = static_cast<int64_t>(out.size()) - 1;
  // Each pass cuts the text elsewhere.
  const int64_t n_windows = (tokens.size() - context - 1) / context;
  const int64_t pass = index / n_windows;
  const int64_t shift = static_cast<int64_t>(Random(key + pass, 2).Below(context));
  const int64_t begin = shift + context * PermutedIndex(key + pass, n_windows, index % n_windows);
  tokens.Copy(begin, out);
  if (corpus_->info().bos_id >= 0) out[0] = corpus_->info().bos_id;
}

void BatchOrder::ReadValidation(int64_t index, std::span<int64_t> out) const {
  const TokenView tokens = corpus_->tokens(recipe_->validation_source);
  const int64_t n = static_cast<int64_t>(out.size());
  if (corpus_->Find(recipe_->validation_source)->row_tokens > 0) return tokens.Copy(index * n, out);
  const int bos_id = corpus_->info().bos_id;
  // Windows follow each other; without BOS the last token of the one before stands in its place.
  if (bos_id < 0) return tokens.Copy(index * (n - 1), out);
  out[0] = bos_id;
  tokens.Copy(index * (n - 1), out.subspan(1));
}

int64_t BatchOrder::n_validation_sequences(int context) const {
  const SourceInfo* source = corpus_->Find(recipe_->validation_source);
  if (source == nullptr) return 0;
  if (source->row_tokens > 0 && source->row_tokens != context + 1) return 0;
  const bool is_stream = source->row_tokens == 0;
  const int64_t stride = is_stream ? context : source->row_tokens;
  const int64_t n_before = is_stream && corpus_->info().bos_id < 0 ? 1 : 0;
  return std::min<int64_t>((source->n_tokens - n_before) / stride,
                           std::max(1, recipe_->validation_tokens / context));
}

}  // namespace kvlathe
