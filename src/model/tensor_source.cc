#include "model/tensor_source.h"

#include <map>

#include "base/random.h"
#include "model/stored/mxfp4_tensors.h"

namespace kvlathe {
namespace {

// Whether no exponent is all ones.
template <typename Bits>
bool HasFiniteExponents(const std::byte* data, int64_t n, Bits exponent) {
  const Bits* bits = reinterpret_cast<const Bits*>(data);
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) finite &= (bits[i] & exponent) != exponent;
  return finite;
}

class FileSource : public TensorSource {
 public:
  explicit FileSource(SafetensorsReader reader) : reader_(std::move(reader)) {}
  bool Has(const std::string& name) const override {
    return reader_.Find(StoredName(name)) != nullptr || BlocksOf(name).has_value();
  }
  std::optional<GgmlType> BlocksOf(const std::string& name) const override {
    const bool is_mxfp4 = FindMxfp4(reader_, name).blocks != nullptr;
    return is_mxfp4 ? std::optional(GgmlType::kMxfp4) : std::nullopt;
  }
  StatusOr<StoredTensor> Get(const std::string& name, const std::vector<int64_t>& shape) override {
    KVL_ASSIGN_OR_RETURN(const TensorView* view, reader_.Get(StoredName(name), shape));
    return StoredTensor{view->dtype, {}, view->shape, view->data, view->n_bytes};
  }
  StatusOr<StoredTensor> GetPart(const std::string& name, const std::vector<int64_t>& shape,
                                 int64_t idx) override {
    const Mxfp4Tensor mxfp4 = FindMxfp4(reader_, name);
    if (mxfp4.blocks == nullptr) return TensorSource::GetPart(name, shape, idx);
    KVL_ASSIGN_OR_RETURN(Buffer buffer, ReadMxfp4(mxfp4, name, shape, idx));
    for (const ByteTensorView* view : {mxfp4.blocks, mxfp4.scales}) {
      const int64_t n_bytes = view->n_bytes / shape.front();
      reader_.ReleasePages(view->data + idx * n_bytes, n_bytes);
    }
    StoredTensor tensor{DType::kF32,
                        GgmlType::kMxfp4,
                        {shape.begin() + 1, shape.end()},
                        buffer.data(),
                        buffer.n_bytes()};
    reordered_.emplace(tensor.data, std::move(buffer));
    return tensor;
  }
  void Done(const StoredTensor& tensor) override {
    if (reordered_.erase(tensor.data) > 0) return;
    reader_.ReleasePages({tensor.dtype, tensor.shape, tensor.data, tensor.n_bytes});
  }
  bool is_mapped() const override { return true; }

 private:
  // What the file calls a tensor. Models that read more than text hold their language model below
  // a prefix, and files of a model without its head leave "model." out.
  std::string StoredName(const std::string& name) const {
    constexpr std::string_view kModel = "model.";
    if (reader_.Find(name) != nullptr) return name;
    std::vector<std::string> others = {"language_model." + name};
    if (name.starts_with(kModel)) {
      const std::string rest = name.substr(kModel.size());
      others.push_back("model.language_model." + rest);
      others.push_back("language_model." + rest);
      others.push_back(rest);
    }
    for (std::string& other : others) {
      if (reader_.Find(other) != nullptr) return std::move(other);
    }
    return name;
  }

  SafetensorsReader reader_;
  std::map<const std::byte*, Buffer> reordered_;  // what has blocks, until Done
};

class GgufSource : public TensorSource {
 public:
  explicit GgufSource(std::shared_ptr<const GgufFile> file) : file_(std::move(file)) {}
  bool Has(const std::string& name) const override { return file_->FindTensor(name) != nullptr; }
  std::optional<GgmlType> BlocksOf(const std::string& name) const override {
    const GgufTensor* const tensor = file_->FindTensor(name);
    if (tensor == nullptr || LayoutOf(tensor->type).block_values == 1) return std::nullopt;
    return tensor->type;
  }
  StatusOr<StoredTensor> Get(const std::string& name, const std::vector<int64_t>& shape) override {
    KVL_ASSIGN_OR_RETURN(const GgufTensor* tensor, file_->GetTensor(name, shape));
    StoredTensor stored{DType::kF32, BlocksOf(name), tensor->shape, tensor->data, tensor->n_bytes};
    if (tensor->type == GgmlType::kF16) stored.dtype = DType::kF16;
    if (tensor->type == GgmlType::kBf16) stored.dtype = DType::kBf16;
    return stored;
  }
  void Done(const StoredTensor& tensor) override {
    GgufTensor pages;
    pages.data = tensor.data;
    pages.n_bytes = tensor.n_bytes;
    file_->ReleasePages(pages);
  }
  void DoneWithAll() override { file_->ReleaseAllPages(); }
  bool is_mapped() const override { return true; }

 private:
  std::shared_ptr<const GgufFile> file_;
};

class RandomSource : public TensorSource {
 public:
  explicit RandomSource(uint64_t seed) : seed_(seed) {}
  bool Has(const std::string&) const override { return true; }
  StatusOr<StoredTensor> Get(const std::string& name, const std::vector<int64_t>& shape) override {
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
    StoredTensor tensor{DType::kBf16, {}, shape, buffer.data(), n_elements * 2};
    live_.emplace(tensor.data, std::move(buffer));
    return tensor;
  }
  StatusOr<StoredTensor> GetPart(const std::string& name, const std::vector<int64_t>& shape,
                                 int64_t idx) override {
    return Get(fmt::format("{} {}", name, idx), {shape.begin() + 1, shape.end()});
  }
  void Done(const StoredTensor& tensor) override { live_.erase(tensor.data); }
  bool is_mapped() const override { return false; }

 private:
  uint64_t seed_;
  std::map<const std::byte*, Buffer> live_;
};

}  // namespace

StatusOr<StoredTensor> TensorSource::GetPart(const std::string& name,
                                             const std::vector<int64_t>& shape, int64_t idx) {
  KVL_ASSIGN_OR_RETURN(StoredTensor tensor, Get(name, shape));
  tensor.shape.erase(tensor.shape.begin());
  tensor.n_bytes /= shape.front();
  tensor.data += idx * tensor.n_bytes;
  return tensor;
}

int64_t StoredTensor::n_elements() const {
  if (!blocks.has_value()) return n_bytes / SizeOf(dtype);
  const GgmlLayout& layout = LayoutOf(*blocks);
  return n_bytes / layout.block_bytes * layout.block_values;
}

void StoredTensor::Read(int64_t first, int64_t n, float* to) const {
  if (!blocks.has_value()) return ConvertToFloat(dtype, data + first * SizeOf(dtype), n, to);
  const GgmlLayout& layout = LayoutOf(*blocks);
  DequantizeBlocks(*blocks, data + first / layout.block_values * layout.block_bytes, n, to);
}

bool StoredTensor::IsFinite(int64_t first, int64_t n) const {
  if (blocks.has_value()) {
    const GgmlLayout& layout = LayoutOf(*blocks);
    return AllFinite(*blocks, data + first / layout.block_values * layout.block_bytes, n);
  }
  const std::byte* const from = data + first * SizeOf(dtype);
  switch (dtype) {
    case DType::kBf16:
      return HasFiniteExponents<uint16_t>(from, n, 0x7f80);
    case DType::kF16:
      return HasFiniteExponents<uint16_t>(from, n, 0x7c00);
    case DType::kF32:
      return HasFiniteExponents<uint32_t>(from, n, 0x7f800000u);
  }
  return false;
}

std::unique_ptr<TensorSource> MakeGgufSource(std::shared_ptr<const GgufFile> file) {
  return std::make_unique<GgufSource>(std::move(file));
}

std::unique_ptr<TensorSource> MakeFileSource(SafetensorsReader reader) {
  return std::make_unique<FileSource>(std::move(reader));
}

std::unique_ptr<TensorSource> MakeRandomSource(uint64_t seed) {
  return std::make_unique<RandomSource>(seed);
}

}  // namespace kvlathe
