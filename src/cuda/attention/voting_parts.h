// Prompts whose rows vote on a GPU. The kernel of prompts adds no votes; that of decoding does, of
// as many rows as it takes. So tokens that vote become jobs of few rows.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "machine/attention/head_job.h"

namespace kvlathe {

class VotingParts {
 public:
  // Takes a job of more than most_rows rows, of which some vote, to pieces. Jobs have the noise of
  // parts from here.
  void Add(const HeadJob& job, int most_rows);

  // The tokens before the first that votes, of every job that has any: nobody asks for their votes.
  std::span<const HeadJob> silent() const { return silent_; }
  // Jobs of at most most_rows rows, all of which vote.
  std::span<const HeadJob> voting() const { return voting_; }

 private:
  std::vector<HeadJob> silent_, voting_;
  std::deque<ScoreNoise> noises_;
};

// Tokens [begin, end) of a job, of which those from first_scored on vote. `noise` is where the
// noise of the part goes, if there is any.
HeadJob TokensOf(const HeadJob& job, int begin, int end, ScoreNoise* noise);

// The floats that the scores of a job take.
constexpr int64_t ScoreFloats(const HeadJob& job) {
  return int64_t{job.n_tokens} * job.gqa_group * (job.n_entries + kBlockSize);
}

}  // namespace kvlathe
