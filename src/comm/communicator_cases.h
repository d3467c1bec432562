// What every Communicator must do, for tests: each rank of a group calls these in the same order.
// An error says what was wrong.
#pragma once

#include "base/status.h"
#include "comm/communicator.h"

namespace kvlathe {

// Sums of numbers whose sum depends on the order, of sizes 0, 1, odd and large: the bits of the sum
// in the order of ranks, near the sum in double, and the same bits on all ranks.
Status CheckAllReduce(Communicator& all);
// Pieces of sizes 0, 1, odd and large in the order of ranks, and broadcasts from every rank.
Status CheckGatherAndBroadcast(Communicator& all);
// Send, Receive and messages around a ring and to every rank, of sizes 0 to several pieces, in
// order; beside sums.
Status CheckMessages(Communicator& all);
// Even and odd ranks, in turned order, and parts of those parts; sums and messages in all of them.
// Lists that do not fit are refused on all ranks, and the group goes on.
Status CheckSplit(Communicator& all);
// All of the above.
Status CheckCommunicator(Communicator& all);

}  // namespace kvlathe
