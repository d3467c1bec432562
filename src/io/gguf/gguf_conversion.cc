#include "io/gguf/gguf_conversion.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "io/gguf/ggml_types_quantize.h"
#include "io/gguf/gguf_writer.h"
#include "io/safetensors/safetensors_header.h"

namespace kvlathe {
namespace {

// What can be asked for. `file_type` is llama.cpp's number for a file that is mostly of the type
// (its llama_ftype); of the two or three of a K type it is that of the smallest.
struct ConversionType {
  GgmlType type;
  std::string_view name;
  int64_t file_type;
};
constexpr ConversionType kTypes[] = {
    {GgmlType::kQ8_0, "q8_0", 7},     {GgmlType::kQ4_0, "q4_0", 2},
    {GgmlType::kQ4_1, "q4_1", 3},     {GgmlType::kQ5_0, "q5_0", 8},
    {GgmlType::kQ5_1, "q5_1", 9},     {GgmlType::kQ2_K, "q2_k", 10},
    {GgmlType::kQ3_K, "q3_k", 11},    {GgmlType::kQ4_K, "q4_k", 14},
    {GgmlType::kQ5_K, "q5_k", 16},    {GgmlType::kQ6_K, "q6_k", 18},
    {GgmlType::kIq4Nl, "iq4_nl", 25}, {GgmlType::kIq4Xs, "iq4_xs", 30},
    {GgmlType::kMxfp4, "mxfp4", 38},  {GgmlType::kBf16, "bf16", 32},
    {GgmlType::kF16, "f16", 1},       {GgmlType::kF32, "f32", 0},
};
constexpr int64_t kQuantizationVersion = 2;  // of the layouts of blocks

int64_t FileTypeOf(GgmlType type) {
  for (const ConversionType& known : kTypes) {
    if (known.type == type) return known.file_type;
  }
  KVL_CHECK(false);
}

double BitsOf(GgmlType type) {
  const GgmlLayout& layout = LayoutOf(type);
  return 8.0 * static_cast<double>(layout.block_bytes) / static_cast<double>(layout.block_values);
}

bool HasWholeBlocks(const GgufTensor& tensor, GgmlType type) {
  return tensor.shape.back() % LayoutOf(type).block_values == 0;
}

// A type for rows that are no whole blocks of `type`.
GgmlType TypeOfUnevenRows(GgmlType type) {
  switch (type) {
    case GgmlType::kQ2_K:
    case GgmlType::kQ3_K:
      return GgmlType::kQ4_0;
    case GgmlType::kQ4_K:
      return GgmlType::kQ5_0;
    case GgmlType::kQ5_K:
      return GgmlType::kQ5_1;
    case GgmlType::kQ6_K:
      return GgmlType::kQ8_0;
    case GgmlType::kIq4Xs:
      return GgmlType::kIq4Nl;
    default:
      return GgmlType::kF16;
  }
}

GgmlType TypeForRows(const GgufTensor& tensor, GgmlType type) {
  if (HasWholeBlocks(tensor, type)) return type;
  const GgmlType other = TypeOfUnevenRows(type);
  return HasWholeBlocks(tensor, other) ? other : GgmlType::kF16;
}

// Positions, types of tokens and biases of experts are added, not multiplied; gates of experts are
// small and decide much.
bool IsNoWeight(std::string_view name) {
  return name == "position_embd.weight" || name == "token_types.weight" ||
         name.ends_with("ffn_gate_inp.weight") || name.ends_with(".bias");
}

ConvertedTensor PlanTensor(const GgufTensor& tensor, GgmlType asked) {
  using enum ConversionReason;
  if (tensor.shape.size() < 2) return {&tensor, GgmlType::kF32, kVector};
  if (IsNoWeight(tensor.name)) return {&tensor, tensor.type, kKept};
  if (tensor.name == "token_embd.weight" || tensor.name == "output.weight") {
    constexpr double kMinBits = 6;
    if (BitsOf(asked) < kMinBits) {
      const bool is_narrower = BitsOf(tensor.type) < BitsOf(GgmlType::kQ6_K);
      const GgmlType type = is_narrower ? tensor.type : TypeForRows(tensor, GgmlType::kQ6_K);
      return {&tensor, type, type == asked ? kAsAsked : kEmbeddingOrHead};
    }
  }
  const GgmlType type = TypeForRows(tensor, asked);
  return {&tensor, type, type == asked ? kAsAsked : kUnevenRows};
}

// Dequantises and quantises tensors in pieces.
class TensorConverter {
 public:
  TensorConverter(const GgufFile& file, GgufWriter* writer, ThreadPool* threads)
      : file_(file), writer_(writer), threads_(threads) {}

  // `done` gets the values that were written since it was last called.
  template <typename Done>
  Status Convert(const ConvertedTensor& converted, const Done& done) {
    const GgufTensor& tensor = *converted.tensor;
    const int64_t n_values = tensor.n_elements();
    if (tensor.type == converted.type) {
      const auto bytes = static_cast<size_t>(tensor.n_bytes);
      KVL_RETURN_IF_ERROR(writer_->Append({tensor.data, bytes}));
      done(n_values);
    } else {
      for (int64_t begin = 0; begin < n_values; begin += kPieceValues) {
        const int64_t n = std::min(kPieceValues, n_values - begin);
        KVL_RETURN_IF_ERROR(ConvertPiece(converted, begin, n));
        done(n);
      }
    }
    file_.ReleasePages(tensor);
    return OkStatus();
  }

 private:
  // Multiples of the values of every block.
  static constexpr int64_t kPieceValues = 1 << 22;
  static constexpr int64_t kShareValues = 1 << 13;

  Status ConvertPiece(const ConvertedTensor& converted, int64_t begin, int64_t n_values) {
    const GgufTensor& tensor = *converted.tensor;
    const GgmlLayout& from = LayoutOf(tensor.type);
    const GgmlLayout& to = LayoutOf(converted.type);
    bytes_.resize(static_cast<size_t>(n_values / to.block_values * to.block_bytes));
    const std::byte* source = tensor.data + begin / from.block_values * from.block_bytes;
    std::atomic<int64_t> next{0};
    std::atomic<bool> all_finite{true};
    threads_->Run([&](int) {
      float values[kShareValues];
      for (int64_t at = next.fetch_add(kShareValues); at < n_values;
           at = next.fetch_add(kShareValues)) {
        const int64_t n = std::min(kShareValues, n_values - at);
        const std::byte* blocks = source + at / from.block_values * from.block_bytes;
        if (!AllFinite(tensor.type, blocks, n)) {
          all_finite = false;
          return;
        }
        DequantizeBlocks(tensor.type, blocks, n, values);
        QuantizeBlocks(converted.type, values, n,
                       bytes_.data() + at / to.block_values * to.block_bytes);
      }
    });
    if (!all_finite) {
      return Error(StatusCode::kDataLoss,
                   "{}: tensor {} has values that are not finite; the file is damaged, download it "
                   "again",
                   file_.path(), QuoteForMessage(tensor.name));
    }
    return writer_->Append(bytes_);
  }

  const GgufFile& file_;
  GgufWriter* writer_;
  ThreadPool* threads_;
  std::vector<std::byte> bytes_;
};

}  // namespace

std::vector<std::string> ConversionTypeNames() {
  std::vector<std::string> names;
  for (const ConversionType& known : kTypes) names.emplace_back(known.name);
  return names;
}

StatusOr<GgmlType> ConversionTypeOf(std::string_view name) {
  for (const ConversionType& known : kTypes) {
    if (known.name == name) return known.type;
  }
  return Error(StatusCode::kInvalidArgument, "{} is no type of weights; types are {}",
               QuoteForMessage(name), fmt::join(ConversionTypeNames(), ", "));
}

int64_t ConvertedTensor::n_bytes() const {
  const GgmlLayout& layout = LayoutOf(type);
  return tensor->n_elements() / layout.block_values * layout.block_bytes;
}

StatusOr<std::vector<ConvertedTensor>> PlanConversion(const GgufFile& file, GgmlType type) {
  const std::vector<std::string> unreadable = file.UnreadableTensors();
  if (!unreadable.empty()) {
    return Error(StatusCode::kUnimplemented,
                 "{}: {}, which is not read; take a file of another quantisation", file.path(),
                 unreadable.front());
  }
  std::vector<ConvertedTensor> plan;
  for (const GgufTensor* tensor : file.TensorsInOrder()) plan.push_back(PlanTensor(*tensor, type));
  return plan;
}

StatusOr<int64_t> WriteConversion(const GgufFile& file, const std::vector<ConvertedTensor>& plan,
                                  GgmlType type, const std::string& path, ThreadPool* threads,
                                  const std::function<void(double fraction)>& progress) {
  GgufWriter writer;
  writer.CopyMetadata(file);
  writer.Set("general.file_type", FileTypeOf(type));
  writer.Set("general.quantization_version", kQuantizationVersion);
  int64_t n_values = 0, n_done = 0;
  for (const ConvertedTensor& converted : plan) {
    writer.AddTensor(converted.tensor->name, converted.type, converted.tensor->shape);
    n_values += converted.tensor->n_elements();
  }
  KVL_RETURN_IF_ERROR(writer.Begin(path));
  TensorConverter converter(file, &writer, threads);
  const auto done = [&](int64_t n) {
    n_done += n;
    if (progress) progress(static_cast<double>(n_done) / static_cast<double>(n_values));
  };
  for (const ConvertedTensor& converted : plan) {
    KVL_RETURN_IF_ERROR(converter.Convert(converted, done));
  }
  KVL_RETURN_IF_ERROR(writer.Commit());
  return writer.n_bytes();
}

}  // namespace kvlathe
