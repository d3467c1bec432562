// A model as programs use it: threads, weights, tokenizer and statistics, wired together, and the
// caches that specs describe.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_features.h"
#include "base/threads.h"
#include "kv/spec/spec.h"
#include "lockstep/rank_group.h"
#include "model/model.h"
#include "plan/planner.h"
#include "runtime/machines/machine_choice.h"
#include "runtime/model_statistics.h"
#include "runtime/open_options.h"
#include "runtime/spec_answers.h"
#include "tokenizer/tokenizer.h"

namespace kvlathe {

// A model with the cache that a spec describes.
struct SpecModel {
  Spec spec;
  std::unique_ptr<Model> model;
  std::optional<RankAllocation> ranks;  // with a basis
  // Of the answer to a question that no profile answered, and where PredictKlOf was called.
  std::optional<double> predicted_kl;
};

class Workspace {
 public:
  // Where options.ranks share the model, all of them open it with the same options, and each reads
  // its shard. Rank 0 then uses it as if it were alone, and the others call Follow. Errors of
  // opening are the same on all ranks (Agree).

  // Loads configuration, tokenizer and weights of options.model, which may be a name; options() of
  // the result have its path (FindModel, whose errors these are too). Errors name the file or
  // option: kNotFound, kDataLoss and kUnimplemented for a model, kInvalidArgument for specs and a
  // context beyond the model's, and those of MakeDeviceMachine.
  static StatusOr<std::unique_ptr<Workspace>> Open(const OpenOptions& named);
  // Random weights in the shape of a config.json; no tokenizer. With a compression they decide what
  // merges (DecideAtRandom), by the convention of the config or else that of the released code.
  static StatusOr<std::unique_ptr<Workspace>> OpenRandom(const std::string& config_path,
                                                         const OpenOptions& options,
                                                         std::optional<double> compression = {});
  // The same with the tokenizer of another model, whose vocabulary takes the place of the config's.
  static StatusOr<std::unique_ptr<Workspace>> OpenRandomWithTokenizer(
      const std::string& config_path, const std::string& tokenizer_path,
      const OpenOptions& options);

  // `accuracy` in the spec is looked up in the model's profile, else answered by prediction, which
  // a note says; the result's spec is the answer.
  // With a rate, for specs with resident=full, sequences that choose none have that.
  StatusOr<SpecModel> MakeModel(const std::string& kv, std::optional<double> rate = std::nullopt);
  // For ranks other than the first: makes models and computes their parts of steps as rank 0 says,
  // until it says that it has finished. An error is one after which the group cannot go on.
  Status Follow();
  // kv_fraction at the model's full context, as `ratio` means it, without making a model. Errors
  // are those of MakeModel. No `accuracy`.
  StatusOr<double> FractionOf(const std::string& kv);
  // Says that caches of these specs will be made, so that one calibration serves them all
  // (OpenOptions::kv is expected already). A spec that is a question means its answers.
  void Expect(const Spec& spec);

  CachePlanner& planner() { return *planner_; }
  bool has_random_weights() const { return random_weights_; }
  const ModelConfig& config() const { return config_; }
  const OpenOptions& options() const { return options_; }
  bool has_tokenizer() const { return tokenizer_ != nullptr; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // From now on, OpenOptions::exact_rows; between steps.
  void set_exact_rows(bool exact);
  ThreadPool* threads() { return threads_.get(); }
  ModelWeights& weights() { return *weights_; }
  std::shared_ptr<ModelWeights> shared_weights() { return weights_; }
  Isa isa() const { return isa_; }
  DType row_type() const { return options_.row_type; }
  int context_tokens() const { return context_tokens_; }
  // Of the windows in which a text is scored: what -c says, or else the context up to 2048.
  int window_tokens() const {
    return options_.ctx_size > 0 ? context_tokens_ : std::min(context_tokens_, 2048);
  }
  // On a GPU, where nothing else was asked for, what is left for caches now: less for each model
  // that is made.
  int64_t kv_budget_bytes() const;
  // What the model runs on: "NVIDIA H100 80GB HBM3", or the processors' name and the instruction
  // set of the kernels.
  std::string device_name() const;
  const Progress& progress() const { return options_.progress; }
  // Tells whoever opened the model.
  void Notify(Note::Kind kind, std::string text) const;
  const std::string& model_hash() const { return model_hash_; }
  // Of a file of a retrofit beside the model; empty: there is none.
  const std::string& dms_hash() const { return dms_hash_; }
  // BOS if the model's configuration puts one before a text.
  std::optional<int32_t> leading_bos() const;
  StatusOr<std::vector<int32_t>> TokenizeFile(const std::string& path) const;
  // Of a text, in which no special token is read, and without BOS. kDataLoss where the tokenizer
  // has ids that the model has not.
  StatusOr<std::vector<int32_t>> TokenizeText(std::string_view text) const;

 private:
  Workspace() : statistics_(this), answers_(this) {}
  static StatusOr<std::unique_ptr<Workspace>> Prepare(const OpenOptions& options,
                                                      ModelConfig config);
  static StatusOr<std::unique_ptr<Workspace>> OpenAlone(const OpenOptions& named);
  static StatusOr<std::unique_ptr<Workspace>> OpenGguf(const OpenOptions& options);
  static StatusOr<std::unique_ptr<Workspace>> OpenShape(const std::string& config_path,
                                                        const OpenOptions& options,
                                                        std::unique_ptr<Tokenizer> tokenizer,
                                                        std::optional<double> compression);
  // Has the other ranks of `group` (null: none) agree to what this one has opened.
  static StatusOr<std::unique_ptr<Workspace>> AgreeOn(RankGroup* group,
                                                      StatusOr<std::unique_ptr<Workspace>> opened);
  // What must be the same on all ranks.
  std::string FactsOfRank() const;
  // Of a plan, whole or this rank's shard of it.
  StatusOr<std::unique_ptr<Model>> MakeShard(const Spec& spec, std::optional<double> rate,
                                             const CachePlan& plan);
  RankGrid grid() const;
  // What cannot be had of a device, before anything is read.
  static Status CheckDevice(const OpenOptions& options);
  // The machine of options_.device, and of a GPU its name.
  Status ChooseMachine();
  // Opens the file of a retrofit that is asked for, or lies beside the model; none: there is none.
  static StatusOr<std::optional<SafetensorsReader>> OpenRetrofit(const OpenOptions& options,
                                                                 ModelConfig* config);
  std::unique_ptr<TensorSource> WithRetrofit(std::unique_ptr<TensorSource> source,
                                             std::optional<SafetensorsReader> retrofit);
  Status LoadWeights(std::unique_ptr<TensorSource> source);
  // Of every --kv what can be known before weights are read, and before a calibration for one of
  // the others: its answer in a profile among them.
  Status CheckSpecs();
  void NoteRemadeWeights() const;
  void NoteDeviceMemory() const;
  // An error of memory with what there is of it on a GPU.
  Status WithDevice(const Status& status) const;
  // Takes what a GPU's steps need before caches get the rest. kResourceExhausted, also where the
  // caches that were asked for do not fit behind it.
  Status KeepRoomForSteps(Model* model) const;
  void NoteWhatRatioMeans(const SpecModel& spec_model);

  OpenOptions options_;
  ModelConfig config_;
  Isa isa_ = Isa::kScalar;
  int context_tokens_ = 0;
  int64_t kv_budget_bytes_ = 0;
  bool random_weights_ = false;
  std::string model_hash_, dms_hash_;
  std::optional<ModelShard> shard_;  // where ranks share the model
  std::unique_ptr<ThreadPool> threads_;
  MadeMachine machine_;  // without a name on processors
  std::unique_ptr<Tokenizer> tokenizer_;
  std::shared_ptr<ModelWeights> weights_;
  ModelStatistics statistics_;
  std::optional<CachePlanner> planner_;  // once the configuration is known
  SpecAnswers answers_;
  std::set<std::string> said_ratios_;
};

// KV memory of what measures a model alone and before any sequence comes, such as a calibration: a
// small kv_budget_bytes is no bound of it.
inline int64_t MeasuringBudgetBytes(const Workspace& workspace) {
  return std::max(workspace.kv_budget_bytes(), int64_t{1} << 30);
}

// What a person should know where the kernels have no BF16 instructions.
std::optional<std::string> NoteWithoutBf16(Isa isa);

}  // namespace kvlathe
