// A cache holds its keys in one of three forms, which decides what queries meet and what attention
// does before it reads a key. Every plan, layout and basis carries the form as a value (`Keys`).
//
//   TurnedKeys   k after RoPE, as the model makes it           read as they lie
//   MappedKeys   (k after RoPE) E                              read as they lie by queries q D
//   LatentKeys   (k before RoPE) E                             read as k~ F, turned to its position
//
// D, E and F are the maps of a basis (analysis/bases/basis.h).
#pragma once

#include <variant>

namespace kvlathe {

struct TurnedKeys {
  friend bool operator==(const TurnedKeys&, const TurnedKeys&) = default;
};

struct MappedKeys {
  // How many KV heads of the model are one head of the cache: its maps take the rows of all of them
  // side by side, keys and values alike.
  int heads_per_map = 1;
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
};

constexpr KeyFacts FactsOf(const TurnedKeys& /*keys*/) { return {false, false, false, 1, 1}; }
constexpr KeyFacts FactsOf(const MappedKeys& keys) {
  return {true, true, false, keys.heads_per_map, 1};
}
constexpr KeyFacts FactsOf(const LatentKeys& keys) {
  return {true, false, true, keys.heads_per_map, keys.heads_per_latent};
}
constexpr KeyFacts FactsOf(const Keys& keys) {
  return std::visit([](const auto& form) { return FactsOf(form); }, keys);
}

constexpr bool TurnWhenRead(const Keys& keys) { return FactsOf(keys).turn_when_read; }
constexpr int HeadsPerMap(const Keys& keys) { return FactsOf(keys).heads_per_map; }
constexpr int HeadsPerLatent(const Keys& keys) { return FactsOf(keys).heads_per_latent; }
// How many KV heads' keys a map takes side by side: those that it joins, or that share latents.
constexpr int KeysPerMap(const Keys& keys) { return HeadsPerMap(keys) * HeadsPerLatent(keys); }

}  // namespace kvlathe
