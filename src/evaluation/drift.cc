#include "evaluation/drift.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>

#include "engine/sampler.h"
#include "evaluation/drift_steps.h"

namespace kvlathe {
namespace {

constexpr double kPromptTokensOfAStep = 16;  // that take about as long to read, for the progress

// The uncompressed model's run: every text, and the likelihood of each of its tokens.
class Baseline {
 public:
  Baseline(Model* model, const DriftPlan& plan, int64_t kv_budget_bytes, ThreadPool* threads)
      : decoder_(model, plan.prompts, plan.n_tokens, kv_budget_bytes),
        threads_(threads),
        scores_(plan.prompts.size()),
        texts_(plan.prompts.size()),
        nll_(plan.prompts.size()) {}

  // Generates the next token of every text.
  Status Step() {
    if (texts_[0].empty()) {
      KVL_RETURN_IF_ERROR(decoder_.ReadPrompts());
    } else {
      KVL_RETURN_IF_ERROR(decoder_.Step(NewestTokens()));
    }
    ForEach(threads_, texts_.size(), [&](size_t i) { scores_[i] = ScoreStep(logits(i)); });
    for (size_t i = 0; i < texts_.size(); ++i) {
      if (!scores_[i].finite) return NotFinite(i, texts_[i].size());
      texts_[i].push_back(scores_[i].likeliest);
      nll_[i].push_back(scores_[i].NllOf(scores_[i].likeliest, logits(i)));
    }
    return OkStatus();
  }

  std::vector<int32_t> NewestTokens() const {
    std::vector<int32_t> tokens;
    for (const std::vector<int32_t>& text : texts_) tokens.push_back(text.back());
    return tokens;
  }
  // Those that the newest token of the text was chosen by.
  std::span<const float> logits(size_t prompt) const { return decoder_.logits(prompt); }
  const StepScore& score(size_t prompt) const { return scores_[prompt]; }
  const std::vector<std::vector<int32_t>>& texts() const { return texts_; }
  const std::vector<double>& nll(size_t prompt) const { return nll_[prompt]; }

 private:
  TextDecoder decoder_;
  ThreadPool* threads_;
  std::vector<StepScore> scores_;  // of the newest tokens
  std::vector<std::vector<int32_t>> texts_;
  std::vector<std::vector<double>> nll_;
};

// One cache: it is given the baseline's texts, and writes its own from where they part.
class DriftContestant {
 public:
  DriftContestant(Model* model, const DriftPlan& plan, int64_t kv_budget_bytes, ThreadPool* threads)
      : decoder_(model, plan.prompts, plan.n_tokens, kv_budget_bytes),
        n_tokens_(static_cast<size_t>(plan.n_tokens)),
        threads_(threads),
        scores_(plan.prompts.size()),
        kl_of_prompt_(plan.prompts.size()) {
    drift_.parted_at.assign(plan.prompts.size(), plan.n_tokens);
    drift_.texts.resize(plan.prompts.size());
  }

  // What comes before the step in which `base` chose its newest tokens.
  Status Feed(const Baseline& base) {
    const size_t token = base.texts()[0].size() - 1;
    if (token == 0) return decoder_.ReadPrompts();
    std::vector<int32_t> tokens;
    const size_t n_prompts = scores_.size();
    for (size_t i = 0; i < n_prompts; ++i) tokens.push_back(base.texts()[i][token - 1]);
    for (size_t i = n_prompts; i < decoder_.n_sequences(); ++i) {
      tokens.push_back(drift_.texts[decoder_.prompt_of(i)].back());
    }
    return decoder_.Step(tokens);
  }

  Status Compare(const Baseline& base) {
    const size_t token = base.texts()[0].size() - 1, n_prompts = scores_.size();
    ForEach(threads_, n_prompts, [&](size_t i) {
      scores_[i] = CompareStep(base.logits(i), base.score(i).log_sum, decoder_.logits(i));
    });
    for (size_t i = 0; i < n_prompts; ++i) {
      if (!scores_[i].finite) return NotFinite(i, token);
      kl_of_prompt_[i] += scores_[i].kl;
      const size_t stretch = token * kStretches / n_tokens_;
      kl_of_stretch_[stretch] += scores_[i].kl;
      ++n_of_stretch_[stretch];
      n_agree_ += scores_[i].likeliest == base.score(i).likeliest;
    }
    return WriteOn(base, token);
  }

  Drift Finish(const Baseline& base) {
    const size_t n_prompts = scores_.size();
    const auto n = static_cast<double>(n_prompts * n_tokens_);
    for (double& kl : kl_of_prompt_) kl /= static_cast<double>(n_tokens_);
    for (const double kl : kl_of_prompt_) drift_.kl += kl / static_cast<double>(n_prompts);
    if (n_prompts > 1) {
      double squares = 0;
      for (const double kl : kl_of_prompt_) squares += (kl - drift_.kl) * (kl - drift_.kl);
      drift_.kl_stderr = std::sqrt(squares / static_cast<double>(n_prompts * (n_prompts - 1)));
    }
    for (int s = 0; s < kStretches; ++s) {
      drift_.kl_over_steps[s] = kl_of_stretch_[s] / static_cast<double>(n_of_stretch_[s]);
    }
    drift_.top1_agreement = static_cast<double>(n_agree_) / n;
    for (size_t i = 0; i < n_prompts; ++i) {
      const double share = 1 / static_cast<double>(n_prompts);
      drift_.repeats += RepeatedShare(drift_.texts[i]) * share;
      drift_.none_repeats += RepeatedShare(base.texts()[i]) * share;
    }
    drift_.kv_fraction = decoder_.MeanKvFraction();
    std::vector<int> sorted = drift_.parted_at;
    std::sort(sorted.begin(), sorted.end());
    drift_.mean_parted_at = std::accumulate(sorted.begin(), sorted.end(), 0.0) / n_prompts;
    drift_.median_parted_at = (sorted[(n_prompts - 1) / 2] + sorted[n_prompts / 2]) / 2.0;
    drift_.n_never_parted =
        static_cast<int>(std::count(sorted.begin(), sorted.end(), static_cast<int>(n_tokens_)));
    return std::move(drift_);
  }

 private:
  // The next token of every text of its own.
  Status WriteOn(const Baseline& base, size_t token) {
    const size_t n_prompts = scores_.size();
    for (size_t s = n_prompts; s < decoder_.n_sequences(); ++s) {  // before more branch off
      const size_t i = decoder_.prompt_of(s);
      if (!AreFinite(decoder_.logits(s))) return NotFinite(i, token);
      drift_.texts[i].push_back(ArgMax(decoder_.logits(s)));
    }
    for (size_t i = 0; i < n_prompts; ++i) {
      if (drift_.parted_at[i] < static_cast<int>(token)) continue;
      drift_.texts[i].push_back(scores_[i].likeliest);
      if (scores_[i].likeliest == base.score(i).likeliest) continue;
      drift_.parted_at[i] = static_cast<int>(token);
      if (token + 1 < n_tokens_) KVL_RETURN_IF_ERROR(decoder_.Branch(i));
    }
    return OkStatus();
  }

  TextDecoder decoder_;
  size_t n_tokens_;
  ThreadPool* threads_;
  std::vector<StepScore> scores_;  // where it reads what it is given
  std::vector<double> kl_of_prompt_;
  std::array<double, kStretches> kl_of_stretch_ = {};
  std::array<int64_t, kStretches> n_of_stretch_ = {};
  int64_t n_agree_ = 0;
  Drift drift_;
};

// fn(cache) for each of them; an error says whose it is.
template <typename F>
Status ForEachDriftContestant(std::vector<std::unique_ptr<DriftContestant>>* contestants,
                              const F& fn) {
  for (size_t i = 0; i < contestants->size(); ++i) {
    const Status status = fn((*contestants)[i].get());
    if (status.ok()) continue;
    return Error(status.code(), "cache {} of {}: {}", i + 1, contestants->size(),
                 MessageOf(status));
  }
  return OkStatus();
}

Status OfBaseline(const Status& status) {
  return status.ok() ? status
                     : Error(status.code(), "the uncompressed cache: {}", MessageOf(status));
}

// Fills text_nll and own_nll. `own_nll` is that of each token of each of the baseline's texts.
Status ScoreTexts(Model* none, const DriftPlan& plan, std::span<const std::vector<double>> own_nll,
                  int64_t kv_budget_bytes, ThreadPool* threads, Drift* drift) {
  double text_sum = 0, own_sum = 0;
  size_t n = 0;
  for (size_t i = 0; i < plan.prompts.size(); ++i) {
    const std::vector<int32_t>& text = drift->texts[i];
    const auto first = static_cast<size_t>(drift->parted_at[i]);
    if (first == text.size()) continue;
    const StatusOr<double> nll =
        NllOfText(none, plan.prompts[i], text, first, kv_budget_bytes, threads);
    if (!nll.ok()) {
      return Error(nll.status().code(), "prompt {}: {}", i + 1, MessageOf(nll.status()));
    }
    text_sum += *nll;
    own_sum += std::accumulate(own_nll[i].begin() + drift->parted_at[i], own_nll[i].end(), 0.0);
    n += text.size() - first;
  }
  if (n == 0) return OkStatus();
  drift->text_nll = text_sum / static_cast<double>(n);
  drift->own_nll = own_sum / static_cast<double>(n);
  return OkStatus();
}

}  // namespace

StatusOr<DriftPlan> PlanDrift(std::span<const int32_t> tokens, std::optional<int32_t> bos,
                              const DriftOptions& options, int context_tokens) {
  const int n_bos = bos.has_value() ? 1 : 0;
  if (options.n_prompts < 1 || options.prompt_tokens < 2 || options.n_tokens < kStretches) {
    return Error(StatusCode::kInvalidArgument,
                 "drift takes at least one prompt, of at least 2 tokens, and {} generated tokens",
                 kStretches);
  }
  if (int64_t{options.prompt_tokens} + options.n_tokens > context_tokens) {
    return Error(StatusCode::kInvalidArgument,
                 "prompts of {} tokens and {} generated tokens need a context of {}, but it is {}; "
                 "generate fewer or take shorter prompts",
                 options.prompt_tokens, options.n_tokens,
                 int64_t{options.prompt_tokens} + options.n_tokens, context_tokens);
  }
  const auto n_text = static_cast<size_t>(options.prompt_tokens - n_bos);
  const size_t n_available = tokens.size() / n_text;
  if (n_available < static_cast<size_t>(options.n_prompts)) {
    return Error(StatusCode::kInvalidArgument,
                 "the text has {} tokens, enough for {} prompts of {}, but {} are asked for; take "
                 "fewer or shorter prompts, or a longer text",
                 tokens.size(), n_available, options.prompt_tokens, options.n_prompts);
  }
  DriftPlan plan{{}, options.n_tokens};
  for (int i = 0; i < options.n_prompts; ++i) {
    std::vector<int32_t>& prompt = plan.prompts.emplace_back();
    if (bos.has_value()) prompt.push_back(*bos);
    const std::span<const int32_t> piece = tokens.subspan(i * n_text, n_text);
    prompt.insert(prompt.end(), piece.begin(), piece.end());
  }
  return plan;
}

StatusOr<DriftResult> MeasureDrift(Model* none, std::span<Model* const> models,
                                   const DriftPlan& plan, int64_t kv_budget_bytes,
                                   ThreadPool* threads, const Progress& progress) {
  DriftResult result;
  std::vector<std::vector<double>> own_nll;
  {
    Baseline base(none, plan, kv_budget_bytes, threads);
    std::vector<std::unique_ptr<DriftContestant>> contestants;
    for (Model* model : models) {
      contestants.push_back(
          std::make_unique<DriftContestant>(model, plan, kv_budget_bytes, threads));
    }
    const auto tell = [&](int n_done) {
      const double n_read = static_cast<double>(plan.prompts[0].size()) / kPromptTokensOfAStep;
      const double n_steps = n_done == 0 ? 0 : n_done + n_read;
      if (progress) progress("generating", n_steps / (plan.n_tokens + n_read));
    };
    for (int t = 0; t < plan.n_tokens; ++t) {
      tell(t);
      KVL_RETURN_IF_ERROR(OfBaseline(base.Step()));
      KVL_RETURN_IF_ERROR(ForEachDriftContestant(&contestants, [&](DriftContestant* c) -> Status {
        KVL_RETURN_IF_ERROR(c->Feed(base));
        return c->Compare(base);
      }));
    }
    tell(plan.n_tokens);
    for (const auto& c : contestants) result.drifts.push_back(c->Finish(base));
    for (size_t i = 0; i < plan.prompts.size(); ++i) own_nll.push_back(base.nll(i));
    result.none_texts = base.texts();
  }  // gives the memory of all sequences back
  for (size_t i = 0; i < models.size(); ++i) {
    if (progress) progress("scoring texts", static_cast<double>(i) / models.size());
    const Status scored =
        ScoreTexts(none, plan, own_nll, kv_budget_bytes, threads, &result.drifts[i]);
    if (scored.ok()) continue;
    return Error(scored.code(), "cache {} of {}: {}", i + 1, models.size(), MessageOf(scored));
  }
  if (progress) progress("scoring texts", 1);
  return result;
}

double RepeatedShare(std::span<const int32_t> text) {
  constexpr size_t kGram = 4;
  if (text.size() < kGram) return 0;
  std::set<std::array<int32_t, kGram>> seen;
  const size_t n_grams = text.size() - kGram + 1;
  for (size_t i = 0; i < n_grams; ++i) {
    std::array<int32_t, kGram> gram;
    std::copy_n(text.begin() + i, kGram, gram.begin());
    seen.insert(gram);
  }
  return 1 - static_cast<double>(seen.size()) / static_cast<double>(n_grams);
}

}  // namespace kvlathe
