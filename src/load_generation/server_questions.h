// Asks a server, over HTTP, what a load has to know of it before it starts.
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

// Returns the id of the first of /v1/models. It asks again until the server answers, for
// `patience_s` seconds.
StatusOr<std::string> FirstModel(const AskedServer& server, double patience_s);

// Returns the token ids of a text, without special tokens, by POST /tokenize in the forms of vLLM
// and of llama.cpp. A server without it is kNotFound.
StatusOr<std::vector<int32_t>> TokenizeOnServer(const AskedServer& server, const std::string& model,
                                                std::string_view text);

// Finds the size of the vocabulary in /tokenizer_info (vocab_size) or in the model's entry of
// /v1/models (llama.cpp's meta.n_vocab). It is kNotFound where neither has it.
StatusOr<int> VocabSizeOfServer(const AskedServer& server);

}  // namespace kvlathe
