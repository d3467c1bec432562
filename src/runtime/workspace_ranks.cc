// A model that several ranks share: what they agree on, and how its caches are made on all of them.
#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/sha256.h"
#include "io/mapped_file.h"
#include "lockstep/follower.h"
#include "plan/plan_shard.h"
#include "runtime/workspace.h"

namespace kvlathe {

RankGrid Workspace::grid() const {
  return options_.ranks != nullptr ? options_.ranks->grid : RankGrid();
}

namespace {

// Of the program that runs, which is another one in each build.
std::string ProgramDigest() {
  const StatusOr<MappedFile> program = MappedFile::Open("/proc/self/exe");
  if (!program.ok()) return "unknown";
  Sha256 digest;
  digest.Add(program->bytes());
  return digest.HexDigest();
}

}  // namespace

std::string Workspace::FactsOfRank() const {
  return fmt::format("build {}\nmodel {}{}\ncommand {}\n", ProgramDigest(), model_hash_, dms_hash_,
                     options_.ranks->command);
}

StatusOr<std::unique_ptr<Workspace>> Workspace::AgreeOn(
    RankGroup* group, StatusOr<std::unique_ptr<Workspace>> opened) {
  if (group == nullptr) return opened;
  KVL_RETURN_IF_ERROR(
      Agree(group->all.get(),
            {.opened = opened.status(), .facts = opened.ok() ? (*opened)->FactsOfRank() : ""}));
  group->BeginLockStep();
  ModelWeights& weights = (*opened)->weights();
  weights.set_links(group->links());
  weights.machine().memory().set_journal(group->leader.get());
  return opened;
}

StatusOr<std::unique_ptr<Model>> Workspace::MakeShard(const Spec& spec, std::optional<double> rate,
                                                      const CachePlan& plan) {
  if (!shard_.has_value()) return Model::Create(weights_, plan);
  LockStep* const leader = options_.ranks->leader.get();
  if (leader != nullptr) KVL_RETURN_IF_ERROR(leader->BeginMake(spec.ToString(), rate));
  StatusOr<std::unique_ptr<Model>> model =
      Model::Create(weights_, ShardOf(plan, {shard_->layers, shard_->kv_heads}));
  if (leader == nullptr) return model;
  const Status made = leader->EndMake(model.ok() ? model->get() : nullptr);
  KVL_RETURN_IF_ERROR(model.status());
  KVL_RETURN_IF_ERROR(made);
  (*model)->set_whole_layout(plan.layout());
  return model;
}

Status Workspace::Follow() {
  KVL_CHECK(options_.ranks != nullptr && !options_.ranks->is_leader());
  Follower follower(options_.ranks->all.get(),
                    [this](const std::string& kv,
                           std::optional<double> rate) -> StatusOr<std::unique_ptr<Model>> {
                      KVL_ASSIGN_OR_RETURN(SpecModel made, MakeModel(kv, rate));
                      return std::move(made.model);
                    });
  return follower.Run();
}

}  // namespace kvlathe
