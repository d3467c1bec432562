// What rank 0 has the other ranks of a group do, and what they answer, as messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvlathe {

// Something that was done to a cache or a pool (kv/blocks/cache_journal.h), by the numbers that
// they have on rank 0.
struct CacheEvent {
  enum class Kind : uint8_t {
    kPoolMade,         // subject: the pool
    kPoolGone,         // subject: the pool
    kCacheMade,        // subject: the cache, other: the pool, numbers: {the model}, rate
    kCacheGone,        // subject: the cache, as from here on
    kPromptSet,        // numbers: {n_prompt, n_generated}
    kExtended,         // numbers: {n_new}
    kExtendedOnTrial,  // numbers: {n_new}
    kTakenBack,        // numbers: {n_tokens}
    kReadAgain,
    kCleared,
    kCopied,  // other: the copy
    kKept,    // other: what shares, numbers: PrefixPlace
    kForked,  // likewise
    kKeptSet,
    kFailed,
  };
  static constexpr uint8_t kNumKinds = static_cast<uint8_t>(Kind::kFailed) + 1;

  Kind kind = Kind::kPoolMade;
  int64_t subject = 0;
  int64_t other = 0;
  int64_t numbers[3] = {};
  double rate = 0;  // of the layout; negative: Model::layout()
};

// The events come first, then what the kind says.
struct RankOrder {
  enum class Kind : uint8_t {
    kMakeModel,    // number `model`, of the spec `kv`
    kForgetModel,  // `model`
    kStep,         // of `model`, with `parts`
    kPress,        // run `run_idx` of cache `cache` of `model`
    kMeasure,      // answer with the KvBytes of cache `cache`
    kSave,         // answer with cache `cache` as a file of `kv` and `identity`
    kRestore,      // cache `cache` holds what `payload`, such a file, says from here on
    kNothing,      // answer
    kEnd,          // nothing follows
  };
  static constexpr uint8_t kNumKinds = static_cast<uint8_t>(Kind::kEnd) + 1;

  // The part of a sequence in a step.
  struct Part {
    int64_t cache = 0;
    uint8_t logits = 0;  // SequenceStep::Logits
    std::vector<int32_t> token_ids;
  };

  Kind kind = Kind::kNothing;
  std::vector<CacheEvent> events;
  int64_t model = 0;
  int64_t cache = 0;
  int64_t run_idx = 0;
  std::string kv;
  double rate = -1;  // negative: none
  std::vector<Part> parts;
  std::string identity;  // SequenceIdentity::model
  std::string payload;
};

struct RankAnswer {
  struct Failure {
    int32_t step_idx = 0;
    int32_t code = 0;
    std::string message;
  };
  struct PoolBytes {
    int64_t pool = 0;
    int64_t used_bytes = 0;
  };

  // Not 0: the order as a whole was not carried out, and nothing has changed.
  int32_t code = 0;
  std::string message;
  std::vector<Failure> failures;  // of sequences of a step
  std::vector<PoolBytes> pools;
  std::string payload;  // of kMeasure and kSave
};

std::vector<std::byte> Encode(const RankOrder& order);
std::vector<std::byte> Encode(const RankAnswer& answer);
// kDataLoss where the bytes are no such message: ranks of different builds.
StatusOr<RankOrder> DecodeOrder(std::span<const std::byte> bytes);
StatusOr<RankAnswer> DecodeAnswer(std::span<const std::byte> bytes);

}  // namespace kvlathe
