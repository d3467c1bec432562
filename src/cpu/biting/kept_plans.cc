#include "cpu/biting/kept_plans.h"

namespace kvlathe {

void KeptPlans::KeepParts(SealedHead* head) { head->runs = KeepAll(head->runs); }

void KeptPlans::KeepParts(SealHeadPlan* head) {
  head->blocks = KeepAll(head->blocks);
  head->packed = KeepAll(head->packed);
}

EmbedPlan KeptPlans::Keep(EmbedPlan plan) {
  plan.tokens = KeepAll(plan.tokens);
  return plan;
}

HeadProductsPlan KeptPlans::Keep(HeadProductsPlan plan) {
  plan.heads = KeepAll(plan.heads);
  return plan;
}

RotatePlan KeptPlans::Keep(RotatePlan plan) {
  plan.tokens = KeepAll(plan.tokens);
  plan.heads = KeepAll(plan.heads);
  return plan;
}

TakeRowsPlan KeptPlans::Keep(TakeRowsPlan plan) {
  plan.from = KeepAll(plan.from);
  return plan;
}

GatherRowsPlan KeptPlans::Keep(GatherRowsPlan plan) {
  plan.from = KeepAll(plan.from);
  return plan;
}

ExpertProductsPlan KeptPlans::Keep(ExpertProductsPlan plan) {
  plan.items = KeepAll(plan.items);
  return plan;
}

WeightedRowsPlan KeptPlans::Keep(WeightedRowsPlan plan) {
  plan.rows = KeepAll(plan.rows);
  plan.weights = KeepAll(plan.weights);
  return plan;
}

PrunePlan KeptPlans::Keep(PrunePlan plan) {
  std::vector<PruneHead>* const heads =
      Own(std::vector<PruneHead>(plan.heads.begin(), plan.heads.end()));
  for (PruneHead& head : *heads) {
    head.blocks = KeepAll(head.blocks);
    head.opened = KeepAll(head.opened);
    head.dropped = KeepAll(head.dropped);
    KeepParts(&head.packed);
  }
  plan.heads = *heads;
  return plan;
}

SealBatch KeptPlans::Keep(SealBatch batch) {
  std::vector<SealRunPlan>* const runs =
      Own(std::vector<SealRunPlan>(batch.runs.begin(), batch.runs.end()));
  for (SealRunPlan& run : *runs) {
    std::vector<SealHeadPlan>* const heads =
        Own(std::vector<SealHeadPlan>(run.heads.begin(), run.heads.end()));
    for (SealHeadPlan& head : *heads) KeepParts(&head);
    run.heads = *heads;
  }
  batch.runs = *runs;
  return batch;
}

RotatedBatch KeptPlans::Keep(RotatedBatch batch) {
  std::vector<RotatedHeadPlan>* const heads =
      Own(std::vector<RotatedHeadPlan>(batch.heads.begin(), batch.heads.end()));
  for (RotatedHeadPlan& head : *heads) KeepParts(&head.head);
  batch.heads = *heads;
  return batch;
}

std::span<const HeadJob> KeptPlans::KeepJobs(std::span<const HeadJob> jobs) {
  std::vector<HeadJob>* const kept = Own(std::vector<HeadJob>(jobs.begin(), jobs.end()));
  for (HeadJob& job : *kept) {
    job.blocks = KeepAll(job.blocks);
    KeepParts(&job.packed);
    std::vector<LatentSliceIds>* const slices =
        Own(std::vector<LatentSliceIds>(job.latents.slices.begin(), job.latents.slices.end()));
    for (LatentSliceIds& slice : *slices) {
      slice.blocks = KeepAll(slice.blocks);
      KeepParts(&slice.packed);
    }
    job.latents.slices = *slices;
    job.frames.maps = KeepAll(job.frames.maps);
    job.rebuilt.keys = KeepAll(job.rebuilt.keys);
    job.rebuilt.values = KeepAll(job.rebuilt.values);
    job.rebuilt.outputs = KeepAll(job.rebuilt.outputs);
    if (job.merged.n_closed != nullptr) {
      job.merged.n_closed =
          KeepAll(std::span(job.merged.n_closed, static_cast<size_t>(job.n_tokens))).data();
    }
    if (job.noise != nullptr) job.noise = KeepAll(std::span(job.noise, 1)).data();
  }
  return *kept;
}

std::span<const CutItem> KeptPlans::KeepItems(std::span<const CutItem> items) {
  std::vector<CutItem>* const kept = Own(std::vector<CutItem>(items.begin(), items.end()));
  for (CutItem& item : *kept) item.blocks = KeepAll(item.blocks);
  return *kept;
}

std::span<const OpenedRun> KeptPlans::KeepRuns(std::span<const OpenedRun> runs) {
  std::vector<OpenedRun>* const kept = Own(std::vector<OpenedRun>(runs.begin(), runs.end()));
  for (OpenedRun& run : *kept) {
    KeepParts(&run.sealed);
    run.blocks = KeepAll(run.blocks);
    run.plain = KeepAll(run.plain);
  }
  return *kept;
}

std::span<const ReencodedRun> KeptPlans::KeepRuns(std::span<const ReencodedRun> runs) {
  std::vector<ReencodedRun>* const kept = Own(std::vector<ReencodedRun>(runs.begin(), runs.end()));
  for (ReencodedRun& run : *kept) {
    KeepParts(&run.sealed);
    run.blocks = KeepAll(run.blocks);
    run.plain = KeepAll(run.plain);
  }
  return *kept;
}

}  // namespace kvlathe
