// Prints llama.cpp's logits of a text: floats, as they are in memory, one row a token. No part of
// the build: convert_gguf.py compiles it beside a built llama.cpp.
//
// Usage: llama_cpp_logits MODEL.gguf N_VOCAB TOKEN ...
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_WARN) std::fputs(text, stderr);
      },
      nullptr);
  llama_model_params model_params = llama_model_default_params();
  model_params.use_extra_bufts = false;
  llama_model* model = llama_model_load_from_file(argv[1], model_params);
  if (model == nullptr) return 1;
  std::vector<llama_token> ids;
  for (int i = 3; i < argc; ++i) ids.push_back(std::atoi(argv[i]));
  const int n_tokens = static_cast<int>(ids.size());

  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = 256;
  params.n_threads = params.n_threads_batch = 1;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = params.type_v = GGML_TYPE_F32;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) return 1;
  llama_batch batch = llama_batch_init(n_tokens, 0, 1);
  batch.n_tokens = n_tokens;
  for (int t = 0; t < n_tokens; ++t) {
    batch.token[t] = ids[t];
    batch.pos[t] = t;
    batch.n_seq_id[t] = 1;
    batch.seq_id[t][0] = 0;
    batch.logits[t] = 1;
  }
  if (llama_decode(context, batch) != 0) return 1;
  std::fwrite(llama_get_logits(context), sizeof(float),
              static_cast<size_t>(n_tokens) * std::atoi(argv[2]), stdout);
  return 0;
}
