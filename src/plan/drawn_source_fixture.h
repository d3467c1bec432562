// Tests make plans of a small model from statistics that were drawn.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "plan/planner.h"

namespace kvlathe {

inline ModelFacts SmallModel(int n_layers, int n_kv_heads) {
  ModelFacts model;
  model.n_layers = n_layers;
  model.n_kv_heads = n_kv_heads;
  model.head_dim = 32;
  model.max_seq_len = 4096;
  model.rope_dim = model.head_dim;
  return model;
}

// Squares of rows whose channels fall by `decay`, [n_layers, width, width].
inline void DrawSquares(Random* random, int width, double size, double decay,
                        std::vector<float>* squares) {
  const size_t n_layers = squares->size() / width / width;
  for (size_t l = 0; l < n_layers; ++l) {
    for (int r = 0; r < 2 * width; ++r) {
      std::vector<double> row(width);
      for (int i = 0; i < width; ++i) row[i] = random->Normal() * std::exp(-decay * i);
      for (int i = 0; i < width; ++i) {
        for (int j = 0; j < width; ++j) {
          (*squares)[(l * width + i) * width + j] +=
              static_cast<float>(size * row[i] * row[j] / (2 * width));
        }
      }
    }
  }
}

inline JointStatistics DrawPart(const StatisticsShape& shape, uint64_t seed) {
  Random random(seed);
  const int width = shape.n_kv_heads * shape.head_dim;
  JointStatistics part = MakeStatistics(shape).joint;
  part.n_tokens = 100;
  for (JointMoments* moments : {&part.k, &part.k_pre, &part.v}) {
    DrawSquares(&random, width, 1, 0.04, &moments->covariance);
    moments->weighed_covariance = moments->covariance;
    DrawSquares(&random, width, 0.01, 0.02, &moments->fisher);
  }
  return part;
}

// Statistics for lathe, and weights of which nothing is known but Gram matrices of the output that
// hold the number of their head.
class DrawnSource : public PlanSource {
 public:
  explicit DrawnSource(const ModelFacts& model)
      : statistics(MakeStatistics(
            {model.n_layers, 2 * model.n_kv_heads, model.n_kv_heads, model.head_dim})) {
    statistics.joint = DrawPart(statistics.shape, 3);
    statistics.held_back = DrawPart(statistics.shape, 4);
    statistics.through_all = statistics.joint;
  }

  bool is_random() const override { return draws_bases; }
  StatusOr<const CalibrationStatistics*> Statistics(const StatisticsNeed&) override {
    return &statistics;
  }
  StatusOr<const FisherWeights*> Fisher(const Spec&) override {
    return Error(StatusCode::kNotFound, "no Fisher information");
  }
  StatusOr<std::vector<std::vector<double>>> ValueGrams(int) override { return Nothing(); }
  StatusOr<std::vector<std::vector<double>>> KeyGrams(int) override { return Nothing(); }
  StatusOr<std::vector<std::vector<double>>> OutputGrams() override {
    std::vector<std::vector<double>> grams;
    const StatisticsShape& s = statistics.shape;
    const size_t square = static_cast<size_t>(s.head_dim) * s.head_dim;
    for (int h = 0; h < s.n_layers * s.n_kv_heads; ++h) grams.emplace_back(square, h);
    return grams;
  }
  StatusOr<std::vector<std::vector<float>>> ValueBiases() override {
    return std::vector<std::vector<float>>();
  }
  StatusOr<std::vector<std::vector<float>>> KeyBiases() override {
    return std::vector<std::vector<float>>();
  }
  ThreadPool* threads() override { return nullptr; }

  CalibrationStatistics statistics;
  bool draws_bases = false;  // the model then counts as one with random weights

 private:
  static std::vector<std::vector<double>> Nothing() { return {}; }
};

}  // namespace kvlathe
