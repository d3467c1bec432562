#include "codec/row_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "calibration/fingerprint.h"
#include "model/model_facts.h"

namespace kvlathe {
namespace {

// Everything beside the spec that decides what stored bytes mean.
std::string IdentityOf(const ModelConfig& c, DType row_type, const CachePlan& plan,
                       std::span<const std::unique_ptr<CodecLayer>> layers) {
  Fingerprint print;
  for (const int64_t n : {c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim, c.rope_dim()}) {
    print.Add(static_cast<uint64_t>(n));
  }
  print.Add(c.DescribePositions());
  print.Add(static_cast<uint64_t>(row_type));
  if (plan.basis() != nullptr) print.Add(BasisHash(*plan.basis()));
  if (!plan.codebooks().empty()) print.Add(CodebooksHash(plan.codebooks()));
  for (const auto& layer : layers) {
    for (int g = 0; g < layer->layout().n_kv_heads; ++g) {
      const auto bytes = std::as_bytes(layer->key_offset(g));
      if (!bytes.empty()) print.Add({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
  }
  return "codec " + print.Hex();
}

// Whether entries of all heads lie as their positions do.
bool IsInOrder(const StoredEntries& entries) {
  for (size_t i = 0; i < entries.positions.size(); ++i) {
    if (entries.positions[i] != static_cast<int64_t>(i) % entries.n_entries) return false;
  }
  return true;
}

Status CheckIsOfRows(const Spec& spec, const CacheLayout& layout) {
  if (layout.retention.has_value() && layout.retention->repeats_prompt()) {
    return Error(StatusCode::kUnimplemented,
                 "--kv '{}': the prompt is read a second time for this method, which takes the "
                 "model itself; take snapkv, or run the model with kvlathe",
                 spec.text());
  }
  if (layout.DropsByHead()) {
    return Error(StatusCode::kUnimplemented,
                 "--kv '{}': heads of all layers share one budget here, which rows that come layer "
                 "by layer do not allow; take snapkv",
                 spec.text());
  }
  return OkStatus();
}

}  // namespace

RowCodec::RowCodec(const ModelConfig& config, const CodecOptions& options,
                   std::shared_ptr<Machine> machine)
    : machine_(std::move(machine)),
      config_(config),
      types_(options.row_type),
      source_(&config_, options.statistics, options.weights, &machine_->host_threads()),
      pool_(std::numeric_limits<int64_t>::max(), &machine_->memory()) {
  activations_.memory = &machine_->memory();
  activations_.types = types_;
}

StatusOr<std::unique_ptr<RowCodec>> RowCodec::Create(const ModelConfig& config,
                                                     const CodecOptions& options,
                                                     std::shared_ptr<Machine> machine) {
  std::unique_ptr<RowCodec> codec(new RowCodec(config, options, std::move(machine)));
  const int n_most = codec->config_.longest_context();
  if (options.max_positions < 0 || options.max_positions > n_most) {
    return Error(StatusCode::kInvalidArgument,
                 "max_positions={}: the model has {} positions; give at most as many, or 0 for all",
                 options.max_positions, n_most);
  }
  if (options.max_positions > 0) codec->config_.ChooseContext(options.max_positions);
  KVL_RETURN_IF_ERROR(codec->MakePlan(options));
  return codec;
}

Status RowCodec::MakePlan(const CodecOptions& options) {
  KVL_ASSIGN_OR_RETURN(spec_, Spec::Parse(options.spec));
  ModelFacts facts = FactsOf(config_, types_.rows);
  if (options.max_positions > 0) facts.max_seq_len = options.max_positions;
  planner_ = std::make_unique<CachePlanner>(facts, &source_);
  if (spec_.accuracy().has_value()) {
    KVL_ASSIGN_OR_RETURN(PredictedCache answer, planner_->AnswerByPrediction(spec_));
    spec_ = std::move(answer.spec);
  }
  KVL_RETURN_IF_ERROR(planner_->Check(spec_));
  KVL_RETURN_IF_ERROR(CheckIsOfRows(spec_, MakeLayout(facts, PartsOf(spec_), {}, spec_.keys())));
  KVL_ASSIGN_OR_RETURN(const CachePlan plan, planner_->MakePlan(spec_));
  layout_ = plan.layout();
  KVL_RETURN_IF_ERROR(MakeLayers(plan));
  identity_ = {.spec = spec_.ToString(), .model = IdentityOf(config_, types_.rows, plan, layers_)};
  return OkStatus();
}

Status RowCodec::MakeLayers(const CachePlan& plan) {
  for (int kind = 0; kind < std::ssize(config_.attention.kinds); ++kind) {
    kinds_.emplace_back(config_, kind, &machine_->memory());
    KeepAnglesFor(layout_, !plan.codebooks().empty(), &kinds_.back().rotations);
  }
  KVL_ASSIGN_OR_RETURN(const std::vector<std::vector<float>> biases, source_.KeyBiases());
  for (int l = 0; l < layout_.n_layers; ++l) {
    std::vector<float> of_layer;
    for (int g = 0; !biases.empty() && g < config_.n_kv_heads; ++g) {
      const std::vector<float>& bias = biases[int64_t{l} * config_.n_kv_heads + g];
      of_layer.insert(of_layer.end(), bias.begin(), bias.end());
    }
    KVL_ASSIGN_OR_RETURN(std::unique_ptr<CodecLayer> layer,
                         CodecLayer::Create(plan, l, types_, &kinds_[config_.attention.kind_idx(l)],
                                            of_layer, machine_.get()));
    widths_ = widths_.Union(RowWidthsOf(layer->layer()));
    layers_.push_back(std::move(layer));
  }
  return OkStatus();
}

int64_t RowCodec::BytesAt(int64_t n_tokens, int64_t n_prompt) const {
  return SequenceBytes(layout_, n_tokens, 1, n_prompt);
}

double RowCodec::Fraction() const {
  const int64_t n = RatioContext(spec_, planner_->model());
  return static_cast<double>(BytesAt(n, n)) / static_cast<double>(ReferenceBytes(layout_, n));
}

std::unique_ptr<CodecSequence> RowCodec::NewSequence(int64_t n_prompt) {
  CodecSequence::Caches caches;
  for (const auto& layer : layers_) {
    caches.push_back(std::make_unique<SequenceCache>(&layer->layout(), &pool_));
  }
  return std::make_unique<CodecSequence>(std::move(caches), n_prompt);
}

StatusOr<std::unique_ptr<CodecSequence>> RowCodec::Copy(const CodecSequence& sequence) {
  KVL_RETURN_IF_ERROR(CheckIsBetweenSteps(sequence, "copy"));
  CodecSequence::Caches caches;
  for (int l = 0; l < sequence.n_layers(); ++l) {
    KVL_ASSIGN_OR_RETURN(caches.emplace_back(), sequence.cache(l).Copy());
  }
  return std::make_unique<CodecSequence>(std::move(caches), sequence.n_prompt());
}

Status RowCodec::CheckIsBetweenSteps(const CodecSequence& sequence, const char* verb) const {
  if (!sequence.failure().ok()) {
    return Error(StatusCode::kFailedPrecondition, "the sequence failed: {}; reset it",
                 MessageOf(sequence.failure()));
  }
  if (sequence.next_layer() == 0) return OkStatus();
  return Error(StatusCode::kFailedPrecondition,
               "the sequence is within a step, at layer {} of {}; {} it behind the last one",
               sequence.next_layer(), layout_.n_layers, verb);
}

StatusOr<StoredEntries> RowCodec::Read(const CodecSequence& sequence, int layer_idx) {
  ScratchBlocks scratch(&pool_);
  return ReadThrough(&scratch, sequence, layer_idx, /*target=*/nullptr);
}

StatusOr<StoredEntries> RowCodec::ReadThrough(ScratchBlocks* scratch, const CodecSequence& sequence,
                                              int layer_idx, const EntryTarget* target) {
  KVL_RETURN_IF_ERROR(CheckIsBetweenSteps(sequence, "read"));
  if (layer_idx < 0 || layer_idx >= layout_.n_layers) {
    return Error(StatusCode::kInvalidArgument, "layer {}: there are layers 0 to {}", layer_idx,
                 layout_.n_layers - 1);
  }
  return ReadEntries(
      {layers_[layer_idx].get(), &sequence.cache(layer_idx), machine_.get(), scratch, &profile_},
      target);
}

Status RowCodec::Decode(const CodecSequence& sequence, float* k, float* v) {
  const int64_t n = sequence.n_tokens(), d = config_.head_dim, n_heads = config_.n_kv_heads;
  ScratchBlocks scratch(&pool_);
  for (int l = 0; l < layout_.n_layers; ++l) {
    const int64_t n_numbers = n * n_heads * d;
    const EntryTarget target = {k + l * n_numbers, v + l * n_numbers, n};
    KVL_ASSIGN_OR_RETURN(StoredEntries entries, ReadThrough(&scratch, sequence, l, &target));
    if (entries.n_entries != n) {
      return Error(StatusCode::kFailedPrecondition,
                   "layer {} holds {} of {} positions, so there are no rows of the others; keys() "
                   "and values() give those that are held",
                   l, entries.n_entries, n);
    }
    if (entries.positions.empty()) {
      return Error(StatusCode::kFailedPrecondition,
                   "layer {} keeps no positions of its entries, which are in an order of their own",
                   l);
    }
    if (IsInOrder(entries)) continue;
    KVL_ASSIGN_OR_RETURN(entries, ReadThrough(&scratch, sequence, l, nullptr));
    for (int64_t h = 0; h < n_heads; ++h) {
      for (int64_t e = 0; e < n; ++e) {
        const int64_t to = l * n_numbers + (entries.positions[h * n + e] * n_heads + h) * d;
        std::copy_n(&entries.k[(e * n_heads + h) * d], d, k + to);
        std::copy_n(&entries.v[(e * n_heads + h) * d], d, v + to);
      }
    }
  }
  return OkStatus();
}

Status RowCodec::CheckSteps(std::span<const CodecStep> steps, const CodecRows& rows) {
  if (rows.layer_idx < 0 || rows.layer_idx >= layout_.n_layers) {
    return Error(StatusCode::kInvalidArgument, "layer {}: there are layers 0 to {}", rows.layer_idx,
                 layout_.n_layers - 1);
  }
  if (rows.scale.has_value() && !std::isfinite(*rows.scale)) {
    return Error(StatusCode::kInvalidArgument, "scale={}: it is a finite number", *rows.scale);
  }
  if (rows.sink_logits != nullptr && !config_.has_sink_logits) {
    return Error(StatusCode::kInvalidArgument,
                 "sink_logits are given, and the shape has none; make it with has_sink_logits");
  }
  if (rows.sink_logits == nullptr && config_.has_sink_logits && rows.q != nullptr) {
    return Error(StatusCode::kInvalidArgument,
                 "the shape has sink logits; give those of the layer beside its queries");
  }
  if (rows.q == nullptr && layers_[rows.layer_idx]->storing() == nullptr) {
    return Error(StatusCode::kInvalidArgument,
                 "--kv '{}' chooses by queries what it keeps; give q beside k and v", spec_.text());
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    const CodecSequence& s = *steps[i].sequence;
    const auto is_same = [&](const CodecStep& other) { return other.sequence == &s; };
    if (std::ranges::count_if(steps, is_same) > 1) {
      return Error(StatusCode::kInvalidArgument, "sequence {} is there twice", i);
    }
    if (!s.failure().ok()) {
      return Error(StatusCode::kFailedPrecondition, "sequence {} failed: {}; reset it", i,
                   MessageOf(s.failure()));
    }
    if (s.next_layer() != rows.layer_idx) {
      return Error(StatusCode::kInvalidArgument,
                   "layer {} of sequence {}: its next layer is {}; the layers of a step come one "
                   "after the other, from 0 to {}",
                   rows.layer_idx, i, s.next_layer(), layout_.n_layers - 1);
    }
    const int n_new = steps[i].n_new;
    if (rows.layer_idx > 0 && n_new != s.n_new()) {
      return Error(StatusCode::kInvalidArgument,
                   "layer {} of sequence {}: {} new positions; the step began with {}",
                   rows.layer_idx, i, n_new, s.n_new());
    }
    if (n_new < 1) {
      return Error(StatusCode::kInvalidArgument, "sequence {}: no new positions", i);
    }
    // A cache holds as many positions as the context: what it promises is promised there.
    if (rows.layer_idx == 0 && s.n_tokens() + int64_t{n_new} > config_.max_seq_len) {
      return Error(StatusCode::kInvalidArgument,
                   "sequence {}: {} positions and {} new ones are more than the {} that the shape "
                   "has",
                   i, s.n_tokens(), n_new, config_.max_seq_len);
    }
  }
  return OkStatus();
}

Status RowCodec::Run(std::span<const CodecStep> steps, const CodecRows& rows,
                     std::vector<Status>* failures) {
  KVL_RETURN_IF_ERROR(CheckSteps(steps, rows));
  failures->assign(steps.size(), OkStatus());
  std::vector<int> n_done(steps.size());
  std::vector<int64_t> first_rows;
  int64_t n_rows = 0;
  for (const CodecStep& step : steps) {
    if (rows.layer_idx == 0) step.sequence->BeginStep(step.n_new);
    first_rows.push_back(n_rows);
    n_rows += step.n_new;
  }
  const int64_t width = int64_t{config_.n_heads} * config_.head_dim;
  std::vector<Piece> pieces;
  do {
    pieces.clear();
    int n_left = kMostTokens;
    for (size_t i = 0; i < steps.size() && n_left > 0; ++i) {
      if (n_done[i] == steps[i].n_new || !(*failures)[i].ok()) continue;
      const int64_t n_most = steps[i].sequence->cache(rows.layer_idx).max_step();
      const auto n =
          static_cast<int>(std::min<int64_t>({steps[i].n_new - n_done[i], n_left, n_most}));
      pieces.push_back({{steps[i].sequence, n}, i, first_rows[i] + n_done[i]});
      n_done[i] += n;
      n_left -= n;
    }
    if (!pieces.empty()) {
      const Status run = RunPieces(pieces, rows, failures);
      if (!run.ok()) {  // what the layers hold no longer agrees
        for (const CodecStep& step : steps) step.sequence->Fail(run);
        return run;
      }
    }
  } while (!pieces.empty());
  for (size_t i = 0; i < steps.size(); ++i) {
    if ((*failures)[i].ok()) {
      steps[i].sequence->EndLayer();
      continue;
    }
    steps[i].sequence->Fail((*failures)[i]);
    if (rows.out != nullptr) {
      std::fill_n(rows.out + first_rows[i] * width, steps[i].n_new * width, 0.0f);
    }
  }
  return OkStatus();
}

Status RowCodec::PlacePieces(std::span<const Piece> pieces, const CodecRows& rows) {
  CodecLayer& layer = *layers_[rows.layer_idx];
  Activations& a = activations_;
  a.tokens.clear();
  steps_.clear();
  int n_positions = 0;
  for (const Piece& piece : pieces) {
    SequenceCache* const cache = &piece.step.sequence->cache(rows.layer_idx);
    KVL_RETURN_IF_ERROR(cache->Extend(piece.step.n_new));
    const auto ids = std::span<const int32_t>(no_ids_).first(piece.step.n_new);
    steps_.push_back({.cache = cache, .token_ids = ids, .logits = SequenceStep::Logits::kNone});
    const int first = steps_.back().first_position();
    for (int t = 0; t < piece.step.n_new; ++t) {
      a.tokens.push_back({0, first + t, cache->has_whole_keys(0)});
    }
    n_positions = std::max(n_positions, first + piece.step.n_new);
  }
  a.n_tokens = std::ssize(a.tokens);
  a.are_turned = rows.are_turned && !layer.needs_unturned_rows();
  KVL_RETURN_IF_ERROR(layer.kind().rotations.Extend(n_positions));
  if (rows.are_turned && layer.needs_unturned_rows()) layer.kind().ropes.Extend(n_positions);
  return a.Reserve(widths_);
}

Status RowCodec::RunPieces(std::span<const Piece> pieces, const CodecRows& rows,
                           std::vector<Status>* failures) {
  KVL_RETURN_IF_ERROR(PlacePieces(pieces, rows));
  sequences_.Begin(steps_, rows.layer_idx);
  FillRows(pieces, rows);
  CodecLayer& layer = *layers_[rows.layer_idx];
  ForwardState state = {.sequences = &sequences_,
                        .activations = &activations_,
                        .backend = &machine_->backend(),
                        .profile = &profile_};
  LayerProgram& program = rows.q == nullptr ? *layer.storing() : layer.attending();
  const Status queued = program.Run(&state);
  KVL_ASSIGN_OR_RETURN(const StepReport report, machine_->backend().Finish());
  KVL_RETURN_IF_ERROR(queued);
  sequences_.Learn(report);
  for (size_t i = 0; i < pieces.size(); ++i) {
    (*failures)[pieces[i].number].Update(sequences_.failures()[i]);
  }
  if (rows.out != nullptr) FetchOutputs(pieces, rows);
  return OkStatus();
}

}  // namespace kvlathe
