#include "evaluation/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "base/clock.h"
#include "engine/sampler.h"

namespace kvlathe {
namespace {

constexpr int kPieceTokens = 64;  // scored tokens of one forward: decode's blocks
// Windows that are scored side by side where a cache takes few tokens in a step (one, where entries
// are dropped at each): their tokens share the reading of the weights.
constexpr size_t kWindowsAtOnce = 16;

// Sums over the scored tokens of one model.
struct Sums {
  double nll = 0;
  double nll_change = 0;  // against the baseline, token by token
  double nll_change_squared = 0;
  double kl = 0;
  double kl_squared = 0;
  int64_t n_agree = 0;
  std::vector<WindowScores> windows;
  struct Stretch {
    double kl = 0;
    double deviation = 0;
    int64_t n_agree = 0;
    int64_t n_tokens = 0;
  };
  std::array<Stretch, kStretches> stretches = {};
};

struct TokenScore {
  double nll = 0;
  double nll_change = 0;
  double kl = 0;
  double deviation = 0;  // StretchQuality::logit_deviation
  bool agrees = false;
  bool finite = true;  // the logits, and what is found from them
};

double LogSumExp(std::span<const float> x) {
  const float max = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (float v : x) sum += std::exp(v - max);
  return max + std::log(sum);
}

double Deviation(std::span<const float> base, std::span<const float> logits) {
  double base_mean = 0, mean_difference = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    base_mean += base[i];
    mean_difference += double{logits[i]} - base[i];
  }
  base_mean /= static_cast<double>(base.size());
  mean_difference /= static_cast<double>(base.size());
  double squares = 0, difference_squares = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    const double difference = double{logits[i]} - base[i] - mean_difference;
    squares += (base[i] - base_mean) * (base[i] - base_mean);
    difference_squares += difference * difference;
  }
  return squares > 0 ? std::sqrt(difference_squares / squares) : 0;
}

TokenScore ScoreToken(std::span<const float> base, std::span<const float> logits, int32_t target) {
  TokenScore score;
  score.finite = AreFinite(logits);
  if (!score.finite) return score;
  const double log_sum = LogSumExp(logits);
  score.nll = log_sum - logits[target];
  if (base.data() == logits.data()) {
    score.agrees = true;
    return score;
  }
  const double base_log_sum = LogSumExp(base);
  score.nll_change = score.nll - (base_log_sum - base[target]);
  const float shift = static_cast<float>(log_sum - base_log_sum);
  double kl = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    kl += std::exp(base[i] - static_cast<float>(base_log_sum)) * (base[i] - logits[i] + shift);
  }
  score.deviation = Deviation(base, logits);
  score.kl = std::max(kl, 0.0);  // rounding of equal distributions can fall below zero
  score.agrees = std::max_element(base.begin(), base.end()) - base.begin() ==
                 std::max_element(logits.begin(), logits.end()) - logits.begin();
  // Finite logits may be too far apart.
  score.finite = std::isfinite(score.kl) && std::isfinite(score.deviation);
  return score;
}

// The tokens that rows of logits are scored against.
struct Targets {
  std::span<const int32_t> ids;
  size_t first_step = 0;  // of the first, counted from the end of the prompt
  size_t n_steps = 1;     // of the whole window
  size_t n_prompt = 0;    // tokens of the window before the first step
  size_t first_row = 0;   // of the last forward's logits
  size_t window_idx = 0;  // of the text
};

// Scores rows of the last forwards of `base` and `model` against the targets.
Status ScoreRows(const Model& base, const Model& model, const Targets& targets, ThreadPool* threads,
                 Sums* sums) {
  std::vector<TokenScore> scores(targets.ids.size());
  threads->Run([&](int worker_id) {
    const Range rows = ShareOf(scores.size(), 1, worker_id, threads->n_workers());
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      const int64_t row = static_cast<int64_t>(targets.first_row) + i;
      scores[i] = ScoreToken(base.logits(row), model.logits(row), targets.ids[i]);
    }
  });
  sums->windows.resize(std::max(sums->windows.size(), targets.window_idx + 1));
  WindowScores& window = sums->windows[targets.window_idx];
  for (size_t i = 0; i < scores.size(); ++i) {
    const TokenScore& s = scores[i];
    if (!s.finite) {
      return Error(StatusCode::kDataLoss,
                   "the model computed logits that are not finite, or too large to compare, for "
                   "token {} of the window (weights or activations overflow in bf16? try --dtype "
                   "f32)",
                   targets.n_prompt + targets.first_step + i);
    }
    sums->nll += s.nll;
    sums->nll_change += s.nll_change;
    sums->nll_change_squared += s.nll_change * s.nll_change;
    sums->kl += s.kl;
    sums->kl_squared += s.kl * s.kl;
    sums->n_agree += s.agrees;
    window.kl.push_back(static_cast<float>(s.kl));
    window.n_agree += s.agrees;
    const size_t step = targets.first_step + i;
    Sums::Stretch& stretch = sums->stretches[step * kStretches / targets.n_steps];
    stretch.kl += s.kl;
    stretch.deviation += s.deviation;
    stretch.n_agree += s.agrees;
    ++stretch.n_tokens;
  }
  return OkStatus();
}

struct Contestant {
  // One of the windows that are being scored. It has a pool of its own, so that the most bytes it
  // ever held are known.
  struct Window {
    std::unique_ptr<BlockPool> pool;
    std::unique_ptr<SequenceCache> cache;
  };
  Model* model;
  std::vector<Window> windows;
  Sums sums;
  Quality quality;
};

// The second half of a window goes in pieces that end where a 64-entry run of one of the caches may
// end: the same pieces for all, because each is scored against the baseline's.
int64_t PieceAt(std::span<const Contestant> contestants, size_t n_left) {
  int64_t n = std::min<int64_t>(kPieceTokens, static_cast<int64_t>(n_left));
  for (const Contestant& c : contestants) {
    for (const Contestant::Window& w : c.windows) n = std::min(n, w.cache->max_step());
  }
  return n;
}

// fn(contestant) for each; an error says whose it is.
template <typename F>
Status ForEachContestant(std::span<Contestant> contestants, const F& fn) {
  for (size_t i = 0; i < contestants.size(); ++i) {
    const Status status = fn(&contestants[i]);
    if (status.ok()) continue;
    return Error(status.code(), "cache {} of {}: {}", i + 1, contestants.size(), MessageOf(status));
  }
  return OkStatus();
}

// Reads the first half of a window of the text with a new cache and scores the token behind it.
Status ReadPrompt(const Model& base, std::span<const std::vector<int32_t>> windows, size_t idx,
                  int64_t kv_budget_bytes, ThreadPool* threads, Contestant* c) {
  const std::span<const int32_t> window = windows[idx];
  const size_t half = window.size() / 2, n_steps = window.size() - half;
  auto pool = std::make_unique<BlockPool>(kv_budget_bytes, &c->model->machine().memory());
  auto owned = std::make_unique<SequenceCache>(&c->model->layout(), pool.get());
  SequenceCache* cache = owned.get();
  c->windows.push_back({std::move(pool), std::move(owned)});
  cache->set_n_prompt(static_cast<int64_t>(half), static_cast<int64_t>(n_steps));
  KVL_RETURN_IF_ERROR(Prefill(c->model, cache, window.first(half)));
  const Targets targets = {
      .ids = window.subspan(half, 1), .n_steps = n_steps, .n_prompt = half, .window_idx = idx};
  return ScoreRows(base, *c->model, targets, threads, &c->sums);
}

// Feeds `tokens` of every window that is being scored, the first of which is
// windows[first], in one step and scores those behind them.
Status ScorePiece(const Model& base, std::span<const std::vector<int32_t>> windows, size_t first,
                  Range tokens, ThreadPool* threads, Contestant* c) {
  const auto begin = static_cast<size_t>(tokens.begin);
  const auto n = static_cast<size_t>(tokens.end) - begin;
  std::vector<SequenceStep> steps;
  for (size_t w = 0; w < c->windows.size(); ++w) {
    SequenceCache* cache = c->windows[w].cache.get();
    KVL_RETURN_IF_ERROR(cache->Extend(static_cast<int>(n)));
    const std::span<const int32_t> window = windows[first + w];
    steps.push_back({cache, window.subspan(begin, n), SequenceStep::Logits::kAll});
  }
  KVL_RETURN_IF_ERROR(c->model->Forward(steps));
  for (size_t w = 0; w < c->windows.size(); ++w) {
    const std::span<const int32_t> window = windows[first + w];
    const size_t half = window.size() / 2, n_targets = std::min(n, window.size() - begin - 1);
    const Targets targets = {.ids = window.subspan(begin + 1, n_targets),
                             .first_step = begin + 1 - half,
                             .n_steps = window.size() - half,
                             .n_prompt = half,
                             .first_row = w * n,
                             .window_idx = first + w};
    KVL_RETURN_IF_ERROR(ScoreRows(base, *c->model, targets, threads, &c->sums));
  }
  return OkStatus();
}

// How many windows the contestants, which have read the prompt of the first, may score side by
// side.
size_t WindowsAtOnce(std::span<const Contestant> contestants, size_t n_steps,
                     int64_t kv_budget_bytes) {
  const auto piece = static_cast<size_t>(PieceAt(contestants, n_steps));
  size_t n = std::min(kWindowsAtOnce, kPieceTokens / piece);
  const auto bound = [&n](int64_t n_have, int64_t n_of_window) {
    n = std::min(n, static_cast<size_t>(std::max<int64_t>(1, n_have / n_of_window)));
  };
  int64_t n_held = 0;
  for (const Contestant& c : contestants) {
    // A whole window takes at most twice of what its first half took.
    const int64_t n_half = std::max<int64_t>(1, c.windows[0].pool->usage().peak_bytes);
    bound(kv_budget_bytes, 2 * n_half);
    n_held += n_half;
  }
  const int64_t n_free = contestants.back().model->machine().memory().n_free_bytes();
  if (n_free != Device::kUnbounded) bound(n_free + n_held, 2 * n_held);
  return n;
}

Status InWindows(size_t first, size_t last, const Status& status) {
  if (status.ok()) return status;
  const std::string which = first == last ? fmt::format("window {}", first + 1)
                                          : fmt::format("windows {} to {}", first + 1, last + 1);
  return Error(status.code(), "{}: {}", which, MessageOf(status));
}

// Scores the window `first`, and more behind it at the same time where steps are short; all have
// the same length. Returns how many, whose caches are left to the caller.
StatusOr<size_t> ScoreWindows(std::span<Contestant> contestants,
                              std::span<const std::vector<int32_t>> windows, size_t first,
                              int64_t kv_budget_bytes, ThreadPool* threads) {
  const Model& base = *contestants[0].model;
  const size_t n_window = windows[first].size(), half = n_window / 2;
  const auto read_prompt = [&](size_t w) {
    return InWindows(w, w, ForEachContestant(contestants, [&](Contestant* c) {
                       return ReadPrompt(base, windows, w, kv_budget_bytes, threads, c);
                     }));
  };
  KVL_RETURN_IF_ERROR(read_prompt(first));
  const size_t n_at_once = std::min(windows.size() - first,
                                    WindowsAtOnce(contestants, n_window - half, kv_budget_bytes));
  for (size_t w = first + 1; w < first + n_at_once; ++w) KVL_RETURN_IF_ERROR(read_prompt(w));
  for (size_t begin = half; begin < n_window;) {
    const size_t n = static_cast<size_t>(PieceAt(contestants, n_window - begin));
    const Range tokens = {static_cast<int64_t>(begin), static_cast<int64_t>(begin + n)};
    const Status scored = ForEachContestant(contestants, [&](Contestant* c) {
      return ScorePiece(base, windows, first, tokens, threads, c);
    });
    KVL_RETURN_IF_ERROR(InWindows(first, first + n_at_once - 1, scored));
    begin += n;
  }
  return n_at_once;
}

// Of the last of the windows that were scored together.
void RecordSizes(Contestant* c, size_t n_tokens) {
  const auto& [pool, cache] = c->windows.back();
  const auto n_positions = static_cast<int64_t>(n_tokens);
  const auto reference = static_cast<double>(ReferenceBytes(c->model->whole_layout(), n_positions));
  c->quality.kv_bytes = SumOf(c->model->BytesByRank(*cache));
  c->quality.reencoding = cache->reencoding();
  const double n_bytes = static_cast<double>(c->quality.kv_bytes.total());
  c->quality.kv_fraction = n_bytes / reference;
  c->quality.kv_bytes_per_token = n_bytes / static_cast<double>(n_tokens);
  c->quality.kv_reserved_bytes = pool->usage().reserved_bytes;
  // Of what this process holds, as the pool is.
  c->quality.kv_peak_fraction =
      static_cast<double>(pool->usage().peak_bytes) /
      static_cast<double>(ReferenceBytes(c->model->layout(), n_positions));
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

int64_t EvaluationText::n_scored() const {
  int64_t n = 0;
  for (const auto& window : windows) n += window.size() - window.size() / 2;
  return n;
}

StatusOr<EvaluationText> CutIntoWindows(std::span<const int32_t> tokens,
                                        const std::function<int(int32_t)>& bytes_of_token,
                                        std::optional<int32_t> bos, int window_tokens) {
  const size_t n_bos = bos.has_value() ? 1 : 0;
  if (tokens.size() + n_bos < 4 || window_tokens < 4) {
    return Error(StatusCode::kInvalidArgument,
                 "the text has {} tokens and the window {}; evaluation needs at least 4",
                 tokens.size(), window_tokens);
  }
  const size_t n_text = std::min(window_tokens - n_bos, tokens.size());
  EvaluationText text;
  for (size_t begin = 0; begin + n_text <= tokens.size(); begin += n_text) {
    std::vector<int32_t> window;
    std::vector<int> n_bytes;
    if (bos.has_value()) window.push_back(*bos);
    if (bos.has_value()) n_bytes.push_back(0);
    for (int32_t id : tokens.subspan(begin, n_text)) {
      window.push_back(id);
      n_bytes.push_back(bytes_of_token(id));
    }
    text.windows.push_back(std::move(window));
    text.token_bytes.push_back(std::move(n_bytes));
  }
  return text;
}

Status Prefill(Model* model, SequenceCache* cache, std::span<const int32_t> tokens,
               QkvObserver* observer) {
  if (cache->n_tokens() == 0 && cache->n_prompt() == kEndlessPrompt) {
    cache->set_n_prompt(static_cast<int64_t>(tokens.size()));
  }
  for (size_t begin = 0; begin < tokens.size();) {
    if (cache->must_read_again()) {
      KVL_RETURN_IF_ERROR(model->ReadPromptAgain(cache, tokens, kChunkTokens));
    }
    const size_t n = std::min<size_t>(
        {kChunkTokens, tokens.size() - begin, static_cast<size_t>(cache->max_step())});
    KVL_RETURN_IF_ERROR(cache->Extend(static_cast<int>(n)));
    const bool last = begin + n == tokens.size();
    const SequenceStep step{cache, tokens.subspan(begin, n),
                            last ? SequenceStep::Logits::kLast : SequenceStep::Logits::kNone};
    KVL_RETURN_IF_ERROR(model->Forward({&step, 1}, observer));
    begin += n;
  }
  return OkStatus();
}

StatusOr<std::vector<Quality>> MeasureQuality(std::span<Model* const> models,
                                              const EvaluationText& text, int64_t kv_budget_bytes,
                                              ThreadPool* threads, const Progress& progress) {
  std::vector<Contestant> contestants;
  for (Model* model : models) {
    contestants.push_back({model, {}, {}, {}});
  }
  const std::span<const std::vector<int32_t>> windows = text.windows;
  for (size_t w = 0; w < windows.size();) {
    if (progress) progress("evaluating", static_cast<double>(w) / windows.size());
    KVL_ASSIGN_OR_RETURN(const size_t n_scored,
                         ScoreWindows(contestants, windows, w, kv_budget_bytes, threads));
    for (Contestant& c : contestants) {
      RecordSizes(&c, windows[w].size());
      c.windows.clear();
    }
    w += n_scored;
  }
  double n_bytes = 0;  // of the scored tokens
  for (size_t w = 0; w < windows.size(); ++w) {
    for (size_t t = windows[w].size() / 2; t < windows[w].size(); ++t) {
      n_bytes += text.token_bytes[w][t];
    }
  }
  if (progress) progress("evaluating", 1);
  const double n = static_cast<double>(text.n_scored());
  std::vector<Quality> qualities;
  for (Contestant& c : contestants) {
    Quality& q = c.quality;
    q.n_tokens = text.n_scored();
    q.perplexity = std::exp(c.sums.nll / n);
    const double change = c.sums.nll_change / n;
    q.perplexity_change = std::expm1(change);
    q.perplexity_change_stderr =
        std::exp(change) *
        std::sqrt(std::max(0.0, c.sums.nll_change_squared / n - change * change) / n);
    q.bits_per_byte = n_bytes > 0 ? c.sums.nll / std::log(2.0) / n_bytes : 0;
    q.kl = c.sums.kl / n;
    q.kl_stderr = std::sqrt(std::max(0.0, c.sums.kl_squared / n - q.kl * q.kl) / n);
    q.top1_agreement = static_cast<double>(c.sums.n_agree) / n;
    q.kl_tail = TailOf(c.sums.windows);
    for (const Sums::Stretch& s : c.sums.stretches) {
      const auto n_tokens = static_cast<double>(std::max<int64_t>(1, s.n_tokens));
      q.over_steps.push_back({.kl = s.kl / n_tokens,
                              .logit_deviation = s.deviation / n_tokens,
                              .top1_agreement = static_cast<double>(s.n_agree) / n_tokens,
                              .n_tokens = s.n_tokens});
    }
    qualities.push_back(q);
  }
  return qualities;
}

StatusOr<Latency> MeasureLatency(Model* model, std::span<const int32_t> window,
                                 int64_t kv_budget_bytes, int n_repetitions) {
  constexpr int kDecodeTokens = 16;
  BlockPool pool(kv_budget_bytes, &model->machine().memory());
  const size_t half = window.size() / 2;
  std::vector<double> ttft_ms, tbt_ms;
  for (int i = 0; i < n_repetitions; ++i) {
    SequenceCache cache(&model->layout(), &pool);
    Stopwatch watch;
    KVL_RETURN_IF_ERROR(Prefill(model, &cache, window.first(half)));
    ttft_ms.push_back(watch.Milliseconds());
    for (size_t t = half; t < std::min(half + kDecodeTokens, window.size()); ++t) {
      watch.Restart();
      KVL_RETURN_IF_ERROR(Prefill(model, &cache, window.subspan(t, 1)));
      tbt_ms.push_back(watch.Milliseconds());
    }
  }
  return Latency{Median(ttft_ms), Median(tbt_ms)};
}

}  // namespace kvlathe
