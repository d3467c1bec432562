#include "training/retrofit/optimizer.h"

#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
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
                     torch::ScalarType compute_type, double deciding_rate)
    : settings_(settings), compute_type_(compute_type), deciding_rate_(deciding_rate) {
  if (deciding_rate != 1) deciding_ = DecidingRows(*decoder);
  std::vector<Tensor> decayed, plain;
  for (const auto& [name, tensor] : decoder->parameters()) {
    if (!tensor.requires_grad()) continue;
    all_.push_back(tensor);
    if (tensor.dim() < 2) {
      plain.push_back(tensor);
    } else if (settings.muon && LayerOf(name) >= 0) {
      muon_.push_back({tensor, torch::zeros_like(tensor).set_requires_grad(false),
                       name.ends_with("attn.c_attn.weight") ? 3 : 1});
    } else {
      decayed.push_back(tensor);
    }
  }
  adamw_ = std::make_unique<torch::optim::AdamW>(
      std::vector<torch::optim::OptimizerParamGroup>{{decayed}, {plain}});
  SetOptions();
}

void Optimizer::SetOptions() {
  for (size_t i = 0; i < adamw_->param_groups().size(); ++i) {
    auto options = std::make_unique<torch::optim::AdamWOptions>(settings_.learning_rate);
    options->betas({settings_.beta1, settings_.beta2});
    options->eps(settings_.epsilon);
    options->weight_decay(i == 0 ? settings_.weight_decay : 0);  // matrices come first
    adamw_->param_groups()[i].set_options(std::move(options));
  }
}

double Optimizer::Step(double learning_rate) {
  const double norm = torch::nn::utils::clip_grad_norm_(all_, settings_.clip_norm);
  if (std::isfinite(norm)) Move(learning_rate);
  for (Tensor& parameter : all_) parameter.mutable_grad() = Tensor();
  return norm;
}

void Optimizer::Move(double learning_rate) {
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> before;
  for (const Tensor& rows : deciding_) before.push_back(rows.clone());
  for (torch::optim::OptimizerParamGroup& group : adamw_->param_groups()) {
    group.options().set_lr(learning_rate);
  }
  adamw_->step();
  MoveByMuon(learning_rate);
  // A move is linear in the learning rate.
  for (size_t i = 0; i < deciding_.size(); ++i) {
    deciding_[i].copy_(before[i] + (deciding_[i] - before[i]) * deciding_rate_);
  }
}

void Optimizer::MoveByMuon(double learning_rate) {
  const torch::NoGradGuard no_grad;
  for (MuonMatrix& matrix : muon_) {
    const Tensor& g = matrix.w.grad();
    matrix.momentum.mul_(settings_.momentum).add_(g);
    const Tensor ahead = g + matrix.momentum * settings_.momentum;
    matrix.w.mul_(1 - learning_rate * settings_.weight_decay);
    const std::vector<Tensor> updates = ahead.chunk(matrix.n_parts, -1);
    std::vector<Tensor> parts = matrix.w.chunk(matrix.n_parts, -1);
    for (size_t i = 0; i < parts.size(); ++i) {
      // Updates of the root mean square of AdamW's, so that one learning rate serves both
      // (arXiv:2502.16982, section 2.2).
      const auto longer = static_cast<double>(std::max(parts[i].size(0), parts[i].size(1)));
      const double scale = 0.2 * std::sqrt(longer);
      parts[i].add_(Orthogonalise(updates[i], compute_type_), -learning_rate * scale);
    }
  }
}

void Optimizer::Save(torch::serialize::OutputArchive* archive) const {
  torch::serialize::OutputArchive adamw;
  adamw_->save(adamw);
  archive->write("adamw", adamw);
  for (size_t i = 0; i < muon_.size(); ++i) {
    archive->write("momentum." + std::to_string(i), muon_[i].momentum, /*is_buffer=*/true);
  }
}

void Optimizer::Load(torch::serialize::InputArchive* archive) {
  torch::serialize::InputArchive adamw;
  archive->read("adamw", adamw);
  adamw_->load(adamw);
  // Some versions of libtorch take the options of the file as well.
  SetOptions();
  for (size_t i = 0; i < muon_.size(); ++i) {
    archive->read("momentum." + std::to_string(i), muon_[i].momentum, /*is_buffer=*/true);
  }
}

}  // namespace kvlathe
