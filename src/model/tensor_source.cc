#include "model/tensor_source.h"

#include <map>

#include "base/random.h"

namespace kvlathe {
namespace {

class FileSource : public TensorSource {
 public:
  explicit FileSource(SafetensorsReader reader) : reader_(std::move(reader)) {}
  bool Has(const std::string& name) const override { return reader_.Find(name) != nullptr; }
  StatusOr<TensorView> Get(const std::string& name, const std::vector<int64_t>& shape) override {
    KVL_ASSIGN_OR_RETURN(const TensorView* tensor, reader_.Get(name, shape));
    return *tensor;
  }
  void Done(const TensorView& tensor) override { reader_.ReleasePages(tensor); }
  bool is_mapped() const override { return true; }

 private:
  SafetensorsReader reader_;
};

class RandomSource : public TensorSource {
 public:
  explicit RandomSource(uint64_t seed) : seed_(seed) {}
  bool Has(const std::string&) const override { return true; }
  StatusOr<TensorView> Get(const std::string& name, const std::vector<int64_t>& shape) override {
    int64_t n_elements = 1;
    for (int64_t n : shape) n_elements *= n;
    KVL_ASSIGN_OR_RETURN(Buffer buffer, Buffer::Allocate(n_elements * 2, "random weights"));
    Bf16* data = buffer.as<Bf16>();
    const bool is_norm = shape.size() == 1 && name.ends_with(".weight");
    uint64_t key = MixBits(seed_);
    for (char c : name) key = MixBits(key ^ static_cast<unsigned char>(c));
    for (int64_t i = 0; i < n_elements; i += 4) {
      const uint64_t bits = MixBits(key + i);
      for (int64_t j = 0; j < 4 && i + j < n_elements; ++j) {
        // Uniform with standard deviation 0.02.
        const float u = static_cast<float>((bits >> (16 * j)) & 0xffff) * 0x1.0p-15f - 1.0f;
        data[i + j] = ToBf16(is_norm ? 1.0f : u * 0.02f * 1.7320508f);
      }
    }
    TensorView view{DType::kBf16, shape, buffer.data(), n_elements * 2};
    live_.emplace(view.data, std::move(buffer));
    return view;
  }
  void Done(const TensorView& tensor) override { live_.erase(tensor.data); }
  bool is_mapped() const override { return false; }

 private:
  uint64_t seed_;
  std::map<const std::byte*, Buffer> live_;
};

}  // namespace

std::unique_ptr<TensorSource> MakeFileSource(SafetensorsReader reader) {
  return std::make_unique<FileSource>(std::move(reader));
}

std::unique_ptr<TensorSource> MakeRandomSource(uint64_t seed) {
  return std::make_unique<RandomSource>(seed);
}

}  // namespace kvlathe
