#include "engine/session.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "io/byte_reader.h"

namespace kvlathe {
namespace {

constexpr uint32_t kStateVersion = 1;

// Calls fn(number) for every number of fixed size, in the order of the file.
template <typename Params, typename F>
void ForEachNumber(Params& p, const F& fn) {
  fn(p.temperature);
  fn(p.top_p);
  fn(p.min_p);
  fn(p.repetition_penalty);
  fn(p.presence_penalty);
  fn(p.frequency_penalty);
  fn(p.top_k);
  fn(p.repeat_last_n);
  fn(p.seed);
}

bool ReadBiases(ByteReader* reader, std::map<int32_t, float>* biases) {
  uint32_t n_biases = 0;
  if (!reader->Read(&n_biases)) return false;
  for (uint32_t i = 0; i < n_biases; ++i) {
    int32_t id = 0;
    float bias = 0;
    if (!reader->Read(&id) || !reader->Read(&bias)) return false;
    (*biases)[id] = bias;
  }
  return true;
}

// The numbers behind the version, each there; not yet that they fit each other.
bool ReadSession(ByteReader* reader, Session* session) {
  uint32_t n_turns = 0, n_tokens = 0;
  bool ok = reader->Read(&n_turns) && reader->Read(&n_tokens) &&
            reader->ReadArray(n_turns, &session->turn_ends) &&
            reader->ReadArray(n_tokens, &session->tokens);
  ForEachNumber(session->sampling, [&](auto& number) { ok = ok && reader->Read(&number); });
  return ok && reader->Read(&session->n_draws) &&
         ReadBiases(reader, &session->sampling.logit_bias) && reader->rest().empty();
}

bool IsConsistent(const Session& session, int vocab_size) {
  const std::vector<int>& ends = session.turn_ends;
  const auto is_token = [&](int32_t id) { return id >= 0 && id < vocab_size; };
  return !ends.empty() && ends.size() % 2 == 0 && ends.front() >= 1 &&
         std::is_sorted(ends.begin(), ends.end()) &&
         static_cast<size_t>(ends.back()) == session.tokens.size() &&
         std::all_of(session.tokens.begin(), session.tokens.end(), is_token) &&
         session.sampling.Check().ok() && session.sampling.CheckVocabulary(vocab_size).ok();
}

}  // namespace

std::string SessionState(const Session& session) {
  std::string state;
  for (const size_t number :
       {size_t{kStateVersion}, session.turn_ends.size(), session.tokens.size()}) {
    AppendBytes(static_cast<uint32_t>(number), &state);
  }
  AppendArray(std::span(session.turn_ends), &state);
  AppendArray(std::span(session.tokens), &state);
  ForEachNumber(session.sampling, [&](const auto& number) { AppendBytes(number, &state); });
  AppendBytes(session.n_draws, &state);
  AppendBytes(static_cast<uint32_t>(session.sampling.logit_bias.size()), &state);
  for (const auto& [id, bias] : session.sampling.logit_bias) {
    AppendBytes(id, &state);
    AppendBytes(bias, &state);
  }
  return state;
}

StatusOr<Session> ParseSessionState(std::string_view state, int vocab_size, std::string_view name) {
  ByteReader reader(std::as_bytes(std::span(state)));
  uint32_t version = 0;
  if (reader.Read(&version) && version != kStateVersion) {
    return Error(StatusCode::kUnimplemented,
                 "{}: a session of format {}; this build reads format {}", name, version,
                 kStateVersion);
  }
  Session session;
  if (!ReadSession(&reader, &session) || !IsConsistent(session, vocab_size)) {
    return Error(StatusCode::kDataLoss, "{}: damaged: its tokens and sampler are not of a session",
                 name);
  }
  return session;
}

Status SaveSession(const Session& session, const SequenceIdentity& identity,
                   const std::string& path) {
  if (session.cache == nullptr) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: not written: the request ended before its prompt was read, and there is no "
                 "cache to save",
                 path);
  }
  return SaveSequence(*session.cache, identity, SessionState(session), path);
}

StatusOr<Session> LoadSession(const std::string& path, const SequencePlace& place, int vocab_size,
                              BlockPool* pool) {
  auto cache = std::make_unique<SequenceCache>(place.layout, pool);
  KVL_ASSIGN_OR_RETURN(const std::string state, RestoreSequence(path, place, cache.get()));
  KVL_ASSIGN_OR_RETURN(Session session, ParseSessionState(state, vocab_size, path));
  const int64_t n_missing = std::ssize(session.tokens) - cache->n_tokens();
  if (n_missing != 0 && n_missing != 1) {
    return Error(StatusCode::kDataLoss, "{}: damaged: {} positions for {} tokens", path,
                 cache->n_tokens(), session.tokens.size());
  }
  session.cache = std::move(cache);
  return session;
}

}  // namespace kvlathe
