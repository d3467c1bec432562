#include "python/arrays.h"

#include <fmt/format.h>

#include <cstring>
#include <span>

#include "tensor/dtype.h"

namespace kvlathe::python {
namespace {

namespace nb = nanobind;

std::string ShapeText(std::span<const int64_t> shape) {
  std::string text = "[";
  for (const int64_t n : shape) {
    if (text.size() > 1) text += ", ";
    text += n == kAnyLength ? "n" : fmt::format("{}", n);
  }
  return text + "]";
}

template <typename Array>
std::vector<int64_t> ShapeOf(const Array& array) {
  std::vector<int64_t> shape;
  for (size_t i = 0; i < array.ndim(); ++i) shape.push_back(static_cast<int64_t>(array.shape(i)));
  return shape;
}

void CheckShape(const char* name, std::span<const int64_t> shape,
                std::initializer_list<int64_t> wanted) {
  bool fits = shape.size() == wanted.size();
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    const int64_t n = *(wanted.begin() + i);
    fits = n == kAnyLength || n == shape[i];
  }
  if (fits) return;
  throw nb::value_error(fmt::format("{} has shape {}; it should be {}", name, ShapeText(shape),
                                    ShapeText({wanted.begin(), wanted.size()}))
                            .c_str());
}

template <typename Array>
Array ArrayOf(const nb::handle& object, const char* name) {
  Array array;
  bool is_array = false;
  try {
    is_array = nb::try_cast<Array>(object, array, /*convert=*/false);
  } catch (...) {
    PyErr_Clear();
  }
  if (!is_array || !array.is_valid()) {
    PyErr_Clear();
    throw nb::type_error(
        fmt::format(
            "{} is no array that can be read here ({}); give one of NumPy, or anything with "
            "DLPack, on the CPU (of torch: x.detach().cpu())",
            name, nb::type_name(object.type()).c_str())
            .c_str());
  }
  if (array.device_type() != nb::device::cpu::value) {
    throw nb::type_error(
        fmt::format("{} is not in the memory of the CPU; copy it there", name).c_str());
  }
  return array;
}

// The type of its numbers, where it is one that is taken.
DType DTypeOf(const nb::dlpack::dtype& type, const char* name) {
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return type.lanes == 1 && type.code == static_cast<uint8_t>(code) && type.bits == bits;
  };
  if (is(nb::dlpack::dtype_code::Float, 32)) return DType::kF32;
  if (is(nb::dlpack::dtype_code::Float, 16)) return DType::kF16;
  if (is(nb::dlpack::dtype_code::Bfloat, 16)) return DType::kBf16;
  throw nb::type_error(
      fmt::format("{} is of {} bits of another type; give float32, float16 or bfloat16", name,
                  int{type.bits})
          .c_str());
}

template <typename Array>
bool IsDense(const Array& array) {
  int64_t stride = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != stride) return false;
    stride *= static_cast<int64_t>(array.shape(i));
  }
  return true;
}

}  // namespace

Floats::Floats(const nb::handle& array, const char* name, std::initializer_list<int64_t> shape)
    : held_(ArrayOf<nb::ndarray<nb::ro>>(array, name)), shape_(ShapeOf(held_)) {
  const DType type = DTypeOf(held_.dtype(), name);
  CheckShape(name, shape_, shape);
  if (type == DType::kF32 && IsDense(held_)) {
    data_ = static_cast<const float*>(held_.data());
    return;
  }
  CopyFrom(held_);
  data_ = copied_.data();
}

void Floats::CopyFrom(const nb::ndarray<nb::ro>& array) {
  const DType type = DTypeOf(array.dtype(), "array");
  const int64_t element = SizeOf(type);
  const auto* const from = static_cast<const std::byte*>(array.data());
  const size_t n_dims = array.ndim();
  int64_t n = 1;
  for (const int64_t length : shape_) n *= length;
  copied_.resize(n);
  if (n == 0) return;
  if (IsDense(array)) return ConvertToFloat(type, from, n, copied_.data());
  const int64_t width = n_dims == 0 ? 1 : shape_.back();
  const int64_t step = n_dims == 0 ? 1 : array.stride(n_dims - 1);
  std::vector<int64_t> at(n_dims);
  for (float* row = copied_.data(); row < copied_.data() + n; row += width) {
    int64_t offset = 0;
    for (size_t i = 0; i + 1 < n_dims; ++i) offset += at[i] * array.stride(i);
    if (step == 1) {
      ConvertToFloat(type, from + offset * element, width, row);
    } else {
      for (int64_t i = 0; i < width; ++i) {
        ConvertToFloat(type, from + (offset + i * step) * element, 1, row + i);
      }
    }
    for (size_t i = n_dims - 1; i-- > 0;) {
      if (++at[i] < shape_[i]) break;
      at[i] = 0;
    }
  }
}

WrittenFloats::WrittenFloats(const nb::handle& array, const char* name,
                             std::initializer_list<int64_t> shape)
    : held_(ArrayOf<nb::ndarray<>>(array, name)) {
  if (DTypeOf(held_.dtype(), name) != DType::kF32) {
    throw nb::type_error(fmt::format("{} is written in float32; give such an array", name).c_str());
  }
  CheckShape(name, ShapeOf(held_), shape);
  if (!IsDense(held_)) {
    throw nb::value_error(
        fmt::format("{} is not contiguous; it is written in place, so give one that is", name)
            .c_str());
  }
  data_ = static_cast<float*>(held_.data());
}

nb::object NewFloats(std::initializer_list<size_t> shape, float** data) {
  size_t n = 1;
  for (const size_t length : shape) n *= length;
  auto* const numbers = new float[n > 0 ? n : 1];
  const nb::capsule owner(numbers, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  *data = numbers;
  return nb::cast(nb::ndarray<nb::numpy, float>(numbers, shape.size(), shape.begin(), owner));
}

}  // namespace kvlathe::python
