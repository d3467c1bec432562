#include "retrofit/optimizer.h"

#include <cmath>

namespace kvlathe {

using torch::Tensor;

Tensor Orthogonalise(const Tensor& g, torch::ScalarType compute_type) {
  const bool is_tall = g.size(0) > g.size(1);
  Tensor x = (is_tall ? g.t() : g).to(compute_type);
  x = x / (x.norm() + 1e-7);
  for (int i = 0; i < 5; ++i) {
    const Tensor gram = torch::mm(x, x.t());
    const Tensor polynomial = gram * -4.7750 + torch::mm(gram, gram) * 2.0315;
    x = x * 3.4445 + torch::mm(polynomial, x);
  }
  return (is_tall ? x.t() : x).to(g.scalar_type());
}

Optimizer::Optimizer(const Decoder* decoder, const OptimizerSettings& settings,
                     torch::ScalarType compute_type)
    : settings_(settings), compute_type_(compute_type) {
  std::vector<Tensor> decayed, plain;
  for (const auto& [name, tensor] : decoder->parameters()) {
    all_.push_back(tensor);
    if (tensor.dim() < 2) {
      plain.push_back(tensor);
    } else if (settings.muon && name.find(".layers.") != std::string::npos) {
      muon_.push_back(tensor);
      momentum_.push_back(torch::zeros_like(tensor).set_requires_grad(false));
    } else {
      decayed.push_back(tensor);
    }
  }
  const auto options = [&](double weight_decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(settings.learning_rate)
            .betas({settings.beta1, settings.beta2})
            .eps(settings.epsilon)
            .weight_decay(weight_decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(decayed, options(settings.weight_decay));
  groups.emplace_back(plain, options(0));
  adamw_ = std::make_unique<torch::optim::AdamW>(std::move(groups));
}

double Optimizer::Step(double learning_rate) {
  const double norm = torch::nn::utils::clip_grad_norm_(all_, settings_.clip_norm);
  if (std::isfinite(norm)) {
    for (torch::optim::OptimizerParamGroup& group : adamw_->param_groups()) {
      group.options().set_lr(learning_rate);
    }
    adamw_->step();
    MoveByMuon(learning_rate);
  }
  for (Tensor& parameter : all_) parameter.mutable_grad() = Tensor();
  return norm;
}

void Optimizer::MoveByMuon(double learning_rate) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < muon_.size(); ++i) {
    Tensor& w = muon_[i];
    const Tensor& g = w.grad();
    momentum_[i].mul_(settings_.momentum).add_(g);
    const Tensor ahead = g + momentum_[i] * settings_.momentum;
    // Updates of the root mean square of AdamW's, so that one learning rate serves both
    // (arXiv:2502.16982, section 2.2).
    const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(w.size(0), w.size(1))));
    w.mul_(1 - learning_rate * settings_.weight_decay);
    w.add_(Orthogonalise(ahead, compute_type_), -learning_rate * scale);
  }
}

void Optimizer::Save(torch::serialize::OutputArchive* archive) const {
  torch::serialize::OutputArchive adamw;
  adamw_->save(adamw);
  archive->write("adamw", adamw);
  for (size_t i = 0; i < momentum_.size(); ++i) {
    archive->write("momentum." + std::to_string(i), momentum_[i], /*is_buffer=*/true);
  }
}

void Optimizer::Load(torch::serialize::InputArchive* archive) {
  torch::serialize::InputArchive adamw;
  archive->read("adamw", adamw);
  adamw_->load(adamw);
  for (size_t i = 0; i < momentum_.size(); ++i) {
    archive->read("momentum." + std::to_string(i), momentum_[i], /*is_buffer=*/true);
  }
}

}  // namespace kvlathe
