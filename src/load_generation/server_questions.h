// What a load has to know of a server before it starts, asked over HTTP.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "load_generation/http_client.h"

namespace kvlathe {

struct AskedServer {
  ServerAddress address;
  std::string api_key;  // empty: none
};

// The id of the first of /v1/models. Asks again until it answers, for `patience_s` seconds.
StatusOr<std::string> FirstModel(const AskedServer& server, double patience_s);

// Token ids of a text without special tokens, by POST /tokenize (vLLM's and llama.cpp's form).
// kNotFound where the server has none.
StatusOr<std::vector<int32_t>> TokenizeOnServer(const AskedServer& server, const std::string& model,
                                                std::string_view text);

// By /tokenizer_info (vocab_size) or the model's entry in /v1/models (llama.cpp's meta.n_vocab).
// kNotFound where neither says it.
StatusOr<int> VocabSizeOfServer(const AskedServer& server);

}  // namespace kvlathe
