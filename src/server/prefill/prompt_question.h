// A decode replica asks a prefill replica for the cache of a prompt in a JSON object:
//
//   {"kv": "lathe(ratio=8)",    the level, canonical (Spec::ToString)
//    "place": "9f86d0...",      SHA-256 of PlaceText (kv/blocks/sequence_file.h): model, spec,
//    layout "rate": 0.5,               Request::rate; absent: none "salt": "60303a...",       64
//    hexadecimal digits that say whose prompt it is, and nothing of the key "tokens": [1, 4093,
//    ...]}  of the whole prompt; the cache is of all but the last
//
// The answer is a stream of kv/blocks/sequence_stream.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvlathe::server {

inline constexpr std::string_view kPrefillPath = "/internal/v1/prefix";

struct PromptQuestion {
  std::string kv;
  std::string place;
  std::optional<double> rate;
  std::string salt;
  std::vector<int32_t> tokens;
};

std::string ToJson(const PromptQuestion& question);
// Of any bytes. The error is kInvalidArgument; what the numbers mean is not checked here.
StatusOr<PromptQuestion> ParsePromptQuestion(std::string_view json);

}  // namespace kvlathe::server
