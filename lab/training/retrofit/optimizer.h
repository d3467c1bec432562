// AdamW (Loshchilov and Hutter 2019) and Muon move the parameters of a Decoder.
#pragma once

#include <torch/optim/adamw.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "training/retrofit/decoder.h"
#include "training/retrofit/recipe.h"

namespace kvlathe {

// The orthogonal factor of `g` (rows x columns) by five Newton-Schulz steps with the coefficients
// of Jordan et al. (2024): singular values end between about 0.7 and 1.2.
torch::Tensor Orthogonalise(const torch::Tensor& g, torch::ScalarType compute_type);

class Optimizer {
 public:
  // `decoder` outlives the optimiser, which moves those of its parameters that require a gradient.
  // The rows of W_K that decide move `deciding_rate` times as fast as all else.
  Optimizer(const Decoder* decoder, const OptimizerSettings& settings,
            torch::ScalarType compute_type, double deciding_rate = 1);

  // Scales the gradients to the clip norm, moves the parameters, clears the gradients. Returns the
  // norm before clipping; a norm that is not finite moves nothing.
  double Step(double learning_rate);

  // Moments and step counts; with the parameters, all that a run carries from step to step.
  void Save(torch::serialize::OutputArchive* archive) const;
  void Load(torch::serialize::InputArchive* archive);

 private:
  // A matrix of a layer, when Muon moves them.
  struct MuonMatrix {
    torch::Tensor w, momentum;
    int n_parts;  // side by side in w; each is orthogonalised for itself, as Q, K and V are
  };
  void SetOptions();
  void Move(double learning_rate);
  void MoveByMuon(double learning_rate);

  OptimizerSettings settings_;
  torch::ScalarType compute_type_;
  std::unique_ptr<torch::optim::AdamW> adamw_;
  std::vector<torch::Tensor> all_;       // that are moved
  std::vector<torch::Tensor> deciding_;  // rows of them with a rate of their own
  double deciding_rate_;
  std::vector<MuonMatrix> muon_;
};

}  // namespace kvlathe
