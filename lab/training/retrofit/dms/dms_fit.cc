#include "training/retrofit/dms/dms_fit.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "training/retrofit/merging/merge_pass.h"

namespace kvlathe {
namespace {

using torch::Tensor;

// Of a sequence, the share of its positions that must be too far from an entry to say what it is
// worth.
constexpr double kLeastFarShare = 0.125;
// Added to costs before the logarithm, of their mean.
constexpr double kCostFloor = 1e-4;
// Of an entry's cost, in the mean that is predicted for it, what a Newton step may count at most.
constexpr double kLargestRatio = 50;
constexpr int64_t kCurvatureRows = 16384;

// Takes notes of what a layer's heads see and of what its columns cost.
class MeasuringPass : public MergePass {
 public:
  MeasuringPass(const Decoder& decoder, const DmsRecipe& recipe)
      : decoder_(decoder), recipe_(recipe) {}

  void Observe(const Tensor& residual) override {
    const DmsHead& head = decoder_.dms_heads()[normed.size()];
    const Tensor x = residual.detach().reshape({-1, residual.size(2)});
    normed.push_back(RmsNorm(x, head.norm, decoder_.config().norms.eps, torch::kBFloat16));
  }

  Merged Merge(const Tensor& q, const Tensor& k, const Tensor& v) override {
    cost.push_back(torch::zeros({k.size(0), k.size(2), k.size(1)}, torch::kFloat).to(k.device()));
    // No weight has a gradient, so somebody must begin the graph.
    const Tensor begun = cost.size() == 1 ? q.detach().set_requires_grad(true) : q;
    return {begun, k, v, {.cost = cost.back(), .cost_distance = recipe_.window}};
  }

  std::vector<Tensor> normed, cost;  // of each layer

 private:
  const Decoder& decoder_;
  const DmsRecipe& recipe_;
};

// Of every row of the log of softmax(logits), an index drawn by its probabilities.
Tensor Draw(const Tensor& log_probs, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::multinomial(log_probs.cpu().exp(), 1, false, generator)
      .squeeze(1)
      .to(log_probs.device());
}

// x [n, hidden] with a column of ones.
Tensor WithOnes(const Tensor& x) {
  const Tensor wide = x.to(torch::kFloat);
  return torch::cat({wide, torch::ones({x.size(0), 1}, wide.options())}, 1);
}

}  // namespace

DmsFit::DmsFit(Decoder* decoder, const DmsRecipe* recipe, torch::ScalarType compute_type,
               uint64_t seed)
    : decoder_(decoder),
      recipe_(*recipe),
      compute_type_(compute_type),
      seed_(seed),
      layers_(static_cast<size_t>(decoder->config().n_layers)) {}

void DmsFit::Add(const Tensor& tokens) {
  const int64_t n_tokens = tokens.size(1);
  MeasuringPass pass(*decoder_, recipe_);
  const Tensor logits = decoder_->Logits(decoder_->Hidden(tokens, compute_type_, &pass));
  const Tensor log_probs = torch::log_softmax(logits.to(torch::kFloat), -1);
  const uint64_t seed = MixBits(seed_ ^ MixBits(static_cast<uint64_t>(n_sequences_)));
  const Tensor drawn = Draw(log_probs.detach(), seed);
  (-log_probs.gather(1, drawn.unsqueeze(1)).sum()).backward();
  ++n_sequences_;
  const auto least = std::max<int64_t>(1, std::llround(kLeastFarShare * n_tokens));
  const int64_t first = recipe_.n_sink, n = n_tokens - recipe_.window - least - first;
  if (n <= 0) return;
  const Tensor place = torch::arange(first, first + n, torch::kFloat);
  const Tensor n_far = (n_tokens - recipe_.window) - place;
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].normed.push_back(pass.normed[i].narrow(0, first + 1, n).cpu().clone());
    layers_[i].cost.push_back(pass.cost[i][0].narrow(1, first, n).cpu() / n_far);
    layers_[i].weight.push_back(n_far / static_cast<double>(n_tokens));
  }
}

Tensor DmsFit::Regress(const Rows& rows) const {
  const Tensor x = WithOnes(torch::cat(rows.normed));
  const Tensor cost = torch::cat(rows.cost, 1), weight = torch::cat(rows.weight);
  const Tensor floor = cost.mean() * kCostFloor;
  const Tensor log_cost = (cost + floor).log();
  const Tensor weighted = x * weight.unsqueeze(1);
  const auto n = static_cast<double>(x.size(0));
  const Tensor ridge = torch::eye(x.size(1), torch::kDouble) * (recipe_.fit_ridge * n / 1000);
  const Tensor gram = torch::mm(x.t(), weighted).to(torch::kDouble) + ridge;
  const Tensor solution =
      at::linalg_solve(gram, torch::mm(weighted.t(), log_cost.t()).to(torch::kDouble));
  Tensor of_log = solution.clone();
  // The curvature only says how far a step goes, so that a part of many rows says enough.
  const int64_t n_rows = x.size(0), every = std::max<int64_t>(1, n_rows / kCurvatureRows);
  const Tensor some = x.slice(0, 0, n_rows, every).contiguous();
  // The mean of the logarithm is not the logarithm of the mean, which is what an entry that leaves
  // costs: Newton steps towards the least sum of cost / prediction + log(prediction), which the
  // mean minimises, and which the regression is the first guess of.
  for (int step = 0; step < recipe_.fit_steps; ++step) {
    const Tensor predicted = torch::mm(x, of_log.to(torch::kFloat));
    for (int64_t h = 0; h < cost.size(0); ++h) {
      const Tensor ratio = (cost[h] * torch::exp(-predicted.select(1, h))).clamp_max(kLargestRatio);
      const Tensor slope = torch::mv(weighted.t(), 1 - ratio).to(torch::kDouble) +
                           torch::mv(ridge, of_log.select(1, h) - solution.select(1, h));
      const Tensor of_some =
          (ratio.clamp_min(0.2).unsqueeze(1) * weighted).slice(0, 0, n_rows, every);
      const Tensor curvature =
          torch::mm(some.t(), of_some).to(torch::kDouble) * static_cast<double>(every) + ridge;
      of_log.select(1, h).sub_(at::linalg_solve(curvature, slope) * 0.7);
    }
  }
  return of_log;
}

Status DmsFit::Solve(double kept_share) {
  const torch::NoGradGuard no_grad;
  if (layers_.front().normed.empty()) {
    return Error(StatusCode::kDataLoss,
                 "no sequence is long enough for a window of {} to have entries behind it",
                 recipe_.window);
  }
  std::vector<Tensor> solutions, predicted;
  for (const Rows& rows : layers_) {
    solutions.push_back(Regress(rows));
    const Tensor x = WithOnes(torch::cat(rows.normed));
    predicted.push_back(torch::mm(x, solutions.back().to(torch::kFloat)).flatten());
  }
  const Tensor sorted = std::get<0>(torch::cat(predicted).sort());
  const auto last = static_cast<double>(sorted.numel() - 1);
  const double threshold = sorted[std::llround((1 - kept_share) * last)].item<double>();
  if (!std::isfinite(threshold)) {
    return Error(StatusCode::kDataLoss, "costs of entries are not finite on this text");
  }
  // a = slope (threshold - prediction), and a = scale (w x + b) - offset.
  for (size_t i = 0; i < solutions.size(); ++i) {
    const int64_t hidden = decoder_->config().hidden_dim;
    const Tensor w = solutions[i].narrow(0, 0, hidden), b = solutions[i][hidden];
    const DmsHead& head = decoder_->dms_heads()[i];
    const double factor = recipe_.fit_slope / recipe_.scale;
    Tensor(head.weight).copy_(w.t() * -factor);
    Tensor(head.bias).copy_((threshold - b) * factor + recipe_.offset / recipe_.scale);
  }
  return OkStatus();
}

}  // namespace kvlathe
