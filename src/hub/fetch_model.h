// Brings a model of a hub onto this machine.
#pragma once

#include <string>

#include "base/status.h"
#include "hub/hub_model.h"
#include "hub/hub_news.h"
#include "hub/hub_options.h"

namespace kvlathe {

// The path of the model: a GGUF file (of several the first) or a directory with safetensors, in a
// snapshot of the cache (hub_cache.h). What the cache holds is taken without asking the hub; else
// what ChooseFiles (file_choice.h) says of the hub's newest commit is fetched, checked by its size
// and, where the hub tells it, its SHA-256. An error is one line that says what to do:
//   kInvalidArgument    more than one file could be meant
//   kNotFound           the hub has no such model or file, or it needs a token
//   kUnavailable        no network, or the hub broke off; a further call goes on from there
//   kResourceExhausted  the disk has too little room
//   kDataLoss           what came is not what the hub says
StatusOr<std::string> FetchModel(const HubModel& model, const HubOptions& options,
                                 const HubNews& news);

}  // namespace kvlathe
