// A session is a sequence between two requests: everything that generation goes on from, also out
// of a file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/sampler.h"
#include "kv/blocks/sequence_cache.h"
#include "kv/blocks/sequence_file.h"

namespace kvlathe {

struct Session {
  std::vector<int32_t> tokens;  // of all turns
  // Where turns end in `tokens`: a prompt, what was generated after it, the next prompt, ... The
  // last is what was generated last, so it ends with the tokens.
  std::vector<int> turn_ends;
  SamplingParams sampling;
  uint64_t n_draws = 0;  // that the sampler has made
  // Of the first tokens; of all but the last one, unless the end of sequence was generated after
  // it. Null: nothing is kept and all is computed again.
  std::unique_ptr<SequenceCache> cache;
  int level = 0;  // of the engine, that made the cache (Request::level); a file does not tell it
};

// The state of SaveSession's file: everything of a session but its cache. Little-endian:
//   version 1, number of turns, number of tokens: 4 bytes each
//   turn ends, token ids: 4 bytes each
//   temperature, top_p, min_p, repetition, presence and frequency penalty: F32
//   top_k, repeat_last_n: 4 bytes each
//   seed, draws: 8 bytes each
//   number of biases: 4 bytes; token id and F32 of each
std::string SessionState(const Session& session);
// kDataLoss, or kUnimplemented for a later version, in a line that begins with `name`.
StatusOr<Session> ParseSessionState(std::string_view state, int vocab_size, std::string_view name);

// Writes the file atomically (kv/blocks/sequence_file.h). kInvalidArgument when the session has no
// cache.
Status SaveSession(const Session& session, const SequenceIdentity& identity,
                   const std::string& path);

// Errors are those of RestoreSequence; kDataLoss also when the state does not fit the cache or the
// vocabulary. `pool` outlives the session.
StatusOr<Session> LoadSession(const std::string& path, const SequencePlace& place, int vocab_size,
                              BlockPool* pool);

}  // namespace kvlathe
