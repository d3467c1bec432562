// Arrays that Python hands in, as F32 on the host.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace kvlathe::python {

// Any length of a dimension.
inline constexpr int64_t kAnyLength = -1;

// Numbers of an array, dense and row-major: the array's own memory where it is so, else a copy. It
// keeps the array alive.
class Floats {
 public:
  // NumPy, or anything with DLPack or a buffer, on the CPU: of float32, float16 or bfloat16, of
  // this shape. `name` is that of the argument. TypeError or ValueError with one line that says
  // what it is instead.
  Floats(const nanobind::handle& array, const char* name, std::initializer_list<int64_t> shape);

  const float* data() const { return data_; }
  int64_t length(size_t dimension) const { return shape_[dimension]; }

 private:
  void CopyFrom(const nanobind::ndarray<nanobind::ro>& array);

  nanobind::ndarray<nanobind::ro> held_;
  std::vector<float> copied_;
  std::vector<int64_t> shape_;
  const float* data_ = nullptr;
};

// An array that is written: float32, dense, row-major, on the CPU, of exactly this shape.
class WrittenFloats {
 public:
  WrittenFloats(const nanobind::handle& array, const char* name,
                std::initializer_list<int64_t> shape);
  float* data() const { return data_; }

 private:
  nanobind::ndarray<> held_;
  float* data_ = nullptr;
};

// A new array of NumPy, and where its numbers are.
nanobind::object NewFloats(std::initializer_list<size_t> shape, float** data);

}  // namespace kvlathe::python
