#include "runtime/workspace.h"

#include <fmt/format.h>

#include <fstream>
#include <utility>

#include "base/sha256.h"
#include "base/units.h"
#include "calibration/fingerprint.h"
#include "evaluation/bench/deciding_weights.h"
#include "io/files.h"
#include "kv/capacity.h"
#include "model/families/gguf/gguf_config.h"
#include "model/model_facts.h"
#include "model/retrofits/dms_config.h"
#include "model/retrofits/dms_file.h"
#include "runtime/named_model.h"
#include "tokenizer/gguf/gguf_tokenizer.h"

namespace kvlathe {
namespace {

constexpr uint64_t kRandomWeightsSeed = 1;

// Half of what the system says is available, divided among as many processes.
int64_t DefaultKvBudget(int n_processes) {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  int64_t kib;
  std::string unit;
  while (meminfo >> key >> kib >> unit) {
    if (key == "MemAvailable:") return kib * 512 / n_processes;
  }
  return int64_t{4} << 30;
}

NumberTypes NumberTypesOf(const OpenOptions& options) {
  NumberTypes types = options.row_type;
  if (options.weights.has_value()) {
    types.weights = *options.weights;
  } else {
    types.keeps_blocks = true;
  }
  return types;
}

// Of every --kv, before the model is opened: what the spec alone rules out. A question has its
// answer checked instead.
Status CheckAlone(const std::vector<std::string>& specs) {
  for (const std::string& kv : specs) {
    KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(kv));
    if (!spec.accuracy().has_value()) KVL_RETURN_IF_ERROR(CheckSupported(spec));
  }
  return OkStatus();
}

}  // namespace

std::optional<std::string> NoteWithoutBf16(Isa isa) {
  if (HasBf16Dots(isa)) return std::nullopt;
  return fmt::format("{}: computing {}",
                     HasBf16Dots(AvailableIsas().back())
                         ? "KVLATHE_ISA leaves out BF16 instructions"
                         : "this CPU has no BF16 instructions",
                     isa == Isa::kAvx2 ? "in F32 with AVX2" : "in F32 with portable loops, slowly");
}

void Workspace::Notify(Note::Kind kind, std::string text) const {
  if (options_.on_note) options_.on_note({kind, std::move(text)});
}

StatusOr<std::unique_ptr<Workspace>> Workspace::Prepare(const OpenOptions& options,
                                                        ModelConfig config) {
  std::unique_ptr<Workspace> w(new Workspace);
  w->options_ = options;
  for (const std::string& kv : options.kv) {
    KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(kv));
    if (spec.accuracy().has_value()) continue;
    KVL_RETURN_IF_ERROR(CheckSpec(spec, FactsOf(config, DType::kBf16, w->grid())));
  }
  if (options.ranks != nullptr) {
    KVL_ASSIGN_OR_RETURN(w->shard_, ShardOf(config, w->grid(), options.ranks->rank()));
  }
  KVL_ASSIGN_OR_RETURN(w->isa_, SelectIsa());
  if (options.ctx_size > config.longest_context()) {
    return Error(StatusCode::kInvalidArgument, "-c {}: the model's context is {}", options.ctx_size,
                 config.longest_context());
  }
  w->context_tokens_ = options.ctx_size > 0 ? options.ctx_size : config.max_seq_len;
  w->kv_budget_bytes_ =
      options.kv_budget_bytes > 0
          ? options.kv_budget_bytes
          : DefaultKvBudget(options.ranks != nullptr ? options.ranks->CountHere() : 1);
  config.ChooseContext(w->context_tokens_);
  w->threads_ = std::make_unique<ThreadPool>(options.n_threads > 0 ? options.n_threads
                                                                   : AvailableProcessors());
  if (options.n_threads > AvailableProcessors()) {
    w->Notify(Note::Kind::kNote,
              fmt::format("-t {}: this process may use {} processors; more workers than that wait "
                          "for each other, and every step is slower",
                          options.n_threads, AvailableProcessors()));
  }
  if (options.pin_threads) KVL_RETURN_IF_ERROR(w->threads_->Pin());
  KVL_RETURN_IF_ERROR(w->ChooseMachine());
  w->config_ = std::move(config);
  w->planner_.emplace(FactsOf(w->config_, w->row_type(), w->grid()), &w->statistics_);
  return w;
}

StatusOr<std::optional<SafetensorsReader>> Workspace::OpenRetrofit(const OpenOptions& options,
                                                                   ModelConfig* config) {
  std::string path = options.dms;
  if (path.empty()) {
    path = DmsPathBeside(options.model);
    if (config->dms.has_value() || !FileExists(path)) return std::optional<SafetensorsReader>();
  }
  KVL_ASSIGN_OR_RETURN(SafetensorsReader reader, OpenDmsFile(path, config));
  return std::optional(std::move(reader));
}

// The tensors of the model with those of a retrofit, if there is one.
std::unique_ptr<TensorSource> Workspace::WithRetrofit(std::unique_ptr<TensorSource> source,
                                                      std::optional<SafetensorsReader> retrofit) {
  if (!retrofit.has_value()) return source;
  dms_hash_ = ModelHash("dms", *retrofit);
  return WithDmsTensors(std::move(source), *std::move(retrofit));
}

Status Workspace::LoadWeights(std::unique_ptr<TensorSource> source) {
  LoadProgress progress;
  if (options_.progress) {
    progress = [this](double fraction) {
      options_.progress("loading " + options_.model, fraction);
    };
  }
  StatusOr<std::unique_ptr<ModelWeights>> weights =
      ModelWeights::Load(config_, NumberTypesOf(options_), std::move(source), machine_.machine,
                         progress, shard_.has_value() ? &*shard_ : nullptr);
  KVL_RETURN_IF_ERROR(WithDevice(weights.status()));
  weights_ = *std::move(weights);
  weights_->set_interrupt(options_.interrupt);
  if (!options_.weights.has_value()) NoteRemadeWeights();
  // Weights in blocks are multiplied in integers, which every processor has.
  const bool needs_bf16 = options_.exact_rows || !HasBlocks(weights_->lm_head().type());
  std::optional<std::string> note = NoteWithoutBf16(isa_);
  NoteDeviceMemory();
  if (options_.device.is_cpu() && needs_bf16 && note.has_value())
    Notify(Note::Kind::kNote, *std::move(note));
  return OkStatus();
}

// Of blocks that a file has and no product reads: what they became.
void Workspace::NoteRemadeWeights() const {
  for (const WeightReader::Remade& remade : weights_->remade()) {
    Notify(Note::Kind::kNote,
           fmt::format("{} matrices of {} became {}: {} in place of {}", remade.n_matrices,
                       LayoutOf(remade.from).name, WeightTypeName(remade.to),
                       FormatBytes(remade.bytes), FormatBytes(remade.stored_bytes)));
  }
}

Status Workspace::CheckSpecs() {
  for (const std::string& kv : options_.kv) {
    KVL_ASSIGN_OR_RETURN(const Spec spec, answers_.Checked(kv));
    Expect(spec);
  }
  return OkStatus();
}

void Workspace::Expect(const Spec& spec) { statistics_.Expect(StatisticsNeedsOf(spec)); }

StatusOr<std::unique_ptr<Workspace>> Workspace::Open(const OpenOptions& named) {
  return AgreeOn(named.ranks, OpenAlone(named));
}

StatusOr<std::unique_ptr<Workspace>> Workspace::OpenAlone(const OpenOptions& named) {
  KVL_RETURN_IF_ERROR(CheckAlone(named.kv));
  KVL_RETURN_IF_ERROR(CheckDevice(named));
  OpenOptions options = named;
  KVL_ASSIGN_OR_RETURN(options.model, FindModel(named.model, named.progress, named.on_note));
  if (FileExists(options.model)) return OpenGguf(options);
  KVL_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(options.model));
  KVL_ASSIGN_OR_RETURN(std::optional<SafetensorsReader> retrofit, OpenRetrofit(options, &config));
  KVL_ASSIGN_OR_RETURN(auto w, Prepare(options, std::move(config)));
  KVL_ASSIGN_OR_RETURN(w->tokenizer_, Tokenizer::Load(options.model, {options.pre}));
  KVL_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::OpenModel(options.model));
  KVL_ASSIGN_OR_RETURN(std::string config_text, ReadTextFile(options.model + "/config.json"));
  if (const std::string metadata = DmsMetadataPath(options.model); FileExists(metadata)) {
    KVL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(metadata));
    config_text += text;
  }
  w->model_hash_ = ModelHash(config_text, reader);
  KVL_RETURN_IF_ERROR(w->CheckSpecs());
  KVL_RETURN_IF_ERROR(
      w->LoadWeights(w->WithRetrofit(MakeFileSource(std::move(reader)), std::move(retrofit))));
  return w;
}

StatusOr<std::unique_ptr<Workspace>> Workspace::OpenGguf(const OpenOptions& options) {
  KVL_ASSIGN_OR_RETURN(GgufFile opened, GgufFile::Open(options.model));
  const auto file = std::make_shared<const GgufFile>(std::move(opened));
  KVL_ASSIGN_OR_RETURN(ModelConfig config, ReadGgufConfig(*file));
  KVL_ASSIGN_OR_RETURN(std::optional<SafetensorsReader> retrofit, OpenRetrofit(options, &config));
  KVL_ASSIGN_OR_RETURN(auto w, Prepare(options, std::move(config)));
  KVL_ASSIGN_OR_RETURN(w->tokenizer_, LoadGgufTokenizer(*file, {options.pre}));
  KVL_ASSIGN_OR_RETURN(const nlohmann::json config_json, GgufConfigJson(*file));
  w->model_hash_ = ModelHash(config_json.dump(), *file);
  KVL_RETURN_IF_ERROR(w->CheckSpecs());
  KVL_RETURN_IF_ERROR(w->LoadWeights(w->WithRetrofit(MakeGgufSource(file), std::move(retrofit))));
  return w;
}

StatusOr<std::unique_ptr<Workspace>> Workspace::OpenRandom(const std::string& config_path,
                                                           const OpenOptions& options,
                                                           std::optional<double> compression) {
  return AgreeOn(options.ranks, OpenShape(config_path, options, nullptr, compression));
}

StatusOr<std::unique_ptr<Workspace>> Workspace::OpenRandomWithTokenizer(
    const std::string& config_path, const std::string& tokenizer_path, const OpenOptions& options) {
  const auto load = [&]() -> StatusOr<std::unique_ptr<Tokenizer>> {
    KVL_ASSIGN_OR_RETURN(const std::string found,
                         FindModel(tokenizer_path, options.progress, options.on_note));
    return Tokenizer::Load(found, {.pre = options.pre});
  };
  StatusOr<std::unique_ptr<Tokenizer>> tokenizer = load();
  if (!tokenizer.ok()) return AgreeOn(options.ranks, tokenizer.status());
  return AgreeOn(options.ranks,
                 OpenShape(config_path, options, *std::move(tokenizer), std::nullopt));
}

StatusOr<std::unique_ptr<Workspace>> Workspace::OpenShape(const std::string& config_path,
                                                          const OpenOptions& options,
                                                          std::unique_ptr<Tokenizer> tokenizer,
                                                          std::optional<double> compression) {
  if (compression.has_value() && options.ranks != nullptr) {
    return Error(StatusCode::kInvalidArgument,
                 "--compression looks at all heads of a model, which ranks share; leave --tp and "
                 "--pp out");
  }
  KVL_RETURN_IF_ERROR(CheckDevice(options));
  KVL_ASSIGN_OR_RETURN(nlohmann::json json, ReadJsonFile(config_path));
  if (tokenizer != nullptr && json.is_object()) json["vocab_size"] = tokenizer->vocab_size();
  KVL_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(json, config_path));
  if (compression.has_value() && !config.dmc.has_value()) config.dmc = DmcConfig{};
  KVL_ASSIGN_OR_RETURN(auto w, Prepare(options, std::move(config)));
  w->tokenizer_ = std::move(tokenizer);
  w->random_weights_ = true;
  w->model_hash_ = DigestOf({json.dump()});
  KVL_RETURN_IF_ERROR(w->LoadWeights(MakeRandomSource(kRandomWeightsSeed)));
  if (!compression.has_value()) return w;
  KVL_RETURN_IF_ERROR(DecideAtRandom(*compression, *w->config_.dmc, w->weights_));
  w->config_.dmc = w->weights_->config().dmc;
  return w;
}

std::optional<int32_t> Workspace::leading_bos() const {
  const std::vector<int32_t> ids = tokenizer_->Tokenize("", /*add_bos=*/true);
  return ids.empty() ? std::nullopt : std::optional<int32_t>(ids.front());
}

StatusOr<std::vector<int32_t>> Workspace::TokenizeFile(const std::string& path) const {
  KVL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  return TokenizeText(text);
}

StatusOr<std::vector<int32_t>> Workspace::TokenizeText(std::string_view text) const {
  KVL_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                       tokenizer_->TryTokenize(text, /*add_bos=*/false, /*parse_special=*/false));
  for (int32_t id : ids) {
    if (id >= config_.vocab_size) {
      return Error(
          StatusCode::kDataLoss,
          "{}: the tokenizer gives id {}, but the model's vocabulary has {}; they do not belong "
          "together",
          options_.model, id, config_.vocab_size);
    }
  }
  return ids;
}

StatusOr<double> Workspace::FractionOf(const std::string& kv) {
  KVL_ASSIGN_OR_RETURN(const Spec spec, answers_.Checked(kv));
  return planner_->FractionOf(spec);
}

StatusOr<SpecModel> Workspace::MakeModel(const std::string& kv, std::optional<double> rate) {
  SpecModel result;
  KVL_ASSIGN_OR_RETURN(result.spec, answers_.Checked(kv));
  if (result.spec.accuracy().has_value() && !random_weights_) {
    KVL_ASSIGN_OR_RETURN(PredictedCache predicted, answers_.ByPrediction(result.spec));
    result.spec = std::move(predicted.spec);
    result.predicted_kl = predicted.predicted_kl;
  }
  KVL_ASSIGN_OR_RETURN(const CachePlan plan, planner_->MakePlan(result.spec, rate));
  result.ranks = plan.allocation();
  StatusOr<std::unique_ptr<Model>> model = MakeShard(result.spec, rate, plan);
  KVL_RETURN_IF_ERROR(WithDevice(model.status()));
  result.model = *std::move(model);
  KVL_RETURN_IF_ERROR(KeepRoomForSteps(result.model.get()));
  result.model->set_schedule(options_.schedule);
  result.model->set_deterministic(options_.deterministic);
  NoteWhatRatioMeans(result);
  return result;
}

// `ratio` is a promise about one context, mostly the model's. A shorter one holds the same open
// block, sinks and newest positions, which are then a larger share of it.
void Workspace::NoteWhatRatioMeans(const SpecModel& spec_model) {
  const BasisStage* const basis = spec_model.spec.basis();
  const RankOptions* const ranks = basis == nullptr ? nullptr : RanksOf(*basis);
  if (ranks == nullptr || !ranks->has_ratio()) return;
  const int n_promised = RatioContext(spec_model.spec, planner_->model());
  if (context_tokens_ == n_promised) return;
  if (!said_ratios_.insert(spec_model.spec.ToString()).second) return;
  const CacheLayout& layout = spec_model.model->whole_layout();
  const int64_t bytes = SequenceBytes(layout, context_tokens_, 1, context_tokens_ / 2);
  const double times =
      static_cast<double>(ReferenceBytes(layout, context_tokens_)) / static_cast<double>(bytes);
  Notify(
      Note::Kind::kNote,
      fmt::format("--kv '{}': ratio holds at a context of {}; at -c {} the cache is {:.2f} times "
                  "smaller than 16 bits",
                  spec_model.spec.text(), n_promised, context_tokens_, times));
}

}  // namespace kvlathe
