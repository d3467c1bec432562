// A GGUF file is written again with its matrices in another type.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "io/gguf/ggml_types.h"
#include "io/gguf/gguf.h"

namespace kvlathe {

// Every type that QuantizeBlocks writes; the names as they are typed: "q4_k".
std::vector<std::string> ConversionTypeNames();
// One of these names.
StatusOr<GgmlType> ConversionTypeOf(std::string_view name);

// Why a tensor gets the type that it gets.
enum class ConversionReason {
  kAsAsked,
  kVector,           // of one dimension: F32, as all readers expect
  kKept,             // positions and the gates of experts, which are no weights of products
  kEmbeddingOrHead,  // six bits or more
  kUnevenRows,       // rows that are no whole blocks of the type that was asked for
};

struct ConvertedTensor {
  const GgufTensor* tensor = nullptr;
  GgmlType type = GgmlType::kF32;
  ConversionReason reason = ConversionReason::kAsAsked;

  int64_t n_bytes() const;
};

// The type of every tensor, in the order of the file:
// - of one dimension: F32;
// - `token_embd.weight` and `output.weight`, where the type has fewer than six bits: Q6_K, or Q8_0
//   if their rows are no whole blocks of Q6_K; a tensor that the file has in fewer bits stays as it
//   is, since no more bits would tell more;
// - rows that are no whole blocks of a type of 256 values become what llama.cpp takes there, a type
//   with blocks of 32 (Q2_K and Q3_K become Q4_0, Q4_K Q5_0, Q5_K Q5_1, Q6_K Q8_0, IQ4_XS IQ4_NL);
//   rows that are no whole blocks of 32 become F16;
// - all other matrices: the type.
// kUnimplemented if the file has tensors of a type that is not read.
StatusOr<std::vector<ConvertedTensor>> PlanConversion(const GgufFile& file, GgmlType type);

// Writes `file` with the types of `plan` to `path`, atomically. The metadata are those of the file,
// with general.file_type of `type` and general.quantization_version. A tensor that keeps its type
// keeps its bytes; the others are dequantised and quantised in pieces, on all threads. kDataLoss
// if one of these has a value that is not finite. `progress` gets what is done of the whole, from
// 0 to 1, and may be empty. Returns the bytes of the new file.
StatusOr<int64_t> WriteConversion(const GgufFile& file, const std::vector<ConvertedTensor>& plan,
                                  GgmlType type, const std::string& path, ThreadPool* threads,
                                  const std::function<void(double fraction)>& progress);

}  // namespace kvlathe
