#include "runtime/machines/device_choice.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

namespace kvlathe {

StatusOr<DeviceChoice> ParseDevice(std::string_view text) {
  constexpr std::string_view kCuda = "cuda";
  if (text == "cpu") return DeviceChoice{};
  DeviceChoice choice = {.kind = DeviceChoice::Kind::kCuda};
  if (text == kCuda) return choice;
  if (text.starts_with("cuda:")) {
    const std::string_view digits = text.substr(kCuda.size() + 1);
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, choice.number);
    if (error == std::errc() && stop == end && choice.number >= 0) return choice;
  }
  return Error(StatusCode::kInvalidArgument,
               "'{}' is no device; give cpu, cuda, or cuda:N for the GPU of that number, from 0 on",
               text);
}

std::string DeviceText(const DeviceChoice& device) {
  return device.is_cpu() ? "cpu" : fmt::format("cuda:{}", device.number);
}

}  // namespace kvlathe
