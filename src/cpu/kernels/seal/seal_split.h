// Sealing where channels differ in bits (seal.h).
//
// Where tokens have scales (SplitBitsCodec), that of K or of V of a token is the one with which its
// codes lose least, of those within 8 steps of the root of its mean square. What a channel of b
// bits loses counts 1 / UnitLoss(b): bits were shared out so that the channels of a side lose about
// alike, so one more that has few bits matters less. On rows of SmolLM2-135M codes lose 0.57 of
// their squared error without scales in keys, 0.65 in values; with the root of the mean square
// itself 0.7 and 0.85.
#pragma once

#include "cpu/kernels/seal/seal_workspace.h"

namespace kvlathe {

// Seal K or V of a run but for the low-rank factors. The residual is left in ws->residual where the
// format has one. False when a row holds NaN or infinity.
bool SealSplitKeys(const HeadRun& run, SealWorkspace* ws);
bool SealSplitValues(const HeadRun& run, SealWorkspace* ws);

}  // namespace kvlathe
