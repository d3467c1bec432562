#include "load_generation/simulation/idle_machine.h"

#include <algorithm>

namespace kvlathe {

void IdleDevice::Download(const ObjectPlace&, std::span<std::byte> to) {
  std::ranges::fill(to, std::byte{0});
}

StatusOr<WeightId> IdleResidents::AddWeight(int64_t, int64_t n_in, WeightType) {
  widths_.push_back(n_in);
  return WeightId{static_cast<uint32_t>(widths_.size())};
}

void IdleResidents::ReadRow(const WeightId& weight, int64_t, float* row) {
  std::fill_n(row, widths_[weight.number - 1], 0.0f);
}

std::vector<float> IdleBackend::TakeChannel(const TakeChannelPlan& plan) {
  return std::vector<float>(static_cast<size_t>(plan.n_rows));
}

void IdleBackend::MergeRows(const MergeRowsPlan&, std::span<int> n_closed) {
  std::ranges::fill(n_closed, 0);
}

}  // namespace kvlathe
