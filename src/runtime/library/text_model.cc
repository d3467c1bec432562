#include "kvlathe/text_model.h"

#include <optional>
#include <utility>

#include "runtime/calibration_run.h"
#include "runtime/library/generator_parts.h"
#include "runtime/library/text_model_parts.h"
#include "runtime/spec_models.h"
#include "runtime/workspace.h"

namespace kvlathe::runtime {
namespace {

Message::Kind KindOf(Note::Kind kind) {
  switch (kind) {
    case Note::Kind::kNote:
      return Message::Kind::kNote;
    case Note::Kind::kWarning:
      return Message::Kind::kWarning;
    case Note::Kind::kBegun:
      return Message::Kind::kBegun;
    case Note::Kind::kDone:
      return Message::Kind::kDone;
  }
  return Message::Kind::kNote;
}

StatusOr<OpenOptions> OptionsOf(const std::string& path, const ModelSettings& settings) {
  OpenOptions options;
  KVL_ASSIGN_OR_RETURN(options.device, ParseDevice(settings.device));
  options.device_bytes = settings.device_bytes;
  options.model = path;
  options.kv = settings.caches;
  options.basis = settings.statistics;
  options.kv_budget_bytes = settings.kv_budget_bytes;
  options.row_type = settings.computes_in_f32 ? DType::kF32 : DType::kBf16;
  options.ctx_size = settings.context_tokens;
  options.n_threads = settings.n_threads;
  options.deterministic = settings.is_deterministic;
  options.progress = settings.on_progress;
  if (settings.on_message) {
    options.on_note = [on_message = settings.on_message](const Note& note) {
      on_message({KindOf(note.kind), note.text});
    };
  }
  return options;
}

}  // namespace

TextModel::TextModel(std::shared_ptr<Parts> parts) : parts_(std::move(parts)) {}
TextModel::~TextModel() = default;

StatusOr<std::unique_ptr<TextModel>> TextModel::Open(const std::string& path,
                                                     const ModelSettings& settings) {
  if (settings.context_tokens < 0 || settings.n_threads < 0 || settings.kv_budget_bytes < 0 ||
      settings.device_bytes < 0) {
    return Error(StatusCode::kInvalidArgument,
                 "context_tokens, n_threads, kv_budget_bytes and device_bytes are 0 or more");
  }
  KVL_ASSIGN_OR_RETURN(const OpenOptions options, OptionsOf(path, settings));
  auto parts = std::make_shared<Parts>();
  KVL_ASSIGN_OR_RETURN(parts->workspace, Workspace::Open(options));
  return std::unique_ptr<TextModel>(new TextModel(std::move(parts)));
}

int TextModel::context_tokens() const { return parts_->workspace->context_tokens(); }
int TextModel::vocab_size() const { return parts_->workspace->config().vocab_size; }

std::vector<int32_t> TextModel::Tokenize(std::string_view text) const {
  return parts_->workspace->tokenizer().Tokenize(text, /*add_bos=*/true);
}

std::string TextModel::Detokenize(const std::vector<int32_t>& ids) const {
  return parts_->workspace->tokenizer().Detokenize(ids);
}

StatusOr<CacheCost> TextModel::CostOf(const std::string& cache) {
  KVL_ASSIGN_OR_RETURN(SpecModel made, parts_->workspace->MakeModel(cache));
  KVL_RETURN_IF_ERROR(PredictKlOf(parts_->workspace.get(), &made));
  CacheCost cost;
  cost.resolved = made.spec.ToString();
  cost.predicted_kl = made.predicted_kl;
  KVL_ASSIGN_OR_RETURN(cost.fraction, parts_->workspace->FractionOf(cost.resolved));
  return cost;
}

Status TextModel::Calibrate(const std::string& text_path, const std::string& output_path) {
  if (text_path.empty()) return Error(StatusCode::kInvalidArgument, "calibration takes a text");
  CalibrationRun run;
  run.text_path = text_path;
  return CalibrateInto(parts_->workspace.get(), run, output_path);
}

StatusOr<std::unique_ptr<Generator>> TextModel::MakeGenerator(
    const std::vector<std::string>& caches, const GeneratorSettings& settings) {
  if (caches.empty()) {
    return Error(StatusCode::kInvalidArgument, "a generator takes at least one cache, or \"none\"");
  }
  Workspace* const workspace = parts_->workspace.get();
  for (const std::string& cache : caches) {
    KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(cache));
    workspace->Expect(spec);
  }
  auto parts = std::make_unique<Generator::Parts>(parts_);
  for (const std::string& cache : caches) {
    KVL_ASSIGN_OR_RETURN(SpecModel made, workspace->MakeModel(cache));
    parts->models.push_back(std::move(made.model));
  }
  parts->StartEngine(settings);
  return std::unique_ptr<Generator>(new Generator(std::move(parts)));
}

}  // namespace kvlathe::runtime
