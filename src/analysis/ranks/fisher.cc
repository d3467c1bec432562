#include "analysis/ranks/fisher.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/check.h"
#include "io/files.h"
#include "io/json_checksum.h"

namespace kvlathe {
namespace {

constexpr char kFisherFormat[] = "kvlathe fisher weights";
constexpr int kFisherFormatVersion = 1;
constexpr char kMeasureAgain[] = "make it again with 'kvlathe retrofit fisher'";

bool AreWeights(const std::vector<double>& weights) {
  return std::ranges::all_of(weights, [](double x) { return std::isfinite(x) && x >= 0; });
}

int RoundToNearest(int64_t rank, int round, int head_dim) {
  if (rank >= head_dim) return head_dim;
  const int64_t twice = 2 * rank, below = rank / round;
  const int64_t odd_half = (2 * below + 1) * round;
  const bool goes_up = twice > odd_half || (twice == odd_half && below % 2 == 1);
  const int64_t multiple = std::max<int64_t>(1, below + (goes_up ? 1 : 0));
  return static_cast<int>(std::min<int64_t>(multiple * round, head_dim));
}

}  // namespace

Status WriteFisherWeights(const FisherWeights& weights, const std::string& path) {
  nlohmann::ordered_json json = {{"format", kFisherFormat},
                                 {"format_version", kFisherFormatVersion},
                                 {"model_hash", weights.model_hash},
                                 {"token_source", weights.token_source},
                                 {"n_tokens", weights.n_tokens},
                                 {"k", weights.k},
                                 {"v", weights.v}};
  AddChecksum(&json);
  return WriteFileAtomically(path, json.dump(1) + "\n");
}

StatusOr<FisherWeights> ReadFisherWeights(const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(path));
  if (!FitsItsChecksum(json)) {
    return Error(StatusCode::kDataLoss, "{}: damaged: its checksum does not fit what it holds; {}",
                 path, kMeasureAgain);
  }
  FisherWeights weights;
  try {
    if (json.at("format") != kFisherFormat || json.at("format_version") != kFisherFormatVersion) {
      return Error(StatusCode::kDataLoss, "{}: not Fisher weights of version {}; {}", path,
                   kFisherFormatVersion, kMeasureAgain);
    }
    json.at("model_hash").get_to(weights.model_hash);
    json.at("token_source").get_to(weights.token_source);
    json.at("n_tokens").get_to(weights.n_tokens);
    json.at("k").get_to(weights.k);
    json.at("v").get_to(weights.v);
  } catch (const nlohmann::json::exception&) {
    return Error(StatusCode::kDataLoss, "{}: not a file of Fisher weights; {}", path,
                 kMeasureAgain);
  }
  if (weights.k.size() != weights.v.size() || !AreWeights(weights.k) || !AreWeights(weights.v)) {
    return Error(StatusCode::kDataLoss, "{}: k and v do not hold a weight for each layer; {}", path,
                 kMeasureAgain);
  }
  return weights;
}

Status CheckFisherMatch(const FisherWeights& weights, const std::string& path, int n_layers,
                        const std::string& model_hash) {
  if (std::ssize(weights.k) == n_layers && weights.model_hash == model_hash) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "{}: made for another model ({} layers, hash {}; this one: {}, {}); {}", path,
               weights.k.size(), weights.model_hash, n_layers, model_hash, kMeasureAgain);
}

std::vector<int64_t> ShareByWeight(std::span<const double> weights, int64_t cap, int64_t total) {
  const size_t n = weights.size();
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> shares;
  std::vector<double> remainders;
  int64_t n_left = total;
  for (const double weight : weights) {
    const double exact =
        static_cast<double>(total) * (sum > 0 ? weight / sum : 1 / static_cast<double>(n));
    shares.push_back(std::min(static_cast<int64_t>(exact), cap));
    remainders.push_back(exact - std::floor(exact));
    n_left -= shares.back();
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return remainders[i]; });
  for (bool has_room = true; n_left > 0 && has_room;) {
    has_room = false;
    for (const size_t i : order) {
      if (n_left == 0 || shares[i] == cap) continue;
      ++shares[i];
      --n_left;
      has_room = true;
    }
  }
  return shares;
}

FisherLadder::FisherLadder(const FisherWeights* weights, int n_kv_heads, int head_dim, int round)
    : weights_(weights),
      n_kv_heads_(n_kv_heads),
      head_dim_(head_dim),
      round_(round),
      full_total_(2 * std::ssize(weights->k) * n_kv_heads * head_dim) {}

RankAllocation FisherLadder::AllocationAt(int level) const {
  std::vector<double> units;  // W_K and W_V of each layer
  for (size_t l = 0; l < weights_->k.size(); ++l) {
    units.push_back(weights_->k[l]);
    units.push_back(weights_->v[l]);
  }
  const std::vector<int64_t> shares =
      ShareByWeight(units, int64_t{n_kv_heads_} * head_dim_, full_total_ - level);
  RankAllocation allocation;
  int64_t n_kept = 0;
  for (size_t l = 0; l < weights_->k.size(); ++l) {
    HeadRanks ranks;
    ranks.rank_k = RoundToNearest(shares[2 * l] / n_kv_heads_, round_, head_dim_);
    ranks.rank_v = RoundToNearest(shares[2 * l + 1] / n_kv_heads_, round_, head_dim_);
    allocation.ranks.insert(allocation.ranks.end(), n_kv_heads_, ranks);
    n_kept += int64_t{n_kv_heads_} * (ranks.rank_k + ranks.rank_v);
  }
  allocation.removal_rate = 1 - static_cast<double>(n_kept) / static_cast<double>(full_total_);
  return allocation;
}

int FisherLadder::LastLevelWithin(double rate) const {
  int within = 0, beyond = n_levels();
  while (beyond - within > 1) {
    const int middle = within + (beyond - within) / 2;
    (AllocationAt(middle).removal_rate <= rate + 1e-12 ? within : beyond) = middle;
  }
  return within;
}

}  // namespace kvlathe
