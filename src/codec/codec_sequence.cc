#include "codec/codec_sequence.h"

namespace kvlathe {

KvBytes CodecSequence::bytes() const {
  KvBytes bytes;
  for (const auto& cache : caches_) bytes.Add(cache->bytes());
  return bytes;
}

void CodecSequence::Clear(int64_t n_prompt) {
  for (const auto& cache : caches_) cache->Clear();
  n_prompt_ = n_prompt;
  n_new_ = next_layer_ = 0;
  failure_ = OkStatus();
}

void CodecSequence::BeginStep(int n_new) {
  n_new_ = n_new;
  if (n_tokens() > 0) return;
  if (n_prompt_ == 0) n_prompt_ = n_new;
  for (const auto& cache : caches_) {
    if (cache->n_tokens() == 0) cache->set_n_prompt(n_prompt_);
  }
}

void CodecSequence::EndLayer() {
  if (++next_layer_ == n_layers()) next_layer_ = n_new_ = 0;
}

}  // namespace kvlathe
