#include "analysis/bases/report.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "analysis/statistics/spectrum.h"
#include "base/check.h"

namespace kvlathe {
namespace {

double VariationOf(const std::vector<double>& values) {
  double sum = 0, sum_squares = 0;
  for (const double x : values) {
    sum += x;
    sum_squares += x * x;
  }
  if (sum == 0) return 0;
  const double n = static_cast<double>(values.size());
  const double mean = sum / n;
  return std::sqrt(std::max(sum_squares / n - mean * mean, 0.0)) / mean;
}

}  // namespace

BasisReport ReportBasis(const BasisAnalysis& analysis, const RankAllocation& allocation) {
  BasisReport report;
  report.removal_rate = allocation.removal_rate;
  report.eta = allocation.eta;
  std::vector<double> largest_qk, largest_v;
  const double n_heads = static_cast<double>(allocation.ranks.size());
  for (const HeadRanks& ranks : allocation.ranks) {
    report.mean_rank_k += StoredKeyChannels(ranks) / n_heads;
    report.mean_rank_v += StoredValueChannels(ranks) / n_heads;
  }
  for (const HeadSpectra& spectra : analysis.spectra) {
    largest_qk.push_back(spectra.qk.front());
    if (!spectra.v.empty()) largest_v.push_back(spectra.v.front());
  }
  report.cv_largest_qk = VariationOf(largest_qk);
  report.cv_largest_v = VariationOf(largest_v);
  return report;
}

std::vector<HeadVariation> VariationByLayer(const BasisAnalysis& analysis,
                                            const RankAllocation& allocation) {
  const int n_kv_heads =
      static_cast<int>(std::ssize(allocation.ranks) / std::max(analysis.shape.n_layers, 1));
  std::vector<HeadVariation> layers;
  for (int l = 0; l < analysis.shape.n_layers; ++l) {
    std::vector<double> largest_qk, largest_v, rank_k, rank_v;
    for (int h = l * n_kv_heads; h < (l + 1) * n_kv_heads; ++h) {
      const HeadSpectra& spectra = analysis.SpectraOf(h);
      largest_qk.push_back(spectra.qk.front());
      if (!spectra.v.empty()) largest_v.push_back(spectra.v.front());
      rank_k.push_back(StoredKeyChannels(allocation.ranks[h]));
      rank_v.push_back(StoredValueChannels(allocation.ranks[h]));
    }
    layers.push_back({VariationOf(largest_qk), VariationOf(largest_v), VariationOf(rank_k),
                      VariationOf(rank_v)});
  }
  return layers;
}

namespace {

nlohmann::json VariationJson(const std::vector<HeadVariation>& layers) {
  nlohmann::json list = nlohmann::json::array();
  for (const HeadVariation& layer : layers) {
    list.push_back({{"largest_qk", layer.largest_qk},
                    {"largest_v", layer.largest_v},
                    {"rank_k", layer.rank_k},
                    {"rank_v", layer.rank_v}});
  }
  return list;
}

// [{"bits", "channels"}], from the first channel on.
nlohmann::json BitsJson(const BitSplit& split) {
  nlohmann::json list = nlohmann::json::array();
  for (size_t i = 0; i < kSplitBits.size(); ++i) {
    if (split.channels[i] == 0) continue;
    list.push_back({{"bits", kSplitBits[i]}, {"channels", split.channels[i]}});
  }
  return list;
}

}  // namespace

nlohmann::json BasisReportJson(const BasisAnalysis& analysis, const RankAllocation& allocation) {
  const BasisReport report = ReportBasis(analysis, allocation);
  nlohmann::json heads = nlohmann::json::array();
  const int n_kv_heads = analysis.shape.n_kv_heads;
  for (int h = 0; h < static_cast<int>(allocation.ranks.size()); ++h) {
    heads.push_back({{"layer", h / n_kv_heads},
                     {"kv_head", h % n_kv_heads},
                     {"rank_k", StoredKeyChannels(allocation.ranks[h])},
                     {"rank_v", StoredValueChannels(allocation.ranks[h])},
                     {"singular_values_qk", analysis.SpectraOf(h).qk},
                     {"singular_values_v", analysis.SpectraOf(h).v}});
    if (allocation.ranks[h].bits.middle.k == BitSplit{}) continue;
    heads.back()["bits_k"] = BitsJson(allocation.ranks[h].bits.middle.k);
    heads.back()["bits_v"] = BitsJson(allocation.ranks[h].bits.middle.v);
    if (const EntryBits& pressed = allocation.ranks[h].bits.pressed; pressed != EntryBits()) {
      heads.back()["bits_k_under_pressure"] = BitsJson(pressed.k);
      heads.back()["bits_v_under_pressure"] = BitsJson(pressed.v);
    }
    const EntryBits &most = allocation.ranks[h].bits.most, &least = allocation.ranks[h].bits.least;
    if (most == EntryBits()) continue;
    heads.back()["bits_k_by_class"] = {BitsJson(most.k), BitsJson(least.k)};
    heads.back()["bits_v_by_class"] = {BitsJson(most.v), BitsJson(least.v)};
  }
  return {{"removal_rate", report.removal_rate},
          {"eta", report.eta},
          {"mean_rank_k", report.mean_rank_k},
          {"mean_rank_v", report.mean_rank_v},
          {"cv_largest_qk", report.cv_largest_qk},
          {"cv_largest_v", report.cv_largest_v},
          {"variation_by_layer", VariationJson(VariationByLayer(analysis, allocation))},
          {"heads", std::move(heads)}};
}

double Concentration(const std::vector<double>& singular_values) {
  const auto quarter = singular_values.begin() + (std::ssize(singular_values) + 3) / 4;
  const double sum = std::accumulate(singular_values.begin(), singular_values.end(), 0.0);
  return sum > 0 ? std::accumulate(singular_values.begin(), quarter, 0.0) / sum : 1;
}

double MeanKeyOverlap(const BasisAnalysis& a, const BasisAnalysis& b, int rank) {
  KVL_CHECK(a.shape == b.shape);
  double sum = 0;
  for (size_t h = 0; h < a.heads.size(); ++h) {
    sum += SubspaceOverlap(a.heads[h].key_basis, b.heads[h].key_basis, a.shape.head_dim, rank);
  }
  return sum / static_cast<double>(a.heads.size());
}

}  // namespace kvlathe
