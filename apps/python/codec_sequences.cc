// What sequences of a codec hold.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codec/row_codec.h"
#include "python/arrays.h"
#include "python/codec_handles.h"
#include "python/errors.h"
#include "python/guards.h"

namespace kvlathe::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// Keys or values of a layer, in the order in which they are held.
nb::object ReadRows(const SequenceHandle& handle, int layer, bool of_keys) {
  StoredEntries entries;
  {
    const Turn turn(handle.state()->turns());
    RowCodec& codec = handle.state()->codec();
    entries = ValueOrThrow(codec.Read(handle.sequence(), layer));
  }
  const ModelConfig& c = handle.state()->facts().config();
  float* rows = nullptr;
  nb::object array = NewFloats({static_cast<size_t>(entries.n_entries),
                                static_cast<size_t>(c.n_kv_heads), static_cast<size_t>(c.head_dim)},
                               &rows);
  std::ranges::copy(of_keys ? entries.k : entries.v, rows);
  return array;
}

std::vector<int> ReadPositions(const SequenceHandle& handle, int layer, int head) {
  StoredEntries entries;
  {
    const Turn turn(handle.state()->turns());
    RowCodec& codec = handle.state()->codec();
    entries = ValueOrThrow(codec.Read(handle.sequence(), layer));
  }
  if (head < 0 || head >= entries.n_heads) {
    throw nb::value_error(
        fmt::format("head {}: there are heads 0 to {}", head, entries.n_heads - 1).c_str());
  }
  if (entries.positions.empty()) {
    throw StatusError(Error(StatusCode::kFailedPrecondition,
                            "layer {} keeps no positions of its entries any more", layer));
  }
  const auto first = entries.positions.begin() + head * entries.n_entries;
  return {first, first + entries.n_entries};
}

nb::tuple DecodeSequence(const SequenceHandle& handle) {
  const ModelConfig& c = handle.state()->facts().config();
  const int n_tokens = handle.sequence().n_tokens();
  float *k = nullptr, *v = nullptr;
  const auto make = [&](float** rows) {
    return NewFloats({static_cast<size_t>(c.n_layers), static_cast<size_t>(n_tokens),
                      static_cast<size_t>(c.n_kv_heads), static_cast<size_t>(c.head_dim)},
                     rows);
  };
  const nb::object keys = make(&k), values = make(&v);
  {
    const Turn turn(handle.state()->turns());
    RowCodec& codec = handle.state()->codec();
    const CodecSequence& sequence = handle.sequence();
    if (sequence.n_tokens() != n_tokens) {
      throw StatusError(Error(StatusCode::kFailedPrecondition,
                              "another thread has changed the sequence meanwhile"));
    }
    ThrowIfError(codec.Decode(sequence, k, v));
  }
  return nb::make_tuple(keys, values);
}

nb::bytes SaveSequence(const SequenceHandle& handle) {
  std::string bytes;
  {
    const Turn turn(handle.state()->turns());
    RowCodec& codec = handle.state()->codec();
    bytes = ValueOrThrow(codec.Save(handle.sequence()));
  }
  return nb::bytes(bytes.data(), bytes.size());
}

std::shared_ptr<SequenceHandle> CopySequence(const SequenceHandle& handle) {
  const Turn turn(handle.state()->turns());
  RowCodec& codec = handle.state()->codec();
  return std::make_shared<SequenceHandle>(handle.state(),
                                          ValueOrThrow(codec.Copy(handle.sequence())));
}

void ResetSequence(const SequenceHandle& handle, int64_t n_prompt) {
  if (n_prompt < 0) throw nb::value_error("n_prompt is at least 1");
  const Turn turn(handle.state()->turns());
  handle.sequence().Clear(n_prompt);
}

// Bytes by the parts that the allocator knows.
std::vector<std::pair<std::string, int64_t>> BytesByKind(const SequenceHandle& handle) {
  const Turn turn(handle.state()->turns());
  const KvBytes bytes = handle.sequence().bytes();
  return {{"blocks", bytes.blocks},           {"sinks", bytes.sinks},
          {"run_records", bytes.run_records}, {"layer_records", bytes.layer_records},
          {"tables", bytes.tables},           {"entries", bytes.entries}};
}

double FractionOf(const SequenceHandle& handle) {
  const Turn turn(handle.state()->turns());
  const CodecSequence& sequence = handle.sequence();
  const int64_t n = sequence.n_tokens();
  if (n == 0) return 0;
  return static_cast<double>(sequence.bytes().total()) /
         static_cast<double>(ReferenceBytes(handle.state()->facts().layout(), n));
}

}  // namespace

void BindCodecSequences(nb::module_& module) {
  nb::class_<SequenceHandle>(module, "CodecSequence")
      .def_prop_ro("n_tokens", [](const SequenceHandle& s) { return s.sequence().n_tokens(); })
      .def_prop_ro("n_prompt", [](const SequenceHandle& s) { return s.sequence().n_prompt(); })
      .def_prop_ro("next_layer", [](const SequenceHandle& s) { return s.sequence().next_layer(); })
      .def_prop_ro("failure",
                   [](const SequenceHandle& s) -> std::optional<std::string> {
                     const Status& failure = s.sequence().failure();
                     if (failure.ok()) return std::nullopt;
                     return MessageOf(failure);
                   })
      .def_prop_ro("is_closed", &SequenceHandle::is_closed)
      .def("bytes_by_kind", &BytesByKind)
      .def("fraction", &FractionOf)
      .def("read_rows", &ReadRows, "layer"_a, "of_keys"_a)
      .def("positions", &ReadPositions, "layer"_a, "head"_a)
      .def("decode", &DecodeSequence)
      .def("to_bytes", &SaveSequence)
      .def("copy", &CopySequence)
      .def("reset", &ResetSequence, "n_prompt"_a)
      .def("close", &SequenceHandle::Close);
}

}  // namespace kvlathe::python
