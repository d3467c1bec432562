// The life of a sequence that meets everything which a cache can be and do.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../sequence_cases.h"
#include "machine/machine.h"

namespace kvlathe::testing {

// On a machine, a prompt of n_prompt tokens is decoded further, saved, restored, copied, and
// decoded to past the next runs and prunes. What was computed on the way, five times; the third and
// the fifth are those of a restored sequence and of its original.
std::vector<std::string> LiveThrough(const SequenceCase& of, std::shared_ptr<Machine> machine,
                                     int n_prompt);

// What four requests answer that outgrow `budget`, so that some wait or give way and come back, and
// then the first one's session, saved, loaded and gone on with.
std::vector<std::vector<int32_t>> AnswersThatOutgrow(Model* model, int64_t budget);

}  // namespace kvlathe::testing
