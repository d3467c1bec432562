// Retention is done here literally: entry by entry, in double, after every token
// (docs/retention.md).
// It shares no code with the engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference_decoder.h"

namespace kvlathe::testing {

struct ReferenceRetention {
  std::string name;  // window, h2o, mas, tova, keyformer, snapkv, kvzip
  double keep = 0;   // share of the positions, or
  int budget = 0;    // positions
  bool of_prompt = false;
  double recent = 0;    // share of the kept (h2o, mas, keyformer)
  int n_recent = 1;     // positions (window, snapkv, kvzip)
  bool shared = false;  // tova
  int kernel = 1;       // snapkv
  bool joint = false;   // kvzip: all heads have one budget
  int interval = 1;
  bool prompt_only = false;
  // Behind the prompt entries are dropped once there are this share of the budget, at least 64, too
  // many; not where a budget that grows could never be outgrown. 0: every `interval` tokens.
  double slack = 0;
  double tau_init = 1, tau_end = 1;
  int run = 0;  // prunes at every so many entries of the prompt; 0: only where it ends
  int n_sink = 0;
  int n_prompt = 0, n_generated = 0;
};

// The largest probability that entries of a context get from any query behind it, in any query head
// of the group: [layer][kv head][entry]. Chunks are read one after the other, each behind the
// context.
class RepeatLiterally {
 public:
  using Votes = std::vector<std::vector<std::vector<double>>>;
  RepeatLiterally(int n_layers, int n_kv_heads, int n_sink, int n_context);

  void BeginChunk();
  // After the newest token of the layer has attended: of the context, then of the chunk.
  void operator()(int layer_idx, ReferenceRows* rows);
  const Votes& votes() const { return votes_; }

 private:
  int n_sink_, n_context_;
  Votes votes_;
  std::vector<int> n_tokens_;
};

class RetainLiterally {
 public:
  RetainLiterally(const ReferenceRetention& method, int n_layers, int n_kv_heads)
      : m_(method),
        entries_(n_layers, std::vector<std::vector<Entry>>(n_kv_heads)),
        n_tokens_(n_layers) {}

  // After the newest token of the layer has attended.
  void operator()(int layer_idx, ReferenceRows* rows);

  // Of all but the last token of the prompt (kvzip).
  void SetVotes(const RepeatLiterally::Votes& votes);

  // Positions of the entries that are left, in their order.
  std::vector<int> Positions(int layer_idx, int kv_head_idx) const;

 private:
  struct Entry {
    int position;
    double votes = 0;
  };
  int Budget(int n_tokens) const;
  int Newest(int n_tokens) const;
  bool IsPrunePoint(int n_tokens, int n_entries) const;
  double Temperature(int position) const;
  void Vote(int layer_idx, const ReferenceRows& rows, int position);
  void Prune(int layer_idx, int n_tokens, ReferenceRows* rows);

  ReferenceRetention m_;
  RepeatLiterally::Votes given_votes_;
  std::vector<std::vector<size_t>> n_left_;  // [layer][kv head] of the prompt, or empty
  std::vector<std::vector<std::vector<Entry>>> entries_;  // [layer][kv head]
  std::vector<int> n_tokens_;
};

}  // namespace kvlathe::testing
