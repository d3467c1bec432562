// Each function refuses the specs in which its method stands beside stages that it does not go
// with, and says what to take instead. It is the `check` of the method's registration row.
#pragma once

#include "base/status.h"
#include "kv/spec/spec.h"

namespace kvlathe {

// The check of bases, by the form of keys that they make and by whether they keep all dimensions.
Status CheckBasis(const Spec& spec);
// Checks of bases that go with less than that.
Status CheckZack(const Spec& spec);
Status CheckSvdOnline(const Spec& spec);
Status CheckLathe(const Spec& spec);
// The check of methods that drop positions by their votes.
Status CheckVoting(const Spec& spec);
// Checks of methods of the quantizer axis.
Status CheckKcvt(const Spec& spec);
Status CheckKvarn(const Spec& spec);
Status CheckKvquant(const Spec& spec);
Status CheckTurboquant(const Spec& spec);
// Checks of methods of the residual axis.
Status CheckLowrank(const Spec& spec);
Status CheckSparse(const Spec& spec);

}  // namespace kvlathe
