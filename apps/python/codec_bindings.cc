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
#include <thread>
#include <utility>
#include <vector>

#include "analysis/bases/lathe_maps.h"
#include "base/cpu_features.h"
#include "codec/row_calibration.h"
#include "codec/row_codec.h"
#include "codec/row_shape.h"
#include "python/arrays.h"
#include "python/codec_state.h"
#include "python/errors.h"
#include "python/given_weights.h"
#include "python/guards.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// Of a model's attention.
struct ShapeHandle {
  ModelConfig config;
};

// Statistics and the name that errors give them.
struct StatisticsHandle {
  NamedStatistics named;
};

// As many as were asked for; 0: as the processors.
int ThreadsOf(int n_threads) {
  const auto n_processors = static_cast<int>(std::thread::hardware_concurrency());
  if (n_threads < 0 || n_threads > std::max(1024, n_processors)) {
    throw nb::value_error(fmt::format("n_threads is {}; it is at least 1", n_threads).c_str());
  }
  return n_threads > 0 ? n_threads : std::max(1, n_processors);
}

class SequenceHandle {
 public:
  SequenceHandle(std::shared_ptr<CodecState> state, std::shared_ptr<CodecSequence> sequence)
      : state_(std::move(state)), sequence_(std::move(sequence)) {}
  ~SequenceHandle() { Close(); }

  void Close() {
    if (state_ != nullptr) state_->GiveBack(std::move(sequence_));
  }
  bool is_closed() const { return sequence_ == nullptr; }
  // FailedPreconditionError where it is closed.
  const std::shared_ptr<CodecSequence>& sequence() const {
    if (sequence_ != nullptr) return sequence_;
    throw StatusError(
        Error(StatusCode::kFailedPrecondition, "the sequence is closed; make a new one"));
  }
  const std::shared_ptr<CodecState>& state() const { return state_; }

 private:
  std::shared_ptr<CodecState> state_;
  std::shared_ptr<CodecSequence> sequence_;
};

// Keeps the sequence of a call that waits for its turn, or has it, while another thread closes it.
class SequenceUse {
 public:
  explicit SequenceUse(const SequenceHandle& handle)
      : state_(handle.state()), sequence_(handle.sequence()) {}
  SequenceUse(SequenceUse&&) = default;
  ~SequenceUse() {
    if (sequence_ != nullptr) state_->GiveBack(std::move(sequence_));
  }
  CodecSequence& operator*() const { return *sequence_; }

 private:
  std::shared_ptr<CodecState> state_;
  std::shared_ptr<CodecSequence> sequence_;
};

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
                    bool rotated, const nb::object& out);
  std::shared_ptr<SequenceHandle> Encode(const nb::object& k, const nb::object& v,
                                         const nb::object& q, bool rotated);
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
                               std::optional<double> scale, bool rotated, const nb::object& out) {
  CheckOwn(sequences);
  const ModelConfig& c = state_->facts().config();
  const Floats queries(q, "q", {kAnyLength, c.n_heads, c.head_dim});
  const int64_t n_rows = queries.length(0);
  const Floats keys(k, "k", {n_rows, c.n_kv_heads, c.head_dim});
  const Floats values(v, "v", {n_rows, c.n_kv_heads, c.head_dim});
  const std::vector<int> lengths = Lengths(sequences, n_new, n_rows);
  CodecRows rows = {.layer_idx = layer,
                    .q = queries.data(),
                    .k = keys.data(),
                    .v = values.data(),
                    .are_turned = rotated,
                    .scale = scale};
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
  std::vector<SequenceUse> uses;
  std::vector<CodecStep> steps;
  for (size_t i = 0; i < sequences.size(); ++i) {
    steps.push_back({&*uses.emplace_back(*sequences[i]), lengths[i]});
  }
  std::vector<Status> failures;
  {
    const Turn turn(state_->turns());
    ThrowIfError(state_->codec().Run(steps, rows, &failures));
  }
  ThrowFailures(failures);
  return result;
}

std::shared_ptr<SequenceHandle> CodecHandle::Encode(const nb::object& k, const nb::object& v,
                                                    const nb::object& q, bool rotated) {
  const ModelConfig& c = state_->facts().config();
  const Floats keys(k, "k", {c.n_layers, kAnyLength, c.n_kv_heads, c.head_dim});
  const int64_t n_rows = keys.length(1);
  const Floats values(v, "v", {c.n_layers, n_rows, c.n_kv_heads, c.head_dim});
  std::optional<Floats> queries;
  if (!q.is_none()) {
    queries.emplace(q, "q",
                    std::initializer_list<int64_t>{c.n_layers, n_rows, c.n_heads, c.head_dim});
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
      ThrowIfError(codec.Run({&step, 1},
                             {.layer_idx = l,
                              .q = queries.has_value() ? queries->data() + l * q_layer : nullptr,
                              .k = keys.data() + l * k_layer,
                              .v = values.data() + l * k_layer,
                              .are_turned = rotated,
                              .scale = {},
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

// Keys or values of a layer, in the order in which they are held.
nb::object ReadRows(const SequenceHandle& handle, int layer, bool of_keys) {
  const SequenceUse use(handle);
  CodecSequence& sequence = *use;
  StoredEntries entries;
  {
    const Turn turn(handle.state()->turns());
    entries = ValueOrThrow(handle.state()->codec().Read(sequence, layer));
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
  const SequenceUse use(handle);
  CodecSequence& sequence = *use;
  StoredEntries entries;
  {
    const Turn turn(handle.state()->turns());
    entries = ValueOrThrow(handle.state()->codec().Read(sequence, layer));
  }
  if (head < 0 || head >= entries.n_heads) {
    throw nb::value_error(
        fmt::format("head {}: there are heads 0 to {}", head, entries.n_heads - 1).c_str());
  }
  const auto first = entries.positions.begin() + head * entries.n_entries;
  return {first, first + entries.n_entries};
}

nb::tuple DecodeSequence(const SequenceHandle& handle) {
  const SequenceUse use(handle);
  CodecSequence& sequence = *use;
  const ModelConfig& c = handle.state()->facts().config();
  float *k = nullptr, *v = nullptr;
  // Until no thread has appended rows between the arrays and the turn.
  while (true) {
    const int64_t n_tokens = sequence.n_tokens();
    const auto make = [&](float** rows) {
      return NewFloats({static_cast<size_t>(c.n_layers), static_cast<size_t>(n_tokens),
                        static_cast<size_t>(c.n_kv_heads), static_cast<size_t>(c.head_dim)},
                       rows);
    };
    const nb::object keys = make(&k), values = make(&v);
    bool is_decoded = false;
    {
      const Turn turn(handle.state()->turns());
      is_decoded = sequence.n_tokens() == n_tokens;
      if (is_decoded) ThrowIfError(handle.state()->codec().Decode(sequence, k, v));
    }
    if (is_decoded) return nb::make_tuple(keys, values);
  }
}

nb::bytes SaveSequence(const SequenceHandle& handle) {
  const SequenceUse use(handle);
  CodecSequence& sequence = *use;
  std::string bytes;
  {
    const Turn turn(handle.state()->turns());
    bytes = ValueOrThrow(handle.state()->codec().Save(sequence));
  }
  return nb::bytes(bytes.data(), bytes.size());
}

std::shared_ptr<SequenceHandle> CopySequence(const SequenceHandle& handle) {
  const SequenceUse use(handle);
  CodecSequence& sequence = *use;
  const Turn turn(handle.state()->turns());
  return std::make_shared<SequenceHandle>(handle.state(),
                                          ValueOrThrow(handle.state()->codec().Copy(sequence)));
}

void ResetSequence(const SequenceHandle& handle, int64_t n_prompt) {
  if (n_prompt < 0) throw nb::value_error("n_prompt is at least 1");
  const SequenceUse use(handle);
  CodecSequence& sequence = *use;
  const Turn turn(handle.state()->turns());
  static_cast<void>(handle.state()->codec());
  sequence.Clear(n_prompt);
}

// Bytes by the parts that the allocator knows.
std::vector<std::pair<std::string, int64_t>> BytesByKind(const SequenceHandle& handle) {
  const SequenceUse use(handle);
  CodecSequence& sequence = *use;
  const Turn turn(handle.state()->turns());
  const KvBytes bytes = sequence.bytes();
  return {{"blocks", bytes.blocks},           {"sinks", bytes.sinks},
          {"run_records", bytes.run_records}, {"layer_records", bytes.layer_records},
          {"tables", bytes.tables},           {"entries", bytes.entries}};
}

double FractionOf(const SequenceHandle& handle) {
  const SequenceUse use(handle);
  CodecSequence& sequence = *use;
  const Turn turn(handle.state()->turns());
  const int64_t n = sequence.n_tokens();
  if (n == 0) return 0;
  return static_cast<double>(sequence.bytes().total()) /
         static_cast<double>(ReferenceBytes(handle.state()->facts().layout(), n));
}

ShapeHandle MakeShape(const RowShape& shape) { return {ValueOrThrow(ConfigOf(shape))}; }

StatisticsHandle ReadNamed(const std::string& path) {
  const nb::gil_scoped_release released;
  return {{std::make_shared<const CalibrationStatistics>(ValueOrThrow(ReadStatisticsOrMaps(path))),
           path}};
}

// Gathers statistics of captured rows.
class CalibratorHandle {
 public:
  CalibratorHandle(const ShapeHandle& shape, int n_threads)
      : config_(shape.config),
        pool_(std::make_unique<ThreadPool>(ThreadsOf(n_threads))),
        calibration_(
            std::make_unique<RowCalibration>(config_, pool_.get(), ValueOrThrow(SelectIsa()))) {}
  ~CalibratorHandle() {
    if (!turns_.is_child()) return;
    static_cast<void>(calibration_.release());
    static_cast<void>(pool_.release());
  }

  void Add(int layer, const nb::object& q, const nb::object& k, const nb::object& v, bool rotated,
           int first_position, bool held_back) {
    const Floats queries(q, "q", {kAnyLength, config_.n_heads, config_.head_dim});
    const int64_t n = queries.length(0);
    const Floats keys(k, "k", {n, config_.n_kv_heads, config_.head_dim});
    const Floats values(v, "v", {n, config_.n_kv_heads, config_.head_dim});
    const Turn turn(&turns_);
    ThrowIfError(Open().Add({.layer_idx = layer,
                             .n_tokens = n,
                             .first_position = first_position,
                             .q = queries.data(),
                             .k = keys.data(),
                             .v = values.data(),
                             .are_turned = rotated,
                             .is_held_back = held_back}));
  }
  // Each of (k, v).
  using KeysAndValues = std::pair<nb::object, nb::object>;
  void AddGradients(int layer, const KeysAndValues& rows, const KeysAndValues& gradients,
                    const KeysAndValues& through_all, bool rotated) {
    const Floats k(rows.first, "k", {kAnyLength, config_.n_kv_heads, config_.head_dim});
    const int64_t n = k.length(0);
    const auto like_keys = [&](const nb::object& array, const char* name) {
      return std::make_unique<Floats>(
          array, name, std::initializer_list<int64_t>{n, config_.n_kv_heads, config_.head_dim});
    };
    const auto v = like_keys(rows.second, "v"), to_k = like_keys(gradients.first, "to_k"),
               to_v = like_keys(gradients.second, "to_v"),
               all_k = like_keys(through_all.first, "to_k_through_all"),
               all_v = like_keys(through_all.second, "to_v_through_all");
    const Turn turn(&turns_);
    ThrowIfError(Open().AddGradients({.layer_idx = layer,
                                      .n_tokens = n,
                                      .k = k.data(),
                                      .v = v->data(),
                                      .to_k = to_k->data(),
                                      .to_v = to_v->data(),
                                      .to_k_through_all = all_k->data(),
                                      .to_v_through_all = all_v->data(),
                                      .are_turned = rotated}));
  }
  StatisticsHandle Finish() {
    const Turn turn(&turns_);
    CalibrationStatistics statistics = ValueOrThrow(Open().Finish());
    calibration_.reset();
    return {{std::make_shared<const CalibrationStatistics>(std::move(statistics)),
             "the calibrator's statistics"}};
  }

 private:
  RowCalibration& Open() {
    if (calibration_ != nullptr) return *calibration_;
    throw StatusError(
        Error(StatusCode::kFailedPrecondition, "the calibrator is finished; make a new one"));
  }

  Turns turns_;
  ModelConfig config_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<RowCalibration> calibration_;
};

void BindShape(nb::module_& module) {
  nb::class_<ShapeHandle>(module, "CodecShape")
      .def_static(
          "of_numbers",
          [](int n_layers, int n_heads, int n_kv_heads, int head_dim, int max_positions,
             std::optional<double> rope_theta, double rotary_fraction,
             const std::vector<int>& windows) {
            return MakeShape({n_layers, n_heads, n_kv_heads, head_dim, max_positions, rope_theta,
                              rotary_fraction, windows});
          },
          "n_layers"_a, "n_heads"_a, "n_kv_heads"_a, "head_dim"_a, "max_positions"_a,
          "rope_theta"_a.none(), "rotary_fraction"_a, "windows"_a)
      .def_static("of_path",
                  [](const std::string& path) {
                    return ShapeHandle{ValueOrThrow(LoadAttentionConfig(path))};
                  })
      .def_static("of_json",
                  [](const std::string& json) {
                    return ShapeHandle{ValueOrThrow(ReadAttentionConfig(json, "config"))};
                  })
      .def_prop_ro("model_type", [](const ShapeHandle& s) { return s.config.model_type; })
      .def_prop_ro("n_layers", [](const ShapeHandle& s) { return s.config.n_layers; })
      .def_prop_ro("n_heads", [](const ShapeHandle& s) { return s.config.n_heads; })
      .def_prop_ro("n_kv_heads", [](const ShapeHandle& s) { return s.config.n_kv_heads; })
      .def_prop_ro("head_dim", [](const ShapeHandle& s) { return s.config.head_dim; })
      .def_prop_ro("rope_dim", [](const ShapeHandle& s) { return s.config.rope_dim(); })
      .def_prop_ro("max_positions", [](const ShapeHandle& s) { return s.config.max_seq_len; })
      .def_prop_ro("windows", [](const ShapeHandle& s) {
        std::vector<int> windows = s.config.attention.Windows(s.config.n_layers);
        windows.resize(s.config.n_layers);
        return windows;
      });
  nb::class_<StatisticsHandle>(module, "CodecStatistics")
      .def_static("read", &ReadNamed)
      .def("write",
           [](const StatisticsHandle& s, const std::string& path) {
             const nb::gil_scoped_release released;
             ThrowIfError(WriteStatistics(*s.named.statistics, path));
           })
      .def_prop_ro("n_tokens",
                   [](const StatisticsHandle& s) { return s.named.statistics->source.n_tokens; });
}

}  // namespace

void BindCodec(nb::module_& module) {
  BindShape(module);
  nb::class_<CalibratorHandle>(module, "CodecCalibrator")
      .def(nb::init<const ShapeHandle&, int>(), "shape"_a, "n_threads"_a)
      .def("add", &CalibratorHandle::Add, "layer"_a, "q"_a, "k"_a, "v"_a, "rotated"_a,
           "first_position"_a, "held_back"_a)
      .def("add_gradients", &CalibratorHandle::AddGradients, "layer"_a, "rows"_a, "gradients"_a,
           "through_all"_a, "rotated"_a)
      .def("finish", &CalibratorHandle::Finish);
  nb::class_<SequenceHandle>(module, "CodecSequence")
      .def_prop_ro("n_tokens", [](const SequenceHandle& s) { return s.sequence()->n_tokens(); })
      .def_prop_ro("n_prompt", [](const SequenceHandle& s) { return s.sequence()->n_prompt(); })
      .def_prop_ro("next_layer", [](const SequenceHandle& s) { return s.sequence()->next_layer(); })
      .def_prop_ro("failure",
                   [](const SequenceHandle& s) -> std::optional<std::string> {
                     const SequenceUse use(s);
                     const Turn turn(s.state()->turns());
                     const Status& failure = (*use).failure();
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
  nb::class_<CodecHandle>(module, "Codec")
      .def(nb::init<const ShapeHandle&, const std::string&, const StatisticsHandle*,
                    const std::string&, int, int, const nb::object&>(),
           "shape"_a, "kv"_a, "statistics"_a.none(), "dtype"_a, "n_threads"_a, "max_positions"_a,
           "weights"_a.none())
      .def_prop_ro("spec", &CodecHandle::spec)
      .def("fraction", &CodecHandle::Fraction)
      .def("bytes_at", &CodecHandle::BytesAt, "n_tokens"_a, "n_prompt"_a)
      .def("sequence", &CodecHandle::NewSequence, "n_prompt"_a)
      .def("attend", &CodecHandle::Attend, "sequences"_a, "layer"_a, "q"_a, "k"_a, "v"_a,
           "n_new"_a.none(), "scale"_a.none(), "rotated"_a, "out"_a.none())
      .def("encode", &CodecHandle::Encode, "k"_a, "v"_a, "q"_a.none(), "rotated"_a)
      .def("load", &CodecHandle::Load, "data"_a);
}

}  // namespace kvlathe::python
