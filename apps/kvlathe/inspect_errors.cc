#include "kvlathe/inspect_errors.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvlathe {
namespace {

// Ranks of a repair of which the share of the errors is shown.
constexpr int kRepairRanks[] = {1, 2, 4, 8, 16};

// A line of numbers of K and of V: the relative error, empty where there is none, and shares.
void PrintErrorLine(const std::string& name, const std::vector<double>& numbers, bool has_errors) {
  fmt::print("{:>5}", name);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const bool is_share = i % (1 + std::size(kRepairRanks)) != 0;
    if (is_share) {
      fmt::print(" {:>5.3f}", numbers[i]);
    } else {
      fmt::print(" {:>10}", has_errors ? fmt::format("{:.3g}", numbers[i]) : "");
    }
  }
  fmt::print("\n");
}

std::vector<double> ErrorNumbers(const LayerErrors& layer,
                                 std::vector<double> StoredError::*shares) {
  std::vector<double> numbers;
  for (const StoredError* side : {&layer.k, &layer.v}) {
    numbers.push_back(side->relative);
    for (const int rank : kRepairRanks) {
      numbers.push_back((side->*shares)[std::min<size_t>(rank, (side->*shares).size()) - 1]);
    }
  }
  return numbers;
}

}  // namespace

StatusOr<std::vector<LayerErrors>> ErrorsOnText(Workspace* workspace, Model* model,
                                                const std::string& path) {
  KVL_ASSIGN_OR_RETURN(std::vector<int32_t> ids, workspace->TokenizeFile(path));
  if (const auto bos = workspace->leading_bos()) ids.insert(ids.begin(), *bos);
  ids.resize(std::min<size_t>(ids.size(), workspace->context_tokens()));
  return MeasureStoredErrors(model, ids, workspace->kv_budget_bytes());
}

nlohmann::ordered_json ErrorsJson(const std::vector<LayerErrors>& layers) {
  const auto side = [](const StoredError& error) {
    return nlohmann::ordered_json{{"relative", error.relative},
                                  {"shares", error.shares},
                                  {"white_shares", error.white_shares}};
  };
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const LayerErrors& layer : layers) {
    list.push_back({{"k", side(layer.k)}, {"v", side(layer.v)}});
  }
  return list;
}

void PrintErrors(const std::vector<LayerErrors>& layers) {
  fmt::print(
      "squared errors of the stored prompt over squares of its rows, and the share of them in the "
      "first singular values of a run and head; white: of noise in matrices of the same shapes:\n");
  std::string ranks;
  for (const int rank : kRepairRanks) ranks += fmt::format(" {:>5}", rank);
  fmt::print("{:>5} {:>10}{} {:>10}{}\n", "layer", "K", ranks, "V", ranks);
  std::vector<double> means(2 * (1 + std::size(kRepairRanks))), white(means.size());
  for (size_t l = 0; l < layers.size(); ++l) {
    const std::vector<double> numbers = ErrorNumbers(layers[l], &StoredError::shares);
    const std::vector<double> of_noise = ErrorNumbers(layers[l], &StoredError::white_shares);
    for (size_t i = 0; i < means.size(); ++i) {
      means[i] += numbers[i] / layers.size();
      white[i] += of_noise[i] / layers.size();
    }
    PrintErrorLine(std::to_string(l), numbers, true);
  }
  PrintErrorLine("mean", means, true);
  PrintErrorLine("white", white, false);
}

}  // namespace kvlathe
