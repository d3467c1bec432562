// Runs the attention of a layer, and takes the votes that retention counts.
#pragma once

#include <cstdint>
#include <vector>

#include "model/steps/step.h"

namespace kvlathe {

// Attends with the step's queries to the cache, which holds the rows of this step already, and
// writes Activations::attended.
class AttendStep : public LayerStep {
 public:
  using LayerStep::LayerStep;
  std::string_view name() const override { return "attend"; }
  Status Run(ForwardState* state) override;

 private:
  // What all jobs of a sequence have in common.
  struct Place {
    const SequenceStep& step;
    int64_t token_idx;       // of its first token in the batch
    int first_block;         // that its first token sees; entries of jobs are counted from there
    KeyRotationId rotation;  // of the layer's blocks, from the first of all
  };

  HeadJob JobOf(const Place& place, int kv_head_idx, Activations* a);
  void AddQueries(const Place& place, int kv_head_idx, Activations* a, HeadJob* job) const;
  void AddPacked(const Place& place, int kv_head_idx, HeadJob* job) const;
  void AddSinks(const Place& place, int kv_head_idx, HeadJob* job) const;
  FrameIds FramesOf(const Place& place, int kv_head_idx) const;
  void ListRebuilt();  // of the layer
  RebuildIds RebuiltOf(int kv_head_idx) const;
  LatentIds LatentsOf(const Place& place, int kv_head_idx) const;
  // Says which rows of the job vote for entries, and how.
  void AddScores(const SequenceStep& step, int kv_head_idx, HeadJob* job);
  // Lets the rows of the job see the entries that were closed before them, and their own rows.
  void AddMergedRows(const Place& place, int kv_head_idx, Activations* a, HeadJob* job) const;
  // Notes the slice of the newest job; once the last of the heads that share latents has come,
  // gives all of them the slices of all.
  void ShareLatents(int kv_head_idx);

  std::vector<HeadJob> jobs_;
  std::vector<LatentSliceIds> slices_;  // of the jobs, where heads share latents
  // By KV head of the model, where blocks can be rebuilt.
  std::vector<WeightId> rebuilt_keys_, rebuilt_values_, rebuilt_outputs_;
  std::vector<WeightId> frame_maps_;  // of queries by KV head of the model, where keys have frames
  std::vector<ScoreNoise> noises_;    // of the jobs, where votes are noisy
};

}  // namespace kvlathe
