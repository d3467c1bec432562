// These GGUF files must not open; each stands beside what its message says.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "io/gguf/gguf_test_writer.h"

namespace kvlathe {

struct DamagedGguf {
  std::string name;
  std::string bytes;
  std::string message;  // after "PATH: ", from its start
  absl::StatusCode code = absl::StatusCode::kDataLoss;
};

// Number `value` as it stands in a file.
template <typename T>
std::string BytesOf(T value) {
  std::string bytes;
  AppendBytes(value, &bytes);
  return bytes;
}

// A file that opens: keys of several types and three tensors.
inline std::string WellFormedGguf(uint32_t version) {
  GgufTestWriter writer(version);
  writer.SetAlignment(16);
  writer.AddText("general.architecture", "llama");
  writer.AddBool("bool", true);
  writer.AddInteger("negative", -5, GgufValueType::kInt8);
  writer.AddFloat("half", 0.5);
  writer.AddTexts("texts", {"<s>", "", "\xe2\x96\x81word"});
  writer.AddIntegers("kinds", {3, 1, 6});
  writer.AddFloats("scores", {0.0, -1.5, 2.0});
  writer.AddF32("norm", {3}, {1.0f, -2.0f, 0.5f});
  writer.AddTensor("blocks", GgmlType::kQ8_0, {2, 32}, std::string(68, '\1'));
  writer.AddTensor("cube", GgmlType::kF16, {2, 1, 2}, std::string(8, '\2'));
  return writer.Build();
}

namespace damaged_gguf {

inline constexpr uint64_t kHuge = uint64_t{1} << 63;

template <typename Fill>
std::string FileOf(const Fill& fill) {
  GgufTestWriter writer;
  fill(writer);
  return writer.Build();
}

inline std::vector<DamagedGguf> Starts() {
  using Writer = GgufTestWriter;
  const std::string swapped("GGUF\0\0\0\3", 8);
  return {
      {"empty", "", "the file is empty; download it again"},
      {"text", "This is no model.\n",
       "not a GGUF file: it begins with 'This' instead of 'GGUF'; download it again or name "
       "another "
       "file"},
      {"lfs_pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
       "this is the pointer that Git LFS keeps in place of the file; download the file itself"},
      {"magic_only", "GGUF",
       "4 bytes end before the version; the file is truncated or damaged, download it again"},
      {"version_0", "GGUF" + std::string(20, '\0'), "version 0 of GGUF does not exist"},
      {"version_1", Writer(1).Build(),
       "version 1 of GGUF; versions 2 and 3 are read: convert the model again",
       absl::StatusCode::kUnimplemented},
      {"version_4", Writer(4).Build(), "version 4 of GGUF; versions 2 and 3 are read",
       absl::StatusCode::kUnimplemented},
      {"big_endian", swapped + std::string(16, '\0'),
       "a big-endian GGUF file; only little-endian ones are read",
       absl::StatusCode::kUnimplemented},
      {"no_counts", "GGUF" + BytesOf<uint32_t>(3) + BytesOf<uint64_t>(0),
       "16 bytes end inside the counts"},
      {"many_keys", FileOf([](Writer& w) { w.ClaimKeys(kHuge); }),
       "24 bytes end before 9223372036854775808 keys can"},
      {"many_tensors", FileOf([](Writer& w) { w.ClaimTensors(UINT64_MAX / 24 + 2); }),
       "24 bytes end before 768614336404564652 tensors can"},
      {"fewer_keys_than_claimed", FileOf([](Writer& w) {
         w.AddText("a", "0123456789012345");
         w.ClaimKeys(2);
       }),
       "61 bytes end inside key 1"},
  };
}

inline std::vector<DamagedGguf> Keys() {
  using Writer = GgufTestWriter;
  using Type = GgufValueType;
  return {
      {"huge_key",
       "GGUF" + BytesOf<uint32_t>(3) + BytesOf<uint64_t>(0) + BytesOf<uint64_t>(1) +
           BytesOf(kHuge) + std::string(16, 'k'),
       "48 bytes end inside key 0"},
      {"huge_text", FileOf([](Writer& w) { w.AddRaw("k", 8, BytesOf(kHuge) + "abc"); }),
       "48 bytes end inside the text of key 'k'"},
      {"cut_number", FileOf([](Writer& w) { w.AddRaw("key", 12, "1234"); }),
       "43 bytes end inside the value of key 'key'"},
      {"bool_2", FileOf([](Writer& w) { w.AddRaw("k", 7, "\2"); }),
       "key 'k' is 2, but must be 0 or 1 as a bool"},
      {"unknown_type", FileOf([](Writer& w) { w.AddRaw("k", 13, "12345678"); }),
       "key 'k' has a value of type 13, which GGUF lacks; the file is damaged, download it again"},
      {"unsigned_value", FileOf([](Writer& w) { w.AddRaw("k", 10, BytesOf(kHuge)); }),
       "key 'k' is 9223372036854775808; the most that is read is 9223372036854775807",
       absl::StatusCode::kUnimplemented},
      {"key_twice", FileOf([](Writer& w) {
         w.AddText("k", "a");
         w.AddBool("k", true);
       }),
       "key 'k' comes twice"},
      {"key_of_odd_characters", FileOf([](Writer& w) { w.AddRaw("a\n\xff", 13, "12345678"); }),
       "key 'a\\n\\xff' has a value of type 13"},
      {"alignment_0", FileOf([](Writer& w) { w.AddInteger("general.alignment", 0); }),
       "general.alignment is 0, but must be a power of two up to 1048576"},
      {"alignment_24", FileOf([](Writer& w) { w.AddInteger("general.alignment", 24); }),
       "general.alignment is 24, but must be a power of two"},
      {"alignment_negative",
       FileOf([](Writer& w) { w.AddInteger("general.alignment", INT64_MIN, Type::kInt64); }),
       "general.alignment is -9223372036854775808, but must be"},
      {"alignment_huge",
       FileOf([](Writer& w) { w.AddInteger("general.alignment", 1LL << 62, Type::kInt64); }),
       "general.alignment is 4611686018427387904, but must be"},
      {"alignment_text", FileOf([](Writer& w) { w.AddText("general.alignment", "32"); }),
       "general.alignment is no integer"},
  };
}

// The value of an array: type and number of its elements, and their bytes.
inline std::string ArrayOf(uint32_t type, uint64_t n_values, std::string_view bytes) {
  return (BytesOf(type) + BytesOf(n_values)).append(bytes);
}

inline std::vector<DamagedGguf> Arrays() {
  using Writer = GgufTestWriter;
  const auto array = [](uint32_t type, uint64_t n_values, std::string_view bytes) {
    return FileOf([&](Writer& w) { w.AddRaw("k", 9, ArrayOf(type, n_values, bytes)); });
  };
  return {
      {"cut_array", FileOf([](Writer& w) { w.AddRaw("k", 9, "12345678"); }),
       "45 bytes end inside the array of key 'k'"},
      {"huge_array", array(0, kHuge, "abc"),
       "52 bytes end before 9223372036854775808 values of key 'k' can"},
      {"huge_array_of_doubles", array(12, uint64_t{1} << 61, "12345678"),
       "57 bytes end before 2305843009213693952 values of key 'k' can"},
      {"long_array_of_doubles", array(12, 8, "12345678"),
       "57 bytes end before 8 values of key 'k' can"},
      {"long_array_of_texts", array(8, 8, "12345678"),
       "57 bytes end before 8 texts of key 'k' can"},
      {"huge_text_in_array", array(8, 2, BytesOf<uint64_t>(1) + "a" + BytesOf(kHuge)),
       "66 bytes end inside text 1 of key 'k'"},
      {"array_of_arrays", array(9, 1, ArrayOf(0, 1, "a")),
       "key 'k' is an array of arrays, which is not read", absl::StatusCode::kUnimplemented},
      {"array_of_unknown_type", array(13, 1, "12345678"),
       "key 'k' is an array of type 13, which GGUF lacks"},
      {"array_with_bool_2", array(7, 3, std::string_view("\0\1\2", 3)),
       "key 'k' has a value 2, but must be 0 or 1 as a bool"},
      {"unsigned_value_in_array", array(10, 2, BytesOf<uint64_t>(0) + BytesOf(UINT64_MAX)),
       "value 1 of key 'k' is 18446744073709551615; the most that is read is",
       absl::StatusCode::kUnimplemented},
  };
}

inline std::vector<DamagedGguf> Tensors() {
  using Writer = GgufTestWriter;
  constexpr uint32_t kF32 = 0, kF16 = 1, kQ4_0 = 2;
  // One tensor, described so, and 64 bytes of data.
  const auto tensor = [](std::vector<uint64_t> shape, uint32_t type, uint64_t offset) {
    return FileOf([&](Writer& w) {
      w.AddEntry("t", type, std::move(shape), offset);
      w.AddData(std::string(64, '\0'));
    });
  };
  return {
      {"five_dimensions", tensor({1, 1, 1, 1, 1}, kF32, 0),
       "tensor 't' has 5 dimensions, the most is 4"},
      {"zero_dimension", tensor({4, 0}, kF32, 0), "tensor 't' has a dimension of 0"},
      {"huge_dimension", tensor({kHuge}, kF32, 0),
       "tensor 't' has a dimension of 9223372036854775808"},
      {"too_many_values", tensor({1ULL << 32, 1ULL << 32}, kF32, 0),
       "tensor 't' of shape [4294967296, 4294967296] has more bytes than can be counted"},
      {"too_many_bytes", tensor({1ULL << 31, 1ULL << 30}, kF32, 0),
       "tensor 't' of shape [2147483648, 1073741824] has more bytes than can be counted"},
      {"part_of_a_block", tensor({2, 48}, kQ4_0, 0),
       "tensor 't' of type Q4_0 has rows of 48 values, no multiple of 32"},
      {"scalar_of_blocks", tensor({}, kQ4_0, 0),
       "tensor 't' of type Q4_0 has rows of 1 values, no multiple of 32"},
      {"unaligned", tensor({4}, kF32, 16),
       "tensor 't' begins at byte 16 of the data, which is no multiple of 32"},
      {"offset_past_the_file", tensor({4}, kF32, kHuge),
       "128 bytes end before byte 9223372036854775808 of the data, where tensor 't' begins"},
      {"offset_past_the_data", tensor({4}, kF32, 96),
       "128 bytes end before tensor 't' does (16 bytes from byte 96 of 64 bytes of data)"},
      {"past_the_end", tensor({17}, kF32, 0),
       "128 bytes end before tensor 't' does (68 bytes from byte 0 of 64 bytes of data)"},
      {"past_the_end_of_unread_type", tensor({256}, 16, 0),
       "128 bytes end before tensor 't' does (66 bytes from byte 0 of 64 bytes of data)"},
      {"tensor_twice", FileOf([](Writer& w) {
         w.AddF32("t", {1}, {1});
         w.AddF32("t", {1}, {2});
       }),
       "tensor 't' comes twice"},
      {"overlap", FileOf([](Writer& w) {
         w.AddEntry("b", kF32, {9}, 0);
         w.AddEntry("a", kF16, {4}, 32);
         w.AddData(std::string(64, '\0'));
       }),
       "tensors 'b' and 'a' share bytes"},
      {"same_place", FileOf([](Writer& w) {
         w.AddEntry("a", kF32, {1}, 0);
         w.AddEntry("b", kF32, {1}, 0);
         w.AddData(std::string(64, '\0'));
       }),
       "tensors 'a' and 'b' share bytes"},
      {"no_data", FileOf([](Writer& w) { w.AddEntry("t", kF32, {4}, 0); }),
       "57 bytes end before the data of the tensors"},
  };
}

}  // namespace damaged_gguf

inline std::vector<DamagedGguf> DamagedGgufFiles() {
  std::vector<DamagedGguf> files;
  for (const auto& list : {damaged_gguf::Starts(), damaged_gguf::Keys(), damaged_gguf::Arrays(),
                           damaged_gguf::Tensors()}) {
    files.insert(files.end(), list.begin(), list.end());
  }
  return files;
}

}  // namespace kvlathe
