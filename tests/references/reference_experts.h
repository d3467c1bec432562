// Routers and experts of the literal decoder, as the families that have them define them.
#pragma once

#include <string>
#include <vector>

#include "reference_decoder.h"

namespace kvlathe::testing {

// Whether a layer, named by its prefix with a dot, has experts.
bool HasExperts(const ReferenceModel& m, const std::string& layer);
// What its router, experts and shared experts make of x.
std::vector<double> Experts(const ReferenceModel& m, const std::string& layer,
                            const std::vector<double>& x);

}  // namespace kvlathe::testing
