// Shapes of models, statistics of their rows, and what makes these.
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

#include "analysis/bases/lathe_maps.h"
#include "base/cpu_features.h"
#include "codec/row_calibration.h"
#include "codec/row_shape.h"
#include "python/arrays.h"
#include "python/codec_handles.h"
#include "python/errors.h"
#include "python/guards.h"

namespace kvlathe::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

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

}  // namespace

void BindCodecShapes(nb::module_& module) {
  nb::class_<ShapeHandle>(module, "CodecShape")
      .def_static(
          "of_numbers",
          [](int n_layers, int n_heads, int n_kv_heads, int head_dim, int max_positions,
             std::optional<double> rope_theta, double rotary_fraction,
             const std::vector<int>& windows, double score_cap, bool sink_logits) {
            return MakeShape({n_layers, n_heads, n_kv_heads, head_dim, max_positions, rope_theta,
                              rotary_fraction, windows, score_cap, sink_logits});
          },
          "n_layers"_a, "n_heads"_a, "n_kv_heads"_a, "head_dim"_a, "max_positions"_a,
          "rope_theta"_a.none(), "rotary_fraction"_a, "windows"_a, "score_cap"_a, "sink_logits"_a)
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
      .def_prop_ro("score_cap", [](const ShapeHandle& s) { return s.config.score_cap; })
      .def_prop_ro("sink_logits", [](const ShapeHandle& s) { return s.config.has_sink_logits; })
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
  nb::class_<CalibratorHandle>(module, "CodecCalibrator")
      .def(nb::init<const ShapeHandle&, int>(), "shape"_a, "n_threads"_a)
      .def("add", &CalibratorHandle::Add, "layer"_a, "q"_a.none(), "k"_a.none(), "v"_a.none(),
           "rotated"_a, "first_position"_a, "held_back"_a)
      .def("add_gradients", &CalibratorHandle::AddGradients, "layer"_a, "rows"_a, "gradients"_a,
           "through_all"_a, "rotated"_a)
      .def("finish", &CalibratorHandle::Finish);
}

}  // namespace kvlathe::python
