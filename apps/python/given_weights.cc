#include "python/given_weights.h"

#include <fmt/format.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace kvlathe::python {
namespace {

namespace nb = nanobind;

// `array` cut along its first two dimensions, which are layers and KV heads, in parts of `shape`.
template <typename T>
std::vector<std::vector<T>> HeadsOf(const nb::object& array, const char* name, const ModelConfig& c,
                                    std::vector<int64_t> shape) {
  nb::ndarray<const T, nb::c_contig, nb::device::cpu> numbers;
  if (!nb::try_cast(array, numbers)) {
    throw nb::type_error(
        fmt::format("weights.{} is no dense array of float{} on the CPU", name, 8 * sizeof(T))
            .c_str());
  }
  shape.insert(shape.begin(), {c.n_layers, c.n_kv_heads});
  bool is_right = numbers.ndim() == shape.size();
  for (size_t i = 0; is_right && i < shape.size(); ++i) {
    is_right = static_cast<int64_t>(numbers.shape(i)) == shape[i];
  }
  if (!is_right) {
    throw nb::value_error(
        fmt::format("weights.{} has another shape than [{}]", name, fmt::join(shape, ", "))
            .c_str());
  }
  const T* first = numbers.data();
  const auto n_heads = int64_t{c.n_layers} * c.n_kv_heads;
  const auto length = static_cast<int64_t>(numbers.size()) / n_heads;
  if (!std::all_of(first, first + n_heads * length, [](T x) { return std::isfinite(x); })) {
    throw nb::value_error(fmt::format("weights.{} holds NaN or infinity", name).c_str());
  }
  std::vector<std::vector<T>> heads;
  for (int64_t h = 0; h < n_heads; ++h, first += length) heads.emplace_back(first, first + length);
  return heads;
}

}  // namespace

GivenWeights ReadGivenWeights(const nb::object& weights, const ModelConfig& config) {
  GivenWeights given;
  if (weights.is_none()) return given;
  const int64_t d = config.head_dim;
  const auto grams = [&](const char* name) {
    const nb::object array = weights.attr(name);
    if (array.is_none()) return std::vector<std::vector<double>>();
    return HeadsOf<double>(array, name, config, {d, d});
  };
  given.key_grams = grams("key_grams");
  given.value_grams = grams("value_grams");
  given.output_grams = grams("output_grams");
  const auto biases = [&](const char* name) {
    const nb::object array = weights.attr(name);
    if (array.is_none()) return std::vector<std::vector<float>>();
    return HeadsOf<float>(array, name, config, {d});
  };
  given.key_biases = biases("key_biases");
  given.value_biases = biases("value_biases");
  return given;
}

}  // namespace kvlathe::python
