#include "server/audit/auditor.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "engine/request.h"

namespace kvlathe::server {

namespace {

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Labels of metrics are kept for good, and clients choose rates.
std::optional<double> RoundedRate(const std::optional<double>& rate) {
  if (!rate.has_value()) return std::nullopt;
  return std::round(*rate * 100) / 100;
}

std::vector<LevelChoice::Level> ChoosableLevels(const AuditedModels& models) {
  std::vector<LevelChoice::Level> levels;
  for (const Model* const model : models.levels) {
    const int64_t n_tokens = model->config().max_seq_len;
    levels.push_back({.n_bytes = SequenceBytes(model->layout(), n_tokens, 1, n_tokens),
                      .is_none = model == models.none});
  }
  return levels;
}

}  // namespace

Auditor::Auditor(AuditedModels models, AuditOptions options, AuditMetrics* metrics, Log log)
    : models_(std::move(models)),
      options_(std::move(options)),
      metrics_(metrics),
      log_(std::move(log)),
      random_(options_.seed),
      pool_(options_.memory_bytes, &models_.none->machine().memory()),
      budget_(options_.share) {
  KVL_CHECK(options_.share > 0 && options_.share <= 1);
  KVL_CHECK_EQ(models_.levels.size(), models_.kv.size());
  if (!options_.seconds_now) options_.seconds_now = SteadySeconds;
  if (options_.acts_within.has_value()) {
    choice_.emplace(ChoosableLevels(models_), *options_.acts_within);
  }
  metrics_->SetQueued(0);
  metrics_->SetBytes(0, options_.memory_bytes);
}

Auditor::~Auditor() = default;

void Auditor::Offer(const AnsweredRequest& answered) {
  const Request& request = answered.request;
  const bool answered_by_none = models_.levels[request.level] == models_.none;
  if (answered_by_none && !choice_.has_value()) return;
  if (std::uniform_real_distribution<double>()(random_) >= options_.share) return;
  const auto answer = std::make_shared<const GivenAnswer>(
      GivenAnswer{.tokens = {answered.tokens.begin(), answered.tokens.end()},
                  .n_read = answered.n_read,
                  .n_cache_prompt = answered.n_cache_prompt,
                  .n_generated = request.max_tokens});
  if (!choice_.has_value() || request.rate.has_value()) {
    if (answered_by_none) return;
    // A replay would hold what it held only at first.
    if (answered.n_pressed > 0) {
      return Skip({request.level, &answered.layout, RoundedRate(request.rate)}, "pressed");
    }
    return Enqueue(answer, {request.level, &answered.layout, RoundedRate(request.rate)});
  }
  for (int l = 0; l < std::ssize(models_.levels); ++l) {
    if (models_.levels[l] != models_.none) Enqueue(answer, {l, &models_.levels[l]->layout(), {}});
  }
}

void Auditor::Enqueue(const std::shared_ptr<const GivenAnswer>& answer, const Cache& cache) {
  if (answer->n_answer() == 0) return Skip(cache, "empty");
  if (std::ssize(queue_) >= options_.max_queued) return Skip(cache, "queue_full");
  if (AnswerReplay::PeakBytes(*answer, *models_.none, *cache.layout) > options_.memory_bytes) {
    return Skip(cache, "too_long");
  }
  queue_.push_back({answer, cache});
  const std::lock_guard lock(mutex_);
  n_queued_ = static_cast<int>(queue_.size());
  metrics_->SetQueued(n_queued_);
}

void Auditor::Skip(const Cache& cache, const std::string& reason) {
  metrics_->CountSkipped(LabelsOf(cache), reason);
  const std::lock_guard lock(mutex_);
  ++skipped_[reason];
}

void Auditor::AfterStep(double step_seconds) {
  budget_.NoteStep(step_seconds);
  if (!has_work() || !budget_.AllowsPiece()) return;
  const double seconds = Piece();
  budget_.NoteBeside(seconds);
  metrics_->CountSeconds(seconds, /*is_beside=*/true);
}

void Auditor::WorkIdle() {
  if (!has_work()) return;
  const double seconds = Piece();
  budget_.NoteIdle(seconds);
  metrics_->CountSeconds(seconds, /*is_beside=*/false);
}

// Returns how long it took.
double Auditor::Piece() {
  const double begin = options_.seconds_now();
  if (replay_ == nullptr) {
    const Waiting next = std::move(queue_.front());
    queue_.pop_front();
    cache_ = next.cache;
    replay_ = std::make_unique<AnswerReplay>(
        *next.answer, models_.none, models_.levels[cache_.level_idx], cache_.layout, &pool_);
    const std::lock_guard lock(mutex_);
    n_queued_ = static_cast<int>(queue_.size());
    metrics_->SetQueued(n_queued_);
  }
  const Status status = replay_->Step(models_.threads);
  if (!status.ok()) {
    Skip(cache_, "failed");
    log_("audit_failed", {{"kv", models_.kv[cache_.level_idx]}, {"error", MessageOf(status)}});
    replay_.reset();
  } else if (replay_->is_done()) {
    const ReplayScore score = replay_->score();
    replay_.reset();
    Record(score);
  }
  metrics_->SetBytes(pool_.usage().used_bytes, options_.memory_bytes);
  return options_.seconds_now() - begin;
}

void Auditor::Record(const ReplayScore& score) {
  metrics_->CountAudited(LabelsOf(cache_), score);
  {
    const std::lock_guard lock(mutex_);
    figures_[{cache_.level_idx, cache_.rate}].Add(score);
  }
  if (choice_.has_value() && !cache_.rate.has_value()) Act(cache_.level_idx, score);
}

void Auditor::Act(int level_idx, const ReplayScore& score) {
  const int before = choice_->chosen();
  const std::optional<int> chosen = choice_->Add(level_idx, score);
  if (!chosen.has_value()) return;
  log_("audit_level", {{"kv", models_.kv[*chosen]},
                       {"was", models_.kv[before]},
                       {"bound", choice_->bound()},
                       {"kl", choice_->mean_kl(*chosen)},
                       {"kl_was", choice_->mean_kl(before)},
                       {"positions", choice_->n_positions(*chosen)}});
}

nlohmann::ordered_json Auditor::ToJson() const {
  nlohmann::ordered_json json = {{"share", options_.share},
                                 {"memory_bytes", options_.memory_bytes},
                                 {"acts_within", nullptr},
                                 {"default_kv", models_.kv.front()}};
  if (choice_.has_value()) {
    json["acts_within"] = choice_->bound();
    json["default_kv"] = models_.kv[choice_->chosen()];
  }
  const std::lock_guard lock(mutex_);
  json["queued"] = n_queued_;
  json["skipped"] = skipped_;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& [key, figures] : figures_) {
    nlohmann::ordered_json row = {{"kv", models_.kv[key.first]}, {"rate", nullptr}};
    if (key.second.has_value()) row["rate"] = *key.second;
    row.update(kvlathe::ToJson(figures));
    rows.push_back(std::move(row));
  }
  json["rows"] = std::move(rows);
  return json;
}

}  // namespace kvlathe::server
