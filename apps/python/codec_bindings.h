// kvlathe.codec: the cache of a model without the model (python/kvlathe/codec.py).
#pragma once

#include <nanobind/nanobind.h>

namespace kvlathe::python {

void BindCodec(nanobind::module_& module);

}  // namespace kvlathe::python
