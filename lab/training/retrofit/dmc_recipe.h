// The object "dmc" of a recipe says what a retrofit with Dynamic Memory Compression does: stages,
// the target of each step, variants (Nawrot et al., 2024, arXiv 2403.09636, sections 3.2, 4 and 5).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/config.h"

namespace kvlathe {

struct DmcVariant {
  // One decision and one weight for all heads of a layer (HardC): logits are means over heads.
  bool shares_decisions = false;
  bool uniform_weights = false;  // omega does not depend on the query
};

// Over what the share of positions that begin an entry is held to 1 / CR.
enum class DmcHinge {
  kGlobal,    // layers, heads and positions of all sequences together: the paper
  kLayer,     // each layer for itself: the local prior
  kSequence,  // each sequence for itself, decisions rounded with their gradient: the released code
};

enum class DmcStage {
  kZeroOut,   // the deciding channel leaves attention; nothing merges yet
  kRamp,      // the target rises from 1 to `compression`
  kSolidify,  // the target stays, the learning rate falls
};

struct DmcRecipe {
  DmcConfig config;
  DmcVariant variant;
  DmcHinge hinge = DmcHinge::kGlobal;
  // Of the hinge in the loss; 1 in the paper. A share that would cost more than its weight in
  // log-likelihood is never reached.
  double hinge_weight = 1;
  // By how much the weight grows in a step for a share that is above the target by 1, and falls for
  // one below it, down to `hinge_weight`: an integral control in the place of a weight that is
  // right for no target but one. 0, as in the paper: it stays.
  double hinge_growth = 0;
  // DMC-C: the loss has the mean of |alpha - mean over the heads of a layer| as well.
  bool is_consistent = false;
  // How many times as fast as all else the rows of W_K move that decide.
  double deciding_rate = 1;
  double temperature = 0.1;
  int window = 12;
  double compression = 4;       // CR, above 1
  std::vector<double> save_at;  // CRs whose checkpoints the ramp leaves
  bool is_immediate = false;    // the target is `compression` from the first step on
  int64_t zero_out_steps = 250;
  int64_t ramp_steps = 6000;  // for each unit of CR
  int64_t solidify_steps = 2000;

  int64_t n_steps(DmcStage stage) const;
  // The target CR of step `step` (from 0) of a stage; 1 while nothing merges.
  double TargetAt(DmcStage stage, int64_t step) const;
  // What the deciding channel is multiplied with: 1 - t / n_steps while it is zeroed out.
  double ChannelScaleAt(DmcStage stage, int64_t step) const;
};

// As in recipes and on the command line: zero-out, ramp, solidify.
std::string NameOf(DmcStage stage);

// kInvalidArgument naming `where` and the key.
StatusOr<DmcRecipe> ParseDmcRecipe(const nlohmann::json& json, const std::string& where);

}  // namespace kvlathe
