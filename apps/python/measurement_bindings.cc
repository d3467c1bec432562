// kvlathe._native: what is measured of caches, and what measuring leaves in files. Results are the
// JSON of the commands of the same names.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "python/bindings.h"
#include "python/held_model.h"
#include "runtime/calibration_run.h"
#include "runtime/measuring/cache_inspection.h"
#include "runtime/measuring/comparison_run.h"
#include "runtime/measuring/tuning_run.h"
#include "runtime/shared_texts.h"

namespace kvlathe::python {
namespace {

namespace nb = nanobind;

std::string TextOf(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Compare(HeldModel& model, const ComparisonOptions& asked) {
  const Turn turn(model.turns());
  ComparisonOptions options = asked;
  Measuring measuring(&model, /*exact_rows=*/true);
  Workspace* const workspace = model.workspace();
  if (options.text.empty() && options.text_path.empty()) {
    options.text_path = measuring.Value(TextOfModel(workspace->options().model, "sample.txt"));
  }
  return TextOf(ToJson(measuring.Value(RunComparison(workspace, options)).comparison));
}

std::string Inspect(HeldModel& model, const std::string& kv) {
  const Turn turn(model.turns());
  Measuring measuring(&model, /*exact_rows=*/false);
  Workspace* const workspace = model.workspace();
  return TextOf(InspectionJson(*workspace, kv, measuring.Value(InspectCache(workspace, kv))));
}

void Calibrate(HeldModel& model, const std::string& text_path, const std::string& output_path) {
  const Turn turn(model.turns());
  Measuring measuring(&model, /*exact_rows=*/false);
  CalibrationRun run;
  run.text_path = text_path;
  measuring.Check(CalibrateInto(model.workspace(), run, output_path));
}

std::string Tune(HeldModel& model, const TuningOptions& options) {
  const Turn turn(model.turns());
  Measuring measuring(&model, /*exact_rows=*/true);
  std::vector<ChosenTask> chosen = measuring.Value(ChooseTasks(options.task));
  const Tuning tuning = measuring.Value(RunTuning(model.workspace(), std::move(chosen), options));
  nlohmann::ordered_json json = {{"path", tuning.path}};
  json.update(ToJson(tuning.profile));
  return TextOf(json);
}

}  // namespace

void BindMeasurements(nb::module_& module) {
  nb::class_<ComparisonOptions>(module, "ComparisonOptions", "What a comparison is of.")
      .def(nb::init<>())
      .def_rw("specs", &ComparisonOptions::specs)
      .def_rw("text_path", &ComparisonOptions::text_path)
      .def_rw("rates", &ComparisonOptions::rates)
      .def_rw("measures_latency", &ComparisonOptions::measures_latency)
      .def_rw("text", &ComparisonOptions::text)
      .def_rw("n_windows", &ComparisonOptions::n_windows)
      .def_rw("window_tokens", &ComparisonOptions::window_tokens);
  nb::class_<TaskChoiceOptions>(module, "TaskChoice", "What tasks a search runs.")
      .def(nb::init<>())
      .def_rw("tasks", &TaskChoiceOptions::tasks)
      .def_rw("length", &TaskChoiceOptions::length)
      .def_rw("count", &TaskChoiceOptions::count)
      .def_rw("seed", &TaskChoiceOptions::seed);
  nb::class_<TuningOptions>(module, "TuningOptions", "What a search for caches is of.")
      .def(nb::init<>())
      .def_rw("methods", &TuningOptions::methods)
      .def_rw("task", &TuningOptions::task)
      .def_rw("perplexity_text", &TuningOptions::perplexity_text)
      .def_rw("accuracy", &TuningOptions::accuracy)
      .def_rw("output", &TuningOptions::output);
  module.def("compare", &Compare, nb::arg("model"), nb::arg("options"),
             "The JSON of kvlathe compare.");
  module.def("inspect", &Inspect, nb::arg("model"), nb::arg("kv"), "The JSON of kvlathe inspect.");
  module.def("calibrate", &Calibrate, nb::arg("model"), nb::arg("text_path"),
             nb::arg("output_path"), "Statistics of a text into a file.");
  module.def("tune", &Tune, nb::arg("model"), nb::arg("options"),
             "The JSON of kvlathe tune, with the path of the profile.");
}

}  // namespace kvlathe::python
