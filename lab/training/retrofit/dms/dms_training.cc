// What a Trainer does for heads of Dynamic Memory Sparsification beside its steps.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "training/retrofit/dms/dms_fit.h"
#include "training/retrofit/dms/dms_pass.h"
#include "training/retrofit/trainer.h"

namespace kvlathe {

using torch::Tensor;

namespace {

// Notes the logits of every layer; nothing leaves.
class LogitPass : public MergePass {
 public:
  LogitPass(const Decoder& decoder, const DmsRecipe& recipe) : decoder_(decoder), recipe_(recipe) {}

  void Observe(const Tensor& residual) override {
    const DmsHead& head = decoder_.dms_heads()[logits.size()];
    const Tensor all = DmsLogits(head, residual, recipe_, decoder_.config().norms.eps);
    // Of the entries that some query is too far from.
    const int64_t n_far = all.size(2) - recipe_.window - recipe_.n_sink;
    logits.push_back(all.narrow(2, recipe_.n_sink + 1, std::max<int64_t>(0, n_far)).flatten());
  }
  Merged Merge(const Tensor& q, const Tensor& k, const Tensor& v) override { return {q, k, v, {}}; }

  std::vector<Tensor> logits;

 private:
  const Decoder& decoder_;
  const DmsRecipe& recipe_;
};

// The tokens of a batch without those behind its last inputs.
Tensor WithoutTargets(const Tensor& batch) {
  return batch.narrow(1, 0, batch.size(1) - 1).bitwise_and(~int64_t{kNotLearned});
}

}  // namespace

Status Trainer::FitDmsHeads(const std::function<void(int64_t, int64_t)>& on_sequence) {
  KVL_CHECK(recipe_->dms.has_value());
  const DmsRecipe& dms = *recipe_->dms;
  const int context = recipe_->phases.front().context;
  const int64_t n = (dms.fit_tokens + context - 1) / context;
  if (n == 0) return OkStatus();
  DmsFit fit(decoder_.get(), &dms, options_.compute_type, recipe_->seed);
  for (int64_t i = 0; i < n; ++i) {
    const Tensor batch =
        ReadBatch(1, context, [&](int64_t, std::span<int64_t> out) { order_.Read(0, i, out); });
    fit.Add(WithoutTargets(batch));
    if (on_sequence) on_sequence(i + 1, n);
  }
  state_.phase_sequences = n;
  return fit.Solve(dms.KeptShare(context));
}

StatusOr<DmsRecipe> Trainer::CalibratedDms() const {
  KVL_CHECK(recipe_->dms.has_value());
  DmsRecipe dms = *recipe_->dms;
  const torch::NoGradGuard no_grad;
  const int context = recipe_->phases[state_.phase_idx].context;
  std::vector<Tensor> logits;
  for (int64_t i = 0; i < order_.n_validation_sequences(context); ++i) {
    const Tensor batch = ReadBatch(
        1, context, [&](int64_t, std::span<int64_t> out) { order_.ReadValidation(i, out); });
    LogitPass pass(*decoder_, dms);
    decoder_->Hidden(WithoutTargets(batch), options_.compute_type, &pass);
    logits.insert(logits.end(), pass.logits.begin(), pass.logits.end());
  }
  if (logits.empty()) return dms;
  const Tensor sorted = std::get<0>(torch::cat(logits).sort());
  if (sorted.numel() == 0) return dms;
  // Those above 0 leave.
  const auto last = static_cast<double>(sorted.numel() - 1);
  const double at = sorted[std::llround(dms.KeptShare(context) * last)].item<double>();
  if (!std::isfinite(at)) {
    return Error(StatusCode::kDataLoss, "the logits of the heads are not finite");
  }
  dms.offset += at;
  return dms;
}

}  // namespace kvlathe
