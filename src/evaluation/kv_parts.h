// Every verb shows the bytes of a sequence's cache by these parts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kv/blocks/sequence_cache.h"

namespace kvlathe {

// {"blocks", "sinks", "run_records", "layer_records", "tables", "entries"}
nlohmann::ordered_json PartsJson(const KvBytes& bytes);
// {"times", "rows", "k_error", "v_error"}: errors are shares of the rows' norm.
nlohmann::ordered_json ReencodingJson(const Reencoding& reencoding);
// "blocks 98304, sinks 3072, tables 768": the parts that are there.
std::string PartsText(const KvBytes& bytes);
// "12.50% of the 16-bit cache" for 0.125. A share above 1, which a short text has because its last
// block is counted whole, comes with the reason.
std::string ShareOfReferenceText(double fraction, int64_t n_tokens);

}  // namespace kvlathe
