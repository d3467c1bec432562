// All routes that generate have these fields in common.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/drafts/drafter.h"
#include "engine/sampler.h"
#include "server/api/request_fields.h"
#include "server/api/service_state.h"

namespace kvlathe::api {

struct GenerationOptions {
  std::string model;  // as the request names it, or the server's name; answers repeat it
  int level_idx = 0;
  SamplingParams sampling;
  std::vector<std::string> stops;
  bool ignores_end = false;  // goes on behind the end of sequence
  int min_tokens = 0;        // before which the sequence does not end
  int n_choices = 1;
  bool is_stream = false;
  bool streams_usage = false;     // stream_options.include_usage
  std::optional<double> rate;     // of a level that has rates
  bool refuses_pressure = false;  // its cache keeps its bits when memory is short
  std::optional<DraftOptions> draft;
  std::optional<int> slot_id;  // what the sequence holds in the end can be saved by it
  // Fields of the request that this server does not know.
  std::vector<std::string> unknown_fields;
};

// Whether this model fills in what stands between two texts. kUnimplemented with `param`.
Status CheckFills(const ServiceState& state, const std::string& param);

// Reads model, kv, temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty,
// frequency_penalty, logit_bias, seed, stop, ignore_eos, min_tokens, n, rate,
// under_pressure, draft, id_slot, stream and stream_options. Without a seed the request gets one by
// chance. What is wrong is the status of `fields`.
GenerationOptions ReadGenerationOptions(const ServiceState& state, RequestFields* fields);

}  // namespace kvlathe::api
