#include "tuning/tune.h"

#include <algorithm>
#include <map>

namespace kvlathe {
namespace {

TunedTarget* TargetOf(Profile* profile, double accuracy) {
  const auto target = std::ranges::find(profile->targets, accuracy, &TunedTarget::accuracy);
  if (target != profile->targets.end()) return &*target;
  profile->targets.push_back({accuracy, {}});
  return &profile->targets.back();
}

class Tuner {
 public:
  Tuner(const TuneJob& job, Profile* profile)
      : job_(job), profile_(profile), recorder_(job.evaluator, profile, job.save) {}

  Status Run();

 private:
  Status MeasureBaseline();
  // Searches the method and keeps the result.
  StatusOr<std::optional<TunePoint>> TuneMethodOf(const TuneMethod& method);
  Status TuneDefaults();
  Status TuneComposition(const std::vector<Axis>& axes);

  const TuneJob& job_;
  Profile* profile_;
  PointRecorder recorder_;
  struct Winner {
    std::string method;
    double kv_fraction = 0;
  };
  std::map<Axis, Winner> winners_;
};

Status Tuner::MeasureBaseline() {
  KVL_ASSIGN_OR_RETURN(const TunePoint baseline, recorder_.Baseline());
  for (size_t g = 0; g < profile_->goals.size(); ++g) {
    if (baseline.scores[g].value > 0) continue;
    return Error(StatusCode::kInvalidArgument,
                 "{}: the uncompressed model scores 0, so there is no accuracy to keep; leave this "
                 "task out",
                 profile_->goals[g].name);
  }
  return OkStatus();
}

StatusOr<std::optional<TunePoint>> Tuner::TuneMethodOf(const TuneMethod& method) {
  if (job_.on_method) job_.on_method(method.name);
  KVL_ASSIGN_OR_RETURN(std::optional<TunePoint> best,
                       SearchMethod(method, job_.accuracy, &recorder_));
  std::vector<TunedMethod>& methods = TargetOf(profile_, job_.accuracy)->methods;
  const std::string question = method.question.ToString();
  auto entry = std::ranges::find(methods, question, &TunedMethod::question);
  if (entry == methods.end()) entry = methods.insert(methods.end(), {method.name, question, ""});
  entry->kv = best.has_value() ? best->kv : "";
  KVL_RETURN_IF_ERROR(job_.save(*profile_));
  return best;
}

Status Tuner::TuneDefaults() {
  for (const auto& [text, axis] : DefaultMethods()) {
    KVL_ASSIGN_OR_RETURN(const TuneMethod method, ParseMethod(text, job_.accuracy));
    KVL_ASSIGN_OR_RETURN(const std::optional<TunePoint> best, TuneMethodOf(method));
    if (!best.has_value()) continue;
    const auto [winner, is_first] = winners_.try_emplace(axis);
    if (!is_first && winner->second.kv_fraction <= best->kv_fraction) continue;
    winner->second = {std::string(text), best->kv_fraction};
  }
  using enum Axis;
  for (const std::vector<Axis>& axes :
       std::vector<std::vector<Axis>>{{kBasis, kQuantizer},
                                      {kRetention, kQuantizer},
                                      {kBasis, kRetention},
                                      {kBasis, kRetention, kQuantizer}}) {
    KVL_RETURN_IF_ERROR(TuneComposition(axes));
  }
  return OkStatus();
}

Status Tuner::TuneComposition(const std::vector<Axis>& axes) {
  std::string text;
  for (Axis axis : axes) {
    if (!winners_.contains(axis)) return OkStatus();
    text += (text.empty() ? "" : "+") + winners_[axis].method;
  }
  KVL_ASSIGN_OR_RETURN(const TuneMethod method, ParseMethod(text, job_.accuracy));
  if (!CheckMethodSupported(method).ok()) return OkStatus();  // the two do not go together
  return TuneMethodOf(method).status();
}

Status Tuner::Run() {
  std::vector<TuneMethod> methods;  // a wrong one is refused before anything takes time
  for (const std::string& text : job_.methods) {
    KVL_ASSIGN_OR_RETURN(TuneMethod method, ParseMethod(text, job_.accuracy));
    KVL_RETURN_IF_ERROR(CheckMethodSupported(method));
    methods.push_back(std::move(method));
  }
  KVL_RETURN_IF_ERROR(MeasureBaseline());
  if (methods.empty()) return TuneDefaults();
  for (const TuneMethod& method : methods) {
    KVL_RETURN_IF_ERROR(TuneMethodOf(method).status());
  }
  return OkStatus();
}

}  // namespace

Status Tune(const TuneJob& job, Profile* profile) { return Tuner(job, profile).Run(); }

}  // namespace kvlathe
