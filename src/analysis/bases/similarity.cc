#include "analysis/bases/similarity.h"

#include <cmath>
#include <span>

#include "analysis/statistics/spectrum.h"

namespace kvlathe {
namespace {

constexpr double kRotationTolerance = 1e-3;  // of the squares of a column, which are 1

// Columns of [dim, dim], row-major.
double ProductOfColumns(const std::vector<float>& a, int i, const std::vector<float>& b, int j,
                        int dim) {
  double sum = 0;
  for (int c = 0; c < dim; ++c) sum += double{a[c * dim + i]} * b[c * dim + j];
  return sum;
}

bool IsRotation(const std::vector<float>& map, int dim) {
  if (std::ssize(map) != int64_t{dim} * dim) return false;
  for (int i = 0; i < dim; ++i) {
    for (int j = 0; j <= i; ++j) {
      const double expected = i == j ? 1 : 0;
      if (std::abs(ProductOfColumns(map, i, map, j, dim) - expected) > kRotationTolerance) {
        return false;
      }
    }
  }
  return true;
}

double ElementDifference(const std::vector<float>& a, const std::vector<float>& b, int dim) {
  double sum = 0;
  for (int i = 0; i < dim; ++i) {
    const float sign = ProductOfColumns(a, i, b, i, dim) < 0 ? -1 : 1;
    for (int c = 0; c < dim; ++c) sum += std::abs(a[c * dim + i] - sign * b[c * dim + i]);
  }
  return sum / (double{1} * dim * dim);
}

// Sums over heads.
class SimilaritySum {
 public:
  explicit SimilaritySum(int dim) : dim_(dim) {}

  // `values` [dim] are the singular values of the other's rows, in its own directions.
  void Add(const std::vector<float>& map, const std::vector<float>& other,
           std::span<const double> values, int rank) {
    for (int j = 0; j < dim_; ++j) {
      const double energy = values[j] * values[j];
      double inside = 0;  // the share of direction j of the other in this one's first `rank`
      for (int i = 0; i < rank; ++i) {
        const double cosine = ProductOfColumns(map, i, other, j, dim_);
        inside += cosine * cosine;
      }
      kept_ += energy * inside;
      all_ += energy;
      if (j < rank) own_ += energy;
    }
    overlap_ += SubspaceOverlap(map, other, dim_, rank);
    difference_ += ElementDifference(map, other, dim_);
    ++n_heads_;
  }

  RotationSimilarity Result() const {
    const double behind_own = all_ - own_, behind = all_ - kept_;
    return {.kept = own_ > 0 ? kept_ / own_ : 1,
            .lost = behind_own > 0 ? behind / behind_own : 1,
            .overlap = overlap_ / n_heads_,
            .element_difference = difference_ / n_heads_};
  }

 private:
  int dim_;
  int n_heads_ = 0;
  double kept_ = 0, own_ = 0, all_ = 0, overlap_ = 0, difference_ = 0;
};

}  // namespace

StatusOr<BasisSimilarity> CompareRotations(const BasisAnalysis& basis, const BasisAnalysis& other,
                                           const std::vector<HeadRanks>& ranks) {
  if (basis.shape != other.shape || ranks.size() != basis.heads.size()) {
    return Error(StatusCode::kInvalidArgument, "bases of two models cannot be compared");
  }
  const int dim = basis.shape.head_dim;
  SimilaritySum qk(dim), v(dim);
  for (size_t h = 0; h < basis.heads.size(); ++h) {
    const HeadAnalysis &mine = basis.heads[h], &theirs = other.heads[h];
    for (const auto* map :
         {&mine.key_basis, &mine.value_basis, &theirs.key_basis, &theirs.value_basis}) {
      if (IsRotation(*map, dim)) continue;
      return Error(StatusCode::kInvalidArgument,
                   "the maps of this method are no rotations; fdc and zack can be compared");
    }
    qk.Add(mine.key_basis, theirs.key_basis, other.spectra[h].qk, ranks[h].rank_k);
    v.Add(mine.value_basis, theirs.value_basis, other.spectra[h].v, ranks[h].rank_v);
  }
  return BasisSimilarity{qk.Result(), v.Result()};
}

}  // namespace kvlathe
