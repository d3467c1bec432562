// kvlathe._native, the compiled part of the Python package kvlathe (docs/python.md).
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "base/cpu_features.h"
#include "hub/certificates.h"
#include "python/bindings.h"
#include "python/codec_bindings.h"
#include "python/errors.h"

namespace kvlathe::python {

namespace nb = nanobind;

NB_MODULE(_native, module) {
  module.attr("version") = KVLATHE_VERSION;
  RegisterErrors();
  nb::set_leak_warnings(false);  // an object that outlives the interpreter is no news to its user
  BindCodec(module);
  module.def(
      "instruction_set", [] { return std::string(IsaName(ValueOrThrow(SelectIsa()))); },
      "The instruction set of the kernels on this machine, such as 'avx512_bf16'.");
  module.def("have_certificates", &HaveCertificates,
             "Whether the environment or the system has certificates for HTTPS.");
  module.def("set_spare_certificates", &SetSpareCertificates, nb::arg("file"),
             "A file of certificates for where there are no others.");
  BindModel(module);
  BindGeneration(module);
  BindScore(module);
  BindMeasurements(module);
}

}  // namespace kvlathe::python
