#include "plan/drawn_basis.h"

#include <algorithm>
#include <cmath>

#include "analysis/bases/palu.h"
#include "analysis/ranks/bit_ladder.h"
#include "base/check.h"
#include "base/random.h"
#include "plan/basis_analyses.h"

namespace kvlathe {
namespace {

constexpr uint64_t kDrawnBasisSeed = 1;

}  // namespace

std::vector<int> DrawRanks(int n, int head_dim, double rate, uint64_t seed) {
  constexpr double kVariation = 0.3;
  const int n_ranks = 2 * n;
  if (rate == 0) return std::vector<int>(n_ranks, head_dim);
  const double mean_rank = (1 - rate) * head_dim;
  Random random(seed);
  std::vector<int> ranks(n_ranks);
  int64_t excess = 0;  // in steps of 16
  for (int& rank : ranks) {
    const double drawn = mean_rank * (1 + kVariation * random.Normal());
    rank = std::clamp(static_cast<int>(std::lround(drawn / 16)) * 16, 16, head_dim);
    excess += rank / 16;
  }
  excess -= std::max<int64_t>(n_ranks, std::llround(std::ceil(mean_rank * n_ranks / 16)));
  // A few random ranks move by one step until the mean is right.
  while (excess != 0) {
    int& rank = ranks[random.Below(n_ranks)];
    const int step = excess > 0 ? -16 : 16;
    if (rank + step < 16 || rank + step > head_dim) continue;
    rank += step;
    excess += step / 16;
  }
  return ranks;
}

std::vector<HeadRanks> DrawSplits(int n, int head_dim, double ratio, uint64_t seed,
                                  const DrawnRows& rows) {
  const bool has_classes = rows.has_classes;
  const int n_channels = rows.joins_values ? 2 * head_dim : head_dim;
  constexpr double kLastOverFirst = 0.02, kVariation = 0.3;  // singular values of a mean head
  Random random(seed);
  std::vector<HeadSpectra> spectra(n);
  std::vector<HeadNoise> noise(n);
  const auto draw = [&](std::vector<double>* values, std::vector<double>* squares) {
    const double rate = std::max(0.2, 1 + kVariation * random.Normal());
    for (int i = 0; i < n_channels; ++i) {
      const double s = std::pow(kLastOverFirst, rate * i / n_channels);
      values->push_back(s);
      squares->push_back(s * s);
    }
  };
  for (int h = 0; h < n; ++h) {
    draw(&spectra[h].qk, &noise[h].qk);
    if (!rows.joins_values) draw(&spectra[h].v, &noise[h].v);
  }
  RankRequest request{.goal = RankRequest::Goal::kRatio, .value = ratio};
  request.has_classes = has_classes;
  request.kv_fraction = [&](const std::vector<HeadRanks>& ranks) {
    double bits = 0;
    for (const HeadRanks& r : ranks) {
      const int middle = r.bits.middle.k.bits_per_token() + r.bits.middle.v.bits_per_token();
      const auto of = [](const EntryBits& b) {
        return b.k.bits_per_token() + b.v.bits_per_token();
      };
      bits += has_classes ? (2 * middle + of(r.bits.most) + of(r.bits.least)) / 4.0 : middle;
    }
    return bits / (int64_t{16} * 2 * head_dim * n);
  };
  StatusOr<RankAllocation> allocation = AllocateBits(spectra, noise, n_channels, request);
  KVL_CHECK(allocation.ok());
  return std::move(allocation->ranks);
}

StatusOr<std::vector<HeadRanks>> DrawPressedSplits(int n, int head_dim, double ratio,
                                                   double under_pressure, uint64_t seed,
                                                   const DrawnRows& rows) {
  if (under_pressure > head_dim) {
    return Error(StatusCode::kInvalidArgument,
                 "under_pressure={}: the fewest bits of random weights reach {}; ask for less",
                 under_pressure, head_dim);
  }
  std::vector<HeadRanks> ranks = DrawSplits(n, head_dim, ratio, seed, rows);
  KVL_RETURN_IF_ERROR(TakePressedBits(DrawSplits(n, head_dim, under_pressure, seed, rows), &ranks));
  return ranks;
}

std::vector<HeadRanks> UniformRanks(int n, int head_dim, double rate) {
  const RankLadder ladder = RankLadder::Uniform(n, head_dim, 16);
  return ladder.AllocationAt(ladder.LastLevelWithin(rate)).ranks;
}

ModelBasis DrawRandomBasis(int n_layers, int n_kv_heads, int head_dim,
                           const std::vector<HeadRanks>& ranks, uint64_t seed, const Keys& keys) {
  Random random(seed);
  const int n_sharing = HeadsPerLatent(keys);
  KVL_CHECK_EQ(std::ssize(ranks) * n_sharing, int64_t{n_layers} * n_kv_heads);
  const bool are_latents = TurnWhenRead(keys);
  const int64_t width = int64_t{n_sharing} * head_dim;
  const double deviation = 1 / std::sqrt(width);
  const auto matrix = [&](int64_t n) {
    std::vector<float> values(n);
    for (float& v : values) v = static_cast<float>(deviation * random.Normal());
    return values;
  };
  ModelBasis basis{n_layers, n_kv_heads, head_dim, {}, keys};
  for (int h = 0; h < n_layers * n_kv_heads; ++h) {
    const HeadRanks& r = ranks[h / n_sharing];
    HeadBasis head{.rank_k = r.rank_k, .rank_v = r.rank_v};
    head.bits = r.bits;
    head.key_basis = matrix(width * head.rank_k);
    (are_latents ? head.key_way_back : head.query_basis) = head.key_basis;
    // Maps of no use, like the others, for the work of real ones.
    const std::vector<float> cut(int64_t{head_dim} * std::max(0, head_dim - head.rank_k));
    if (!are_latents) head.cut = {cut, cut};
    if (TurningPairs(keys) > 0) head.turning_mean = matrix(head_dim);
    head.value_basis = matrix(width * head.rank_v);
    head.output_basis = matrix(width * head.rank_v);
    basis.heads.push_back(std::move(head));
  }
  return basis;
}

ModelBasis DrawRandomBasis(int n_layers, int n_kv_heads, int head_dim, double rate, uint64_t seed,
                           const Keys& keys) {
  const int n_total = n_layers * n_kv_heads / HeadsPerLatent(keys);
  const std::vector<int> drawn = DrawRanks(n_total, head_dim, rate, seed);
  std::vector<HeadRanks> ranks;
  for (int i = 0; i < n_total; ++i) ranks.push_back({drawn[2 * i], drawn[2 * i + 1]});
  return DrawRandomBasis(n_layers, n_kv_heads, head_dim, ranks, seed, keys);
}

ModelBasis DrawRandomSplitBasis(int n_layers, int n_kv_heads, int head_dim, double ratio,
                                uint64_t seed, const Keys& keys, bool has_classes) {
  return DrawRandomBasis(
      n_layers, n_kv_heads, head_dim,
      DrawSplits(n_layers * n_kv_heads, head_dim, ratio, seed, {has_classes, JoinsValues(keys)}),
      seed, keys);
}

Status CheckDrawnRanks(const Spec& spec) {
  const RankOptions* const ranks = spec.basis() == nullptr ? nullptr : RanksOf(*spec.basis());
  if (ranks == nullptr || ranks->choice != RankOptions::Choice::kFisher) return OkStatus();
  return Error(
      StatusCode::kInvalidArgument,
      "--kv '{}': random weights have no gradients that mean anything; leave ranks out, or "
      "take uniform",
      spec.text());
}

namespace {

// Makes values in all columns, of which the cache holds the ranks that were drawn.
void KeepSinkValues(ModelBasis* basis) {
  Random random(kDrawnBasisSeed + 1);
  const double deviation = 1 / std::sqrt(basis->head_dim);
  for (HeadBasis& head : basis->heads) {
    head.stored_rank_v = head.rank_v;
    if (JoinsValues(basis->keys)) continue;  // they have all columns
    head.rank_v = basis->head_dim;
    for (std::vector<float>* map : {&head.value_basis, &head.output_basis}) {
      map->resize(int64_t{basis->head_dim} * basis->head_dim);
      for (float& x : *map) x = static_cast<float>(deviation * random.Normal());
    }
  }
}

StatusOr<ModelBasis> DrawStoredBasis(const Spec& spec, const ModelFacts& model) {
  const RankOptions& ranks = *RanksOf(*spec.basis());
  if (IsResident(*spec.basis())) {
    return Error(StatusCode::kUnimplemented,
                 "--kv '{}': a model with random weights has no basis of all dimensions; leave "
                 "resident out",
                 spec.text());
  }
  const int heads_per_latent = HeadsPerLatent(spec.keys());
  KVL_RETURN_IF_ERROR(CheckHeadsPerLatent(heads_per_latent, model.n_kv_heads));
  KVL_RETURN_IF_ERROR(CheckDrawnRanks(spec));
  if (ranks.has_rate() && ranks.choice == RankOptions::Choice::kUniform) {
    const int n_latents = model.n_layers * model.n_kv_heads / heads_per_latent;
    return DrawRandomBasis(model.n_layers, model.n_kv_heads, model.head_dim,
                           UniformRanks(n_latents, model.head_dim, ranks.value), kDrawnBasisSeed,
                           spec.keys());
  }
  if (ranks.has_rate()) {
    return DrawRandomBasis(model.n_layers, model.n_kv_heads, model.head_dim, ranks.value,
                           kDrawnBasisSeed, spec.keys());
  }
  const SealingFacts sealing = FactsOf(spec.sealing());
  if (sealing.splits_bits) {
    const Keys keys = KeysOf(spec, model);
    const int n = HeadsPerMap(keys);
    const double under_pressure = spec.basis_as<LatheOptions>()->under_pressure;
    if (under_pressure > 0) {
      const int width = model.head_dim * n;
      KVL_ASSIGN_OR_RETURN(
          const std::vector<HeadRanks> drawn,
          DrawPressedSplits(model.n_layers * model.n_kv_heads / n, width, ranks.value,
                            under_pressure, kDrawnBasisSeed, {.joins_values = JoinsValues(keys)}));
      return DrawRandomBasis(model.n_layers, model.n_kv_heads / n, width, drawn, kDrawnBasisSeed,
                             keys);
    }
    return DrawRandomSplitBasis(model.n_layers, model.n_kv_heads / n, model.head_dim * n,
                                ranks.value, kDrawnBasisSeed, keys, sealing.has_classes);
  }
  return Error(StatusCode::kInvalidArgument,
               "--kv '{}': a model with random weights takes rate, or a ratio that chooses bits",
               spec.text());
}

}  // namespace

StatusOr<ModelBasis> DrawBasis(const Spec& spec, const ModelFacts& model) {
  KVL_ASSIGN_OR_RETURN(ModelBasis basis, DrawStoredBasis(spec, model));
  if (spec.basis_as<LatheOptions>() != nullptr) KeepSinkValues(&basis);
  return basis;
}

}  // namespace kvlathe
