#include "io/safetensors/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace kvlathe {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

StatusOr<SafetensorsHeader> Parse(std::string_view file) {
  return ParseSafetensorsHeader(std::as_bytes(std::span(file)), "m.safetensors");
}

std::string FileOf(uint64_t header_bytes, std::string_view json, size_t data_bytes) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &header_bytes, 8);
  return file.append(json).append(data_bytes, 'd');
}
std::string FileOf(std::string_view json, size_t data_bytes) {
  return FileOf(json.size(), json, data_bytes);
}

struct Damaged {
  const char* claim;
  std::string json;
  size_t data_bytes;
  const char* message;  // a part of it
  StatusCode code = StatusCode::kDataLoss;
};
void PrintTo(const Damaged& damaged, std::ostream* os) { *os << damaged.claim; }

std::string RepeatedOnes(int n) {
  std::string text = "1";
  for (int i = 1; i < n; ++i) text += ",1";
  return text;
}

class DamagedHeader : public testing::TestWithParam<Damaged> {};

TEST_P(DamagedHeader, IsRefusedWithOneLineThatSaysWhy) {
  const auto header = Parse(FileOf(GetParam().json, GetParam().data_bytes));
  ASSERT_FALSE(header.ok());
  const std::string message = MessageOf(header.status());
  EXPECT_EQ(header.status().code(), GetParam().code) << message;
  EXPECT_THAT(message, StartsWith("m.safetensors: "));
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_TRUE(std::ranges::all_of(message, [](char c) { return c >= 32 && c < 127; })) << message;
}

const Damaged kDamaged[] = {
    {"EmptyHeader", "", 0, "does not start with '{'"},
    {"LeadingSpace", " {}", 0, "does not start with '{'"},
    {"Array", "[]", 0, "does not start with '{'"},
    {"Unfinished", R"({"a":)", 0, "not valid JSON at byte 6"},
    {"TwoDocuments", "{}{}", 0, "not valid JSON at byte 3"},
    {"NulPadding", std::string("{}\0\0", 4), 0, "NUL byte"},
    {"NotUtf8", "{\"\xff\":1}", 0, "not valid JSON at byte 3"},
    {"HugeNumber", R"({"a":{"shape":[1e999]}})", 0, "not valid JSON"},
    {"DataWithoutTensors", "{}", 4, "4 bytes of data, but the tensors end at byte 0"},
    {"EntryIsNumber", R"({"a":1})", 0, "'a': unexpected number"},
    {"EntryIsString", R"({"a":"x"})", 0, "'a': unexpected string"},
    {"EntryIsNull", R"({"a":null})", 0, "'a': unexpected null"},
    {"EntryIsArray", R"({"a":[]})", 0, "'a': unexpected array"},
    {"MetadataIsNumber", R"({"__metadata__":{"n":1}})", 0, "'n': unexpected number"},
    {"MetadataIsNested", R"({"__metadata__":{"n":{}}})", 0, "'n': unexpected object"},
    {"MetadataTwice", R"({"__metadata__":{"n":"1","n":"2"}})", 0, "'n': the name comes twice"},
    {"NoDType", R"({"a":{"shape":[0],"data_offsets":[0,0]}})", 0, "tensor 'a': no dtype"},
    {"NoShape", R"({"a":{"dtype":"F32","data_offsets":[0,0]}})", 0, "tensor 'a': no shape"},
    {"NoOffsets", R"({"a":{"dtype":"F32","shape":[0]}})", 0, "tensor 'a': no data_offsets"},
    {"UnknownField", R"({"a":{"dtype":"F32","strides":[1]}})", 0,
     "tensor 'a': 'strides': unknown field"},
    {"FieldTwice", R"({"a":{"dtype":"F32","dtype":"F16"}})", 0, "'dtype': the field comes twice"},
    {"DTypeIsNumber", R"({"a":{"dtype":7}})", 0, "tensor 'a': 'dtype': unexpected number"},
    {"DTypeIsUnknown", R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4,
     "tensor 'a': unknown dtype 'F31'", StatusCode::kUnimplemented},
    {"ShapeIsString", R"({"a":{"shape":"4"}})", 0, "tensor 'a': 'shape': unexpected string"},
    {"ShapeIsNested", R"({"a":{"shape":[[1]]}})", 0, "tensor 'a': 'shape': unexpected array"},
    {"ShapeIsNegative", R"({"a":{"shape":[-1]}})", 0, "'shape': -1 is negative"},
    {"ShapeIsFraction", R"({"a":{"shape":[1.5]}})", 0, "no 64-bit integer"},
    {"ShapeBeyondInt64", R"({"a":{"shape":[9223372036854775808]}})", 0, "is too large"},
    {"ShapeBeyondUint64", R"({"a":{"shape":[18446744073709551616]}})", 0, "no 64-bit integer"},
    {"TooManyDims", R"({"a":{"shape":[)" + RepeatedOnes(33) + "]}}", 0, "more than 32 dimensions"},
    {"OneOffset", R"({"a":{"data_offsets":[0]}})", 0, "1 numbers instead of two"},
    {"ThreeOffsets", R"({"a":{"data_offsets":[0,4,8]}})", 0, "more than two numbers"},
    {"NegativeOffset", R"({"a":{"data_offsets":[-4,0]}})", 0, "-4 is negative"},
    {"OffsetsReversed", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4,
     "tensor 'a': bytes 4 to 0 are not in the 4 bytes"},
    {"Truncated", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7,
     "tensor 'a': bytes 0 to 8 are not in the 7 bytes of data; the file is truncated"},
    {"FarBeyondTheFile",
     R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,9223372036854775807]}})", 8,
     "tensor 'a': bytes 0 to 9223372036854775807"},
    {"SizeMismatch", R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8,
     "tensor 'a': 8 bytes do not hold F32 of shape [3]"},
    {"ProductOverflows",
     R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
     "0 bytes do not hold F32 of shape [4294967296, 4294967296]"},
    {"BytesOverflow", R"({"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})",
     4, "do not hold F32"},
    {"HalfBytes", R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1, "do not hold F4"},
    {"TrailingData", R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})", 5,
     "5 bytes of data, but the tensors end at byte 4"},
    {"Hole",
     R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},)"
     R"("b":{"dtype":"F16","shape":[2],"data_offsets":[6,10]}})",
     10, "tensor 'b': starts at byte 6 of the data, after a hole that begins at 4"},
    {"HoleAtTheStart", R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[2,6]}})", 6,
     "tensor 'a': starts at byte 2 of the data, after a hole that begins at 0"},
    {"Overlap",
     R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},)"
     R"("b":{"dtype":"F16","shape":[2],"data_offsets":[2,6]}})",
     6, "tensor 'b': starts at byte 2 of the data, inside the tensor that ends at 4"},
    {"NameTwice",
     R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},)"
     R"("a":{"dtype":"F16","shape":[1],"data_offsets":[2,4]}})",
     4, "tensor 'a': the name comes twice"},
    {"NameWithNewline", R"({"a\nb":{"dtype":"x","shape":[],"data_offsets":[0,0]}})", 0,
     R"(tensor 'a\nb': unknown dtype)", StatusCode::kUnimplemented},
};
INSTANTIATE_TEST_SUITE_P(, DamagedHeader, testing::ValuesIn(kDamaged),
                         [](const auto& test) { return test.param.claim; });

TEST(SafetensorsHeader, BoundsTheHeaderLength) {
  EXPECT_THAT(MessageOf(Parse("").status()), HasSubstr("0 bytes are too few"));
  EXPECT_THAT(MessageOf(Parse("1234567").status()), HasSubstr("7 bytes are too few"));
  EXPECT_THAT(MessageOf(Parse(FileOf(3, "{}", 0)).status()),
              HasSubstr("a header of 3 bytes in a file of 10"));
  EXPECT_THAT(MessageOf(Parse(FileOf(100'000'001, "{}", 0)).status()),
              HasSubstr("a header of 100000001 bytes, the most is 100000000"));
  EXPECT_THAT(MessageOf(Parse(FileOf(UINT64_MAX, "{}", 0)).status()), HasSubstr("the most is"));
  EXPECT_TRUE(Parse(FileOf(2, "{}", 0)).ok());
}

TEST(SafetensorsHeader, GivesPlacesInTheFile) {
  const std::string json = R"({"__metadata__":{"format":"pt"},)"
                           R"("b":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                           R"("a":{"shape":[2,3],"data_offsets":[8,20],"dtype":"BF16"},)"
                           R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[20,24]},)"
                           R"("none":{"dtype":"F32","shape":[5,0],"data_offsets":[20,20]}}   )";
  const auto header = Parse(FileOf(json, 24));
  ASSERT_TRUE(header.ok()) << header.status();
  const auto data_begin = static_cast<int64_t>(8 + json.size());
  ASSERT_EQ(header->entries.size(), 4u);
  const SafetensorsEntry& a = header->entries.at("a");
  EXPECT_EQ(a.begin, data_begin + 8);
  EXPECT_EQ(a.end, data_begin + 20);
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(a.dtype, DType::kBf16);
  EXPECT_FALSE(header->entries.at("b").dtype.has_value());
  EXPECT_EQ(header->entries.at("b").dtype_name, "I64");
  EXPECT_TRUE(header->entries.at("scalar").shape.empty());
  EXPECT_EQ(header->entries.at("none").begin, header->entries.at("none").end);
  EXPECT_EQ(header->metadata.at("format"), "pt");
}

TEST(SafetensorsHeader, ShortensALongNameInAMessage) {
  const std::string quoted = QuoteForMessage(std::string(5000, 'x') + "\n");
  EXPECT_EQ(quoted, "'" + std::string(100, 'x') + "...'");
  EXPECT_EQ(QuoteForMessage("\xff\t"), R"('\xff\t')");
}

}  // namespace
}  // namespace kvlathe
