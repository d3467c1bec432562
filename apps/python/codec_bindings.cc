#include "python/codec_bindings.h"

#include <fmt/format.h>
#include <nanobind/ndarray.h>
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
#include "python/given_weights.h"
#include "python/guards.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

using SequenceList = std::vector<std::shared_ptr<SequenceHandle>>;

class CodecHandle {
 public:
  CodecHandle(const ShapeHandle& shape, const std::string& kv, const StatisticsHandle* statistics,
              const std::string& dtype, int n_threads, int max_positions,
              const nb::object& weights);

  std::string spec() const { return state_->facts().spec().ToString(); }
  double Fraction() const { return state_->facts().Fraction(); }
  int64_t BytesAt(int64_t n_tokens, int64_t n_prompt) const;
  std::shared_ptr<SequenceHandle> NewSequence(int64_t n_prompt);
  nb::object Attend(const SequenceList& sequences, int layer, const nb::object& q,
                    const nb::object& k, const nb::object& v,
                    const std::optional<std::vector<int>>& n_new, std::optional<double> scale,
                    bool rotated, const nb::object& sink_logits, const nb::object& out);
  std::shared_ptr<SequenceHandle> Encode(const nb::object& k, const nb::object& v,
                                         const nb::object& q, bool rotated,
                                         const nb::object& sink_logits);
  std::shared_ptr<SequenceHandle> Load(const nb::object& bytes);

 private:
  std::shared_ptr<SequenceHandle> Wrap(std::unique_ptr<CodecSequence> sequence) {
    return std::make_shared<SequenceHandle>(state_, std::move(sequence));
  }
  void CheckOwn(const SequenceList& sequences) const;
  // The lengths of the parts of n_rows rows.
  std::vector<int> Lengths(const SequenceList& sequences,
                           const std::optional<std::vector<int>>& n_new, int64_t n_rows) const;

  std::shared_ptr<CodecState> state_;
};

CodecHandle::CodecHandle(const ShapeHandle& shape, const std::string& kv,
                         const StatisticsHandle* statistics, const std::string& dtype,
                         int n_threads, int max_positions, const nb::object& weights) {
  CodecOptions options = {.spec = kv,
                          .max_positions = max_positions,
                          .statistics = {},
                          .weights = ReadGivenWeights(weights, shape.config)};
  if (dtype != "float32" && dtype != "bfloat16") {
    throw nb::value_error(
        fmt::format("dtype is '{}'; it is 'float32' or 'bfloat16'", dtype).c_str());
  }
  if (dtype == "bfloat16") options.row_type = DType::kBf16;
  if (statistics != nullptr) options.statistics = statistics->named;
  const int n_workers = ThreadsOf(n_threads);
  const nb::gil_scoped_release released;
  state_ = std::make_shared<CodecState>(n_workers);
  std::shared_ptr<Machine> machine = ValueOrThrow(MakeMachine(state_->threads()));
  state_->set_codec(ValueOrThrow(RowCodec::Create(shape.config, options, std::move(machine))));
}

int64_t CodecHandle::BytesAt(int64_t n_tokens, int64_t n_prompt) const {
  if (n_tokens < 0 || n_prompt < 0 || n_tokens > (int64_t{1} << 31)) {
    throw nb::value_error("n_tokens and n_prompt are at least 0, and at most 2^31");
  }
  return state_->facts().BytesAt(n_tokens, n_prompt);
}

std::shared_ptr<SequenceHandle> CodecHandle::NewSequence(int64_t n_prompt) {
  if (n_prompt < 0) throw nb::value_error("n_prompt is at least 1");
  const Turn turn(state_->turns());
  return Wrap(state_->codec().NewSequence(n_prompt));
}

void CodecHandle::CheckOwn(const SequenceList& sequences) const {
  for (const auto& sequence : sequences) {
    if (sequence == nullptr) throw nb::type_error("sequences holds None");
    static_cast<void>(sequence->sequence());
    if (sequence->state() != state_) {
      throw nb::value_error("a sequence is of another codec; each codec makes its own");
    }
  }
}

std::vector<int> CodecHandle::Lengths(const SequenceList& sequences,
                                      const std::optional<std::vector<int>>& n_new,
                                      int64_t n_rows) const {
  const auto n_sequences = static_cast<int64_t>(sequences.size());
  if (n_sequences == 0) throw nb::value_error("there are no sequences");
  if (n_rows > (int64_t{1} << 31) - 1) throw nb::value_error("there are more than 2^31 - 1 rows");
  if (!n_new.has_value()) {
    if (n_rows % n_sequences != 0) {
      throw nb::value_error(fmt::format("{} rows are not as many for each of {} sequences; say in "
                                        "n_new how many each has",
                                        n_rows, n_sequences)
                                .c_str());
    }
    return std::vector<int>(n_sequences, static_cast<int>(n_rows / n_sequences));
  }
  int64_t sum = 0;
  for (const int n : *n_new) sum += n;
  if (std::ssize(*n_new) != n_sequences || sum != n_rows) {
    throw nb::value_error(fmt::format("n_new has {} numbers of sum {}; there are {} sequences and "
                                      "{} rows",
                                      n_new->size(), sum, n_sequences, n_rows)
                              .c_str());
  }
  return *n_new;
}

// Throws the first failure.
void ThrowFailures(const std::vector<Status>& failures) {
  for (size_t i = 0; i < failures.size(); ++i) {
    if (failures[i].ok()) continue;
    if (failures.size() == 1) throw StatusError(failures[i]);
    throw StatusError(Error(failures[i].code(), "sequence {}: {}", i, MessageOf(failures[i])));
  }
}

nb::object CodecHandle::Attend(const SequenceList& sequences, int layer, const nb::object& q,
                               const nb::object& k, const nb::object& v,
                               const std::optional<std::vector<int>>& n_new,
                               std::optional<double> scale, bool rotated,
                               const nb::object& sink_logits, const nb::object& out) {
  CheckOwn(sequences);
  const ModelConfig& c = state_->facts().config();
  const Floats queries(q, "q", {kAnyLength, c.n_heads, c.head_dim});
  const int64_t n_rows = queries.length(0);
  const Floats keys(k, "k", {n_rows, c.n_kv_heads, c.head_dim});
  const Floats values(v, "v", {n_rows, c.n_kv_heads, c.head_dim});
  std::optional<Floats> logits;
  if (!sink_logits.is_none()) {
    logits.emplace(sink_logits, "sink_logits", std::initializer_list<int64_t>{c.n_heads});
  }
  const std::vector<int> lengths = Lengths(sequences, n_new, n_rows);
  CodecRows rows = {.layer_idx = layer,
                    .q = queries.data(),
                    .k = keys.data(),
                    .v = values.data(),
                    .are_turned = rotated,
                    .scale = scale,
                    .sink_logits = logits.has_value() ? logits->data() : nullptr};
  nb::object result = out;
  std::optional<WrittenFloats> written;
  if (out.is_none()) {
    result = NewFloats({static_cast<size_t>(n_rows), static_cast<size_t>(c.n_heads),
                        static_cast<size_t>(c.head_dim)},
                       &rows.out);
  } else {
    rows.out =
        written.emplace(out, "out", std::initializer_list<int64_t>{n_rows, c.n_heads, c.head_dim})
            .data();
  }
  std::vector<Status> failures;
  {
    const Turn turn(state_->turns());
    RowCodec& codec = state_->codec();
    std::vector<CodecStep> steps;  // of what nobody has closed up to here
    for (size_t i = 0; i < sequences.size(); ++i) {
      steps.push_back({&sequences[i]->sequence(), lengths[i]});
    }
    ThrowIfError(codec.Run(steps, rows, &failures));
  }
  ThrowFailures(failures);
  return result;
}

std::shared_ptr<SequenceHandle> CodecHandle::Encode(const nb::object& k, const nb::object& v,
                                                    const nb::object& q, bool rotated,
                                                    const nb::object& sink_logits) {
  const ModelConfig& c = state_->facts().config();
  const Floats keys(k, "k", {c.n_layers, kAnyLength, c.n_kv_heads, c.head_dim});
  const int64_t n_rows = keys.length(1);
  const Floats values(v, "v", {c.n_layers, n_rows, c.n_kv_heads, c.head_dim});
  std::optional<Floats> queries;
  if (!q.is_none()) {
    queries.emplace(q, "q",
                    std::initializer_list<int64_t>{c.n_layers, n_rows, c.n_heads, c.head_dim});
  }
  std::optional<Floats> logits;
  if (!sink_logits.is_none()) {
    logits.emplace(sink_logits, "sink_logits",
                   std::initializer_list<int64_t>{c.n_layers, c.n_heads});
  }
  if (n_rows < 1 || n_rows > (int64_t{1} << 31) - 1) {
    throw nb::value_error("k has no tokens, or more than 2^31 - 1");
  }
  std::unique_ptr<CodecSequence> sequence;
  {
    const Turn turn(state_->turns());
    RowCodec& codec = state_->codec();
    sequence = codec.NewSequence();
    const int64_t q_layer = n_rows * c.n_heads * c.head_dim;
    const int64_t k_layer = n_rows * c.n_kv_heads * c.head_dim;
    std::vector<float> unread;  // what attention puts out
    if (queries.has_value()) unread.resize(q_layer);
    for (int l = 0; l < c.n_layers; ++l) {
      const CodecStep step = {sequence.get(), static_cast<int>(n_rows)};
      std::vector<Status> failures;
      ThrowIfError(
          codec.Run({&step, 1},
                    {.layer_idx = l,
                     .q = queries.has_value() ? queries->data() + l * q_layer : nullptr,
                     .k = keys.data() + l * k_layer,
                     .v = values.data() + l * k_layer,
                     .are_turned = rotated,
                     .scale = {},
                     .sink_logits = logits.has_value() ? logits->data() + l * c.n_heads : nullptr,
                     .out = queries.has_value() ? unread.data() : nullptr},
                    &failures));
      ThrowFailures(failures);
    }
  }
  return Wrap(std::move(sequence));
}

std::shared_ptr<SequenceHandle> CodecHandle::Load(const nb::object& bytes) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(bytes.ptr(), &buffer, PyBUF_SIMPLE) != 0) {
    PyErr_Clear();
    throw nb::type_error("data is no bytes, nor anything with a contiguous buffer");
  }
  std::unique_ptr<CodecSequence> sequence;
  Status status;
  {
    const std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> held(&buffer, PyBuffer_Release);
    const Turn turn(state_->turns());
    auto loaded = state_->codec().Load(
        {static_cast<const std::byte*>(buffer.buf), static_cast<size_t>(buffer.len)});
    status = loaded.status();
    if (loaded.ok()) sequence = *std::move(loaded);
  }
  ThrowIfError(status);
  return Wrap(std::move(sequence));
}

}  // namespace

void BindCodec(nb::module_& module) {
  BindCodecShapes(module);
  BindCodecSequences(module);
  nb::class_<CodecHandle>(module, "Codec")
      .def(nb::init<const ShapeHandle&, const std::string&, const StatisticsHandle*,
                    const std::string&, int, int, const nb::object&>(),
           "shape"_a, "kv"_a, "statistics"_a.none(), "dtype"_a, "n_threads"_a, "max_positions"_a,
           "weights"_a.none())
      .def_prop_ro("spec", &CodecHandle::spec)
      .def("fraction", &CodecHandle::Fraction)
      .def("bytes_at", &CodecHandle::BytesAt, "n_tokens"_a, "n_prompt"_a)
      .def("sequence", &CodecHandle::NewSequence, "n_prompt"_a)
      .def("attend", &CodecHandle::Attend, "sequences"_a, "layer"_a, "q"_a.none(), "k"_a.none(),
           "v"_a.none(), "n_new"_a.none(), "scale"_a.none(), "rotated"_a, "sink_logits"_a.none(),
           "out"_a.none())
      .def("encode", &CodecHandle::Encode, "k"_a.none(), "v"_a.none(), "q"_a.none(), "rotated"_a,
           "sink_logits"_a.none())
      .def("load", &CodecHandle::Load, "data"_a.none());
}

}  // namespace kvlathe::python
