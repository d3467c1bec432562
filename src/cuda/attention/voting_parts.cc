#include "cuda/attention/voting_parts.h"

#include <algorithm>

namespace kvlathe {

HeadJob TokensOf(const HeadJob& job, int begin, int end, ScoreNoise* noise) {
  const int64_t first_row = int64_t{begin} * job.gqa_group;
  const int64_t element = SizeOf(job.shape.row_type);
  HeadJob part = job;
  part.n_tokens = end - begin;
  part.q = job.q + first_row * job.q_stride * element;
  part.q_full = job.q_full + first_row * job.q_full_stride * element;
  part.first_visible = job.first_visible + begin;
  // What nobody of the part sees needs no scores.
  part.n_entries = std::clamp(part.first_visible + part.n_tokens - 1, 0, job.n_entries);
  part.sinks.first_visible = job.sinks.first_visible + begin;
  part.out = job.out + begin * job.out_stride * SizeOf(job.out_type);
  part.first_scored = std::max(0, job.first_scored - begin);
  if (job.noise != nullptr) {
    *noise = *job.noise;
    noise->first_position += begin;
    noise->temperature += static_cast<float>(begin) * noise->temperature_step;
    part.noise = noise;
  }
  return part;
}

void VotingParts::Add(const HeadJob& job, int most_rows) {
  if (job.first_scored > 0) {
    HeadJob part = TokensOf(job, 0, job.first_scored, &noises_.emplace_back());
    part.scored = {};
    part.noise = nullptr;
    silent_.push_back(part);
  }
  const int step = std::max(1, most_rows / job.gqa_group);
  for (int token = std::max(0, job.first_scored); token < job.n_tokens; token += step) {
    const int end = std::min(token + step, job.n_tokens);
    voting_.push_back(TokensOf(job, token, end, &noises_.emplace_back()));
  }
}

}  // namespace kvlathe
