// Finds out, before any weight is read, which caches the shape and the family of a model rule out.
#pragma once

#include "base/status.h"
#include "kv/cache_layout.h"
#include "kv/retention/retention_plan.h"
#include "kv/spec/spec.h"
#include "plan/model_facts.h"

namespace kvlathe {

// The parts of a plan that a model may rule out.
struct ConsideredParts {
  const SealPlan* seal = nullptr;            // of a quantizer, or of a basis that splits bits
  const RetentionPlan* retention = nullptr;  // null: all entries stay
  Keys keys;                                 // the form of keys that the basis makes
};

// Returns kUnimplemented where entries are to be dropped from a model with a sliding window, where
// a basis that is found at a prompt's end meets such a window, and for keys from before a RoPE that
// the kernels cannot apply when they are read; kInvalidArgument where the model is to decide what
// merges and was not taught to.
Status CheckOnModel(const ModelFacts& model, const ConsideredParts& parts);

// Whether each of the processes that the facts tell of has something to hold: a KV head of every
// layer, a layer. kInvalidArgument names the option that asked for too many.
Status CheckDivision(const ModelFacts& model);

// Refuses, with kInvalidArgument and what to take instead, specs that make something of KV heads
// that are not on one rank: maps and latents of heads that ranks divide, and all that TiesOf finds.
// The spec is supported and the model's heads can be divided (CheckDivision). How a model's layers
// are divided matters to no spec.
Status CheckShards(const Spec& spec, const ModelFacts& model);

}  // namespace kvlathe
