// The parts of kvlathe._native, a file each.
#pragma once

#include <nanobind/nanobind.h>

namespace kvlathe::python {

void BindModel(nanobind::module_& module);         // opening, facts, tokens, conversations
void BindGeneration(nanobind::module_& module);    // requests, their answers, sessions
void BindScore(nanobind::module_& module);         // continuations of prompts
void BindMeasurements(nanobind::module_& module);  // compare, inspect, calibrate, tune

}  // namespace kvlathe::python
