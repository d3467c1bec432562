#include "io/gguf/gguf_conversion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <limits>

#include "base/random.h"
#include "io/files.h"
#include "io/gguf/ggml_types_quantize.h"
#include "io/gguf/gguf_test_writer.h"
#include "io/gguf/opened_gguf.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

using testing::HasSubstr;
using enum ConversionReason;

std::vector<float> RandomValues(uint64_t seed, int64_t n) {
  Random random(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = static_cast<float>(random.Normal());
  return values;
}

void AddRandom(GgufTestWriter* writer, std::string_view name, GgmlType type,
               const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  const auto values = RandomValues(name.size(), n);
  const GgmlLayout& layout = LayoutOf(type);
  std::string bytes(static_cast<size_t>(n / layout.block_values * layout.block_bytes), '\0');
  QuantizeBlocks(type, values.data(), n, reinterpret_cast<std::byte*>(bytes.data()));
  writer->AddTensor(name, type, shape, bytes);
}

// A model's tensors of every kind, one even and one uneven of each.
GgufTestWriter SmallModel() {
  GgufTestWriter writer;
  writer.AddText("general.architecture", "llama");
  writer.AddInteger("general.file_type", 1);
  AddRandom(&writer, "token_embd.weight", GgmlType::kF16, {8, 256});
  AddRandom(&writer, "blk.0.attn_norm.weight", GgmlType::kF16, {256});
  AddRandom(&writer, "blk.0.attn_q.weight", GgmlType::kBf16, {6, 256});
  AddRandom(&writer, "blk.0.attn_k.weight", GgmlType::kQ8_0, {3, 96});
  AddRandom(&writer, "blk.0.attn_v.weight", GgmlType::kF32, {2, 40});
  AddRandom(&writer, "blk.0.ffn_gate_inp.weight", GgmlType::kF32, {4, 256});
  AddRandom(&writer, "blk.0.ffn_up_exps.weight", GgmlType::kF16, {2, 3, 512});
  AddRandom(&writer, "position_embd.weight", GgmlType::kF32, {8, 256});
  return writer;
}

using Types = std::vector<std::pair<GgmlType, ConversionReason>>;

Types TypesOf(const GgufFile& file, GgmlType type) {
  const auto plan = PlanConversion(file, type);
  EXPECT_TRUE(plan.ok()) << plan.status();
  Types types;
  for (const ConvertedTensor& converted : *plan) {
    types.emplace_back(converted.type, converted.reason);
  }
  return types;
}

TEST(GgufConversion, EveryTensorGetsItsType) {
  const ScratchFolder folder;
  SmallModel().Write(folder / "m.gguf");
  const GgufFile file = OpenOrDie(folder / "m.gguf");
  const auto expected = [](GgmlType embedding, ConversionReason embedding_reason, GgmlType even,
                           GgmlType uneven, ConversionReason uneven_reason) {
    const bool takes_40 = LayoutOf(even).block_values == 1;
    return Types{{embedding, embedding_reason},
                 {GgmlType::kF32, kVector},
                 {even, kAsAsked},
                 {uneven, uneven_reason},
                 {takes_40 ? even : GgmlType::kF16, takes_40 ? kAsAsked : kUnevenRows},
                 {GgmlType::kF32, kKept},
                 {even, kAsAsked},
                 {GgmlType::kF32, kKept}};
  };
  using enum GgmlType;
  for (const auto& [type, uneven] : {std::pair{kQ2_K, kQ4_0},
                                     {kQ3_K, kQ4_0},
                                     {kQ4_K, kQ5_0},
                                     {kQ5_K, kQ5_1},
                                     {kIq4Xs, kIq4Nl}}) {
    EXPECT_EQ(TypesOf(file, type), expected(kQ6_K, kEmbeddingOrHead, type, uneven, kUnevenRows))
        << LayoutOf(type).name;
  }
  EXPECT_EQ(TypesOf(file, kQ6_K), expected(kQ6_K, kAsAsked, kQ6_K, kQ8_0, kUnevenRows));
  for (const GgmlType type : {kQ4_0, kQ4_1, kQ5_0, kQ5_1, kIq4Nl, kMxfp4}) {
    const bool is_six = type == kQ5_1;  // with its scale and minimum
    EXPECT_EQ(
        TypesOf(file, type),
        expected(is_six ? type : kQ6_K, is_six ? kAsAsked : kEmbeddingOrHead, type, type, kAsAsked))
        << LayoutOf(type).name;
  }
  for (const GgmlType type : {kQ8_0, kF16, kBf16, kF32}) {
    EXPECT_EQ(TypesOf(file, type), expected(type, kAsAsked, type, type, kAsAsked))
        << LayoutOf(type).name;
  }
}

TEST(GgufConversion, AnEmbeddingOfFewerBitsStaysAsItIs) {
  const ScratchFolder folder;
  GgufTestWriter writer;
  AddRandom(&writer, "token_embd.weight", GgmlType::kQ4_1, {2, 256});
  AddRandom(&writer, "output.weight", GgmlType::kQ8_0, {2, 96});
  writer.Write(folder / "m.gguf");
  EXPECT_EQ(TypesOf(OpenOrDie(folder / "m.gguf"), GgmlType::kQ2_K),
            (Types{{GgmlType::kQ4_1, kEmbeddingOrHead}, {GgmlType::kQ8_0, kEmbeddingOrHead}}));
}

TEST(GgufConversion, TensorsAreWhatTheirBlocksBecome) {
  const ScratchFolder folder;
  SmallModel().Write(folder / "m.gguf");
  const GgufFile file = OpenOrDie(folder / "m.gguf");
  for (const std::string& name : ConversionTypeNames()) {
    const GgmlType type = *ConversionTypeOf(name);
    const auto plan = *PlanConversion(file, type);
    std::vector<double> fractions;
    std::string first;
    for (const int n_threads : {1, 3}) {
      ThreadPool threads(n_threads);
      fractions.clear();
      const auto n_bytes = WriteConversion(file, plan, type, folder / "to.gguf", &threads,
                                           [&](double fraction) { fractions.push_back(fraction); });
      ASSERT_TRUE(n_bytes.ok()) << n_bytes.status();
      const std::string bytes = *ReadTextFile(folder / "to.gguf");
      EXPECT_EQ(*n_bytes, std::ssize(bytes));
      EXPECT_TRUE(n_threads == 1 || bytes == first) << name;
      first = bytes;
    }
    EXPECT_TRUE(std::ranges::is_sorted(fractions));
    EXPECT_EQ(fractions.back(), 1);
    const GgufFile to = OpenOrDie(folder / "to.gguf");
    EXPECT_EQ(*to.TextOr("general.architecture", ""), "llama");
    EXPECT_EQ(*to.IntegerOr("general.quantization_version", 0, 0, 9), 2);
    for (const ConvertedTensor& converted : plan) {
      const GgufTensor& from = *converted.tensor;
      const auto found = to.GetTensor(from.name, from.shape);
      ASSERT_TRUE(found.ok()) << found.status();
      ASSERT_EQ((*found)->type, converted.type) << name << " " << from.name;
      std::vector<float> values(static_cast<size_t>(from.n_elements()));
      DequantizeBlocks(from.type, from.data, from.n_elements(), values.data());
      std::vector<std::byte> blocks(static_cast<size_t>(converted.n_bytes()));
      QuantizeBlocks(converted.type, values.data(), from.n_elements(), blocks.data());
      if (from.type == converted.type) blocks.assign(from.data, from.data + from.n_bytes);
      ASSERT_EQ((*found)->n_bytes, std::ssize(blocks));
      EXPECT_EQ(std::memcmp((*found)->data, blocks.data(), blocks.size()), 0) << from.name;
    }
  }
}

TEST(GgufConversion, TheFileTypeIsThatOfLlamaCpp) {
  const ScratchFolder folder;
  SmallModel().Write(folder / "m.gguf");
  const GgufFile file = OpenOrDie(folder / "m.gguf");
  ThreadPool threads(1);
  std::string found;
  for (const std::string& name : ConversionTypeNames()) {
    const GgmlType type = *ConversionTypeOf(name);
    const auto plan = *PlanConversion(file, type);
    ASSERT_TRUE(WriteConversion(file, plan, type, folder / "to.gguf", &threads, {}).ok());
    const GgufFile to = OpenOrDie(folder / "to.gguf");
    found += fmt::format("{} {} ", name, *to.IntegerOr("general.file_type", -1, 0, 99));
  }
  EXPECT_EQ(found,
            "q8_0 7 q4_0 2 q4_1 3 q5_0 8 q5_1 9 q2_k 10 q3_k 11 q4_k 14 q5_k 16 q6_k 18 iq4_nl 25 "
            "iq4_xs 30 mxfp4 38 bf16 32 f16 1 f32 0 ");
}

TEST(GgufConversion, ATensorOfManyPiecesIsWhole) {
  const ScratchFolder folder;
  constexpr int64_t kRows = (1 << 12) + 3, kColumns = 1024;  // a piece is 2^22 values
  GgufTestWriter writer;
  AddRandom(&writer, "blk.0.ffn_up.weight", GgmlType::kF16, {kRows, kColumns});
  writer.Write(folder / "m.gguf");
  const GgufFile file = OpenOrDie(folder / "m.gguf");
  const auto plan = *PlanConversion(file, GgmlType::kQ8_0);
  ThreadPool threads(2);
  ASSERT_TRUE(WriteConversion(file, plan, GgmlType::kQ8_0, folder / "to.gguf", &threads, {}).ok());
  const GgufFile to = OpenOrDie(folder / "to.gguf");
  const GgufTensor& from = *plan.front().tensor;
  std::vector<float> values(static_cast<size_t>(kRows * kColumns));
  DequantizeBlocks(from.type, from.data, kRows * kColumns, values.data());
  std::vector<std::byte> blocks(static_cast<size_t>(plan.front().n_bytes()));
  QuantizeBlocks(GgmlType::kQ8_0, values.data(), kRows * kColumns, blocks.data());
  const GgufTensor* found = *to.GetTensor("blk.0.ffn_up.weight", {kRows, kColumns});
  EXPECT_EQ(std::memcmp(found->data, blocks.data(), blocks.size()), 0);
}

TEST(GgufConversion, AValueThatIsNotFiniteIsAnErrorAndLeavesNoFile) {
  const ScratchFolder folder;
  std::vector<float> values(512, 1.0f);
  values[300] = std::numeric_limits<float>::quiet_NaN();
  GgufTestWriter writer;
  writer.AddF32("blk.0.ffn_up.weight", {2, 256}, values);
  writer.Write(folder / "m.gguf");
  const GgufFile file = OpenOrDie(folder / "m.gguf");
  const auto plan = *PlanConversion(file, GgmlType::kQ8_0);
  ThreadPool threads(2);
  const auto written =
      WriteConversion(file, plan, GgmlType::kQ8_0, folder / "to.gguf", &threads, {});
  EXPECT_EQ(written.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(MessageOf(written.status()), HasSubstr("blk.0.ffn_up.weight"));
  EXPECT_EQ(folder.n_files(), 1);
}

TEST(GgufConversion, ATensorThatIsNotReadIsAnError) {
  const ScratchFolder folder;
  GgufTestWriter writer;
  writer.AddEntry("blk.0.ffn_up.weight", 16, {1, 256}, 0);  // IQ2_XXS
  writer.AddData(std::string(66, '\0'));
  writer.Write(folder / "m.gguf");
  const auto plan = PlanConversion(OpenOrDie(folder / "m.gguf"), GgmlType::kQ8_0);
  EXPECT_EQ(plan.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(plan.status()), HasSubstr("IQ2_XXS"));
}

TEST(GgufConversion, ATypeThatIsNotThereIsRefusedWithThoseThatAre) {
  const auto type = ConversionTypeOf("q4_k_m");
  EXPECT_EQ(type.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(type.status()), HasSubstr("q4_k, "));
}

}  // namespace
}  // namespace kvlathe
