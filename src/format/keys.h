// A cache holds its keys in one of three forms, which decides what queries meet and what attention
// does before it reads a key. Every plan, layout and basis carries the form as a value (`Keys`).
//
//   TurnedKeys   k after RoPE, as the model makes it           read as they lie
//   MappedKeys   (k after RoPE) E                              read as they lie by queries q D
//                (R(j) (k before RoPE - m)) E                  likewise, plus q R(j) m
//                (R(o) (k before RoPE - m)) E                  as they lie, by q D of their frame
//   LatentKeys   (k before RoPE) E                             read as k~ F, turned to its position
//
// D, E and F are the maps of a basis (analysis/bases/basis.h).
//
// The third row is that of keys that lose a mean m before they turn. Turned, it would spread them
// over a circle, which takes bits of all of them; what it adds to the score of a query at position
// j is a sum of cosines and sines of j, which takes none (format/mean_angles.h).
//
// The fourth row is that of frames. Behind the sinks, positions lie in frames of kFramePositions. A
// key at place o of the frame that begins at p = j - o is turned by o alone, in all pairs of
// channels but the fastest, which are turned by j (AbsolutePairs). Over a frame these slower pairs
// turn little, so keys lie in fewer directions than after RoPE, and a query meets all keys of a
// frame as q R(-p) D: one product of a query with its map a frame.
#pragma once

#include <algorithm>
#include <span>
#include <variant>

namespace kvlathe {

struct TurnedKeys {
  friend bool operator==(const TurnedKeys&, const TurnedKeys&) = default;
};

struct MappedKeys {
  // How many KV heads of the model are one head of the cache: its maps take the rows of all of them
  // side by side, keys and values alike.
  int heads_per_map = 1;
  bool has_frames = false;
  // From how many pairs of channels, the first ones, which turn fastest, keys behind the sinks lose
  // their mean m before they turn.
  int turning_pairs = 0;
  // Whether a key and its value have one map and become one row, (k', v) E, which is as wide as
  // both. It is read as a key by queries q D of keys, and as a value by the part of D for values.
  bool joins_values = false;
  friend bool operator==(const MappedKeys&, const MappedKeys&) = default;
};

struct LatentKeys {
  int heads_per_map = 1;
  // How many heads of the cache share their latents, a divisor of the heads of a layer. Each holds
  // a slice of the latents of all of them, of keys and of values.
  int heads_per_latent = 1;
  friend bool operator==(const LatentKeys&, const LatentKeys&) = default;
};

using Keys = std::variant<TurnedKeys, MappedKeys, LatentKeys>;

// What the rest of the program asks of a form of keys.
struct KeyFacts {
  bool are_mapped;      // keys are multiplied by a map before they are stored
  bool maps_queries;    // and so are queries before they meet them
  bool turn_when_read;  // attention turns them, so it has to know the positions of entries
  int heads_per_map;
  int heads_per_latent;
  bool has_frames;
  int turning_pairs;
  bool joins_values;
};

constexpr KeyFacts FactsOf(const TurnedKeys& /*keys*/) {
  return {false, false, false, 1, 1, false, 0, false};
}
constexpr KeyFacts FactsOf(const MappedKeys& keys) {
  return {true,
          true,
          false,
          keys.heads_per_map,
          1,
          keys.has_frames,
          keys.turning_pairs,
          keys.joins_values};
}
constexpr KeyFacts FactsOf(const LatentKeys& keys) {
  return {true, false, true, keys.heads_per_map, keys.heads_per_latent, false, 0, false};
}
constexpr KeyFacts FactsOf(const Keys& keys) {
  return std::visit([](const auto& form) { return FactsOf(form); }, keys);
}

constexpr bool TurnWhenRead(const Keys& keys) { return FactsOf(keys).turn_when_read; }
constexpr int HeadsPerMap(const Keys& keys) { return FactsOf(keys).heads_per_map; }
constexpr int HeadsPerLatent(const Keys& keys) { return FactsOf(keys).heads_per_latent; }
constexpr bool HasFrames(const Keys& keys) { return FactsOf(keys).has_frames; }
constexpr bool JoinsValues(const Keys& keys) { return FactsOf(keys).joins_values; }
constexpr int TurningPairs(const Keys& keys) { return FactsOf(keys).turning_pairs; }

// Whether many rows of queries may be better off where blocks are made of the model's rows again
// (RebuildIds of machine/attention/head_job.h): a map joins heads, or keys turn. Rows that hold
// values too are read as they are.
constexpr bool CanBeRebuilt(const Keys& keys) {
  return FactsOf(keys).maps_queries && !JoinsValues(keys) &&
         (HeadsPerMap(keys) > 1 || HasFrames(keys) || TurningPairs(keys) > 0);
}

// How many KV heads' keys a map takes side by side: those that it joins, or that share latents.
constexpr int KeysPerMap(const Keys& keys) { return HeadsPerMap(keys) * HeadsPerLatent(keys); }

// Positions of a frame: whole blocks of 64.
inline constexpr int kFramePositions = 256;
// How many of the pairs with these frequencies (radians per position, falling) turn by the position
// even with frames: those that go round more than twice in one, which no frame holds still.
constexpr int AbsolutePairs(std::span<const double> frequencies) {
  constexpr double kMostOfFrame = 12.566370614359172;  // 4 pi
  int n = 0;
  for (const double frequency : frequencies) n += frequency * kFramePositions > kMostOfFrame;
  return n;
}

inline constexpr int kMostTurningPairs = 32;
// The pairs whose means are taken off in a model of which rope_dim channels turn: the faster half.
// The others turn little in a frame, where their means are part of the constant offset, and slowly
// without. They come in eights, as kernels read them.
constexpr int MostTurningPairs(int rope_dim) {
  if (rope_dim % 16 != 0) return 0;
  return std::min(kMostTurningPairs, (rope_dim / 4 + 7) / 8 * 8);
}

}  // namespace kvlathe
