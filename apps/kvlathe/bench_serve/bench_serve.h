// The verb `kvlathe bench serve` puts load on a server with OpenAI's API.
#pragma once

#include "kvlathe/options.h"

namespace kvlathe {

void AddServeBench(CLI::App* bench, Verbs* verbs);

}  // namespace kvlathe
