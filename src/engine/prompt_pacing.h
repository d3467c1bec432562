// While sequences decode, prompts get a share of the time and no more: PromptPacing says in which
// steps they go on.
//
// A step that carries a chunk of a prompt is many times as long as one that only decodes, and each
// sequence decodes one token in it all the same. Where memory holds many requests their prompts
// follow each other without a gap, and those that decode get a token a chunk: nothing is computed
// that would not be computed anyway, but everything ends late. So behind a step that carried
// prompts come steps that only decode, until those have had their share.
//
// Prompts never starve: what they wait for has an end, in time and in steps. A step that decodes
// takes no less than a token of a prompt, as it reads the weights too, so there are never more of
// them in a row than the chunk before had tokens, whatever a clock says. Where nothing decodes
// prompts go on in every step.
#pragma once

#include "engine/engine_observer.h"

namespace kvlathe {

class PromptPacing {
 public:
  // `prompt_share`, in (0, 1], of the time while others decode is what prompts get; with 1 they go
  // on in every step.
  explicit PromptPacing(double prompt_share) : prompt_share_(prompt_share) {}

  // Whether prompts go on in the next step if sequences decode in it.
  bool prompts_go_on() const { return owed_seconds_ <= 0 || n_steps_at_most_ <= 0; }
  // A step of this work has ended.
  void Note(const StepWork& work, double seconds);

 private:
  double prompt_share_;
  double decode_seconds_ = 0;  // of the last step that only decoded
  double owed_seconds_ = 0;    // to those that decode
  int n_steps_at_most_ = 0;    // that only decode before prompts go on
};

}  // namespace kvlathe
