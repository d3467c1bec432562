// What each method does not go with, and what to take instead: the `check` of its registration row.
#pragma once

#include "base/status.h"
#include "kv/spec/spec.h"

namespace kvlathe {

// Of bases.
Status CheckZack(const Spec& spec);
Status CheckFdc(const Spec& spec);
Status CheckPalu(const Spec& spec);
Status CheckSvdOnline(const Spec& spec);
Status CheckLathe(const Spec& spec);
// Of methods that drop positions by their votes.
Status CheckVoting(const Spec& spec);
// Of methods of the quantizer axis.
Status CheckKcvt(const Spec& spec);
Status CheckKvquant(const Spec& spec);
// Of the residual axis.
Status CheckLowrank(const Spec& spec);
Status CheckSparse(const Spec& spec);

}  // namespace kvlathe
