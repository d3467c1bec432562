#include "python/held_model.h"

#include <nanobind/stl/string.h>

#include <utility>

#include "runtime/cache_loss.h"

namespace kvlathe::python {
namespace {

namespace nb = nanobind;

const char* NameOf(Note::Kind kind) {
  switch (kind) {
    case Note::Kind::kNote:
      return "note";
    case Note::Kind::kWarning:
      return "warning";
    case Note::Kind::kBegun:
      return "begun";
    case Note::Kind::kDone:
      return "done";
  }
  return "note";
}

// Of what a listener raised: work goes on, unless it was Ctrl-C, which is for whoever waits for the
// work.
void Drop(nb::python_error* error, const char* where) {
  if (error->matches(PyExc_KeyboardInterrupt)) {
    PyErr_SetInterrupt();
  } else {
    error->discard_as_unraisable(where);
  }
}

StatusError Closed() {
  return StatusError(
      Error(StatusCode::kFailedPrecondition, "the model is closed; open it anew with kvlathe.LLM"));
}

StatusOr<ServingOptions> OptionsOf(const ModelSettings& settings,
                                   const std::shared_ptr<Listeners>& listeners) {
  ServingOptions options;
  OpenOptions& open = options.open;
  open.model = settings.model;
  open.kv = settings.kv;
  KVL_ASSIGN_OR_RETURN(open.device, ParseDevice(settings.device));
  open.basis = settings.basis;
  open.kv_budget_bytes = settings.kv_budget_bytes;
  open.step_tokens = settings.max_num_batched_tokens;
  open.row_type = settings.computes_in_f32 ? DType::kF32 : DType::kBf16;
  open.exact_rows = settings.exact_rows;
  open.exact_attention = settings.exact_attention;
  open.ctx_size = settings.max_model_len;
  open.n_threads = settings.n_threads;
  open.deterministic = settings.deterministic;
  open.on_note = [listeners](const Note& note) { listeners->Tell(note); };
  open.progress = [listeners](const std::string& what, double fraction) {
    listeners->Progress(what, fraction);
  };
  options.chat.choice = settings.chat_template;
  return options;
}

// The interpreter is taken to let go of what is Python's.
std::shared_ptr<Listeners> MakeListeners(nb::object on_note) {
  return {new Listeners(std::move(on_note)), [](Listeners* listeners) {
            const nb::gil_scoped_acquire acquired;
            delete listeners;
          }};
}

}  // namespace

void Listeners::Tell(const Note& note) const {
  const nb::gil_scoped_acquire acquired;
  try {
    if (!on_note_.is_none()) on_note_(NameOf(note.kind), note.text);
  } catch (nb::python_error& error) {
    Drop(&error, "a note of kvlathe");
  }
}

void Listeners::set_on_progress(nb::object on_progress) {
  on_progress_ = std::move(on_progress);
  has_progress_ = !on_progress_.is_none();
}

void Listeners::Progress(const std::string& what, double fraction) const {
  if (!has_progress_) return;
  const nb::gil_scoped_acquire acquired;
  try {
    if (has_progress_) on_progress_(what, fraction);
  } catch (nb::python_error& error) {
    Drop(&error, "progress of kvlathe");
  }
}

std::shared_ptr<HeldModel> HeldModel::Open(const ModelSettings& settings, nb::object on_note) {
  std::shared_ptr<HeldModel> model(new HeldModel(settings, MakeListeners(std::move(on_note))));
  const Turn turn(&model->turns_);
  ServingOptions options = ValueOrThrow(OptionsOf(settings, model->listeners_));
  const auto interrupts = std::make_shared<Interrupts>();  // of a calibration, which takes long
  options.open.interrupt = [interrupts] { return interrupts->Ask(); };
  model->serving_ = interrupts->Value(OpenServingModel(options));
  model->serving_->workspace->weights().set_interrupt(nullptr);
  model->StartEngine();
  return model;
}

// In a child of fork the workers that it would wait for are not there: it is left as it is.
HeldModel::~HeldModel() {
  if (getpid() == process_) {
    Close();
    return;
  }
  static_cast<void>(engine_.release());
  new std::shared_ptr<ServingModel>(std::move(serving_));
  new std::vector<std::unique_ptr<SequenceCache>>(std::move(dropped_));
}

std::shared_ptr<ServingModel> HeldModel::serving() const {
  const std::lock_guard lock(mutex_);
  if (serving_ == nullptr) throw Closed();
  return serving_;
}

bool HeldModel::is_closed() const {
  const std::lock_guard lock(mutex_);
  return serving_ == nullptr;
}

Engine* HeldModel::engine() {
  if (engine_ == nullptr) throw Closed();
  return engine_.get();
}

void HeldModel::StartEngine() {
  std::vector<Model*> levels;
  for (const SpecModel& level : serving_->levels) levels.push_back(level.model.get());
  EngineOptions options;
  options.max_batch_tokens = settings_.max_num_batched_tokens;
  options.max_sequences = settings_.max_num_seqs;
  options.prefix_bytes = settings_.prefix_bytes;
  engine_.reset();
  engine_ = std::make_unique<Engine>(std::move(levels), &*serving_->pool, options);
}

int HeldModel::LevelOf(const std::string& kv) {
  std::vector<SpecModel>& levels = serving()->levels;
  const Spec spec = ValueOrThrow(Spec::Parse(kv));
  for (size_t i = 0; i < levels.size(); ++i) {
    const bool is_it = levels[i].spec.text() == kv || levels[i].spec.ToString() == spec.ToString();
    if (is_it) return static_cast<int>(i);
  }
  if (engine()->n_running() + engine()->n_waiting() > 0) {
    throw StatusError(
        Error(StatusCode::kFailedPrecondition,
              "kv '{}' was not named when the model was opened, and requests are running; name it "
              "there, or wait for them",
              kv));
  }
  Measuring measuring(this, /*exact_rows=*/false);
  workspace()->Expect(spec);
  SpecModel made = measuring.Value(workspace()->MakeModel(kv));
  WarnOfLoss(workspace(), {&made, 1});
  measuring.Check(OkStatus());
  levels.push_back(std::move(made));
  StartEngine();
  return static_cast<int>(levels.size()) - 1;
}

void HeldModel::Close() {
  engine_.reset();
  std::shared_ptr<ServingModel> last;
  std::vector<std::unique_ptr<SequenceCache>> dropped;
  const std::lock_guard lock(mutex_);
  for (const std::weak_ptr<HeldSession>& held : sessions_) {
    if (const std::shared_ptr<HeldSession> session = held.lock()) session->session.cache.reset();
  }
  sessions_.clear();
  dropped_.clear();
  serving_.reset();
}

void HeldModel::Register(const std::shared_ptr<HeldSession>& session) {
  const std::lock_guard lock(mutex_);
  std::erase_if(sessions_, [](const auto& held) { return held.expired(); });
  sessions_.push_back(session);
}

void HeldModel::Drop(std::unique_ptr<SequenceCache> cache) {
  const std::lock_guard lock(mutex_);
  dropped_.push_back(std::move(cache));
}

void HeldModel::FreeDropped() {
  std::vector<std::unique_ptr<SequenceCache>> dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(dropped_);
  dropped.clear();
}

void HeldSession::Reset() {
  if (session.cache != nullptr) model->Drop(std::move(session.cache));
  session = {};
  kv_bytes = 0;
}

void HeldSession::CheckIsFree() const {
  if (is_closed || model->is_closed()) {
    throw StatusError(
        Error(StatusCode::kFailedPrecondition, "the session is closed; begin another one"));
  }
  if (!is_busy) return;
  throw StatusError(Error(StatusCode::kFailedPrecondition,
                          "the session is in use by a request; wait until that has finished"));
}

Status Interrupts::Ask() {
  if (raised_ == nullptr) {
    try {
      signals_.Check();
      return OkStatus();
    } catch (...) {
      raised_ = std::current_exception();
    }
  }
  return Error(StatusCode::kCancelled, "interrupted");
}

void Interrupts::Check(const Status& status) {
  if (raised_ != nullptr) std::rethrow_exception(std::exchange(raised_, nullptr));
  ThrowIfError(status);
}

Measuring::Measuring(HeldModel* model, bool exact_rows) : serving_(model->serving()) {
  Workspace* const workspace = serving_->workspace.get();
  was_exact_ = workspace->options().exact_rows;
  workspace->set_exact_rows(was_exact_ || exact_rows);
  workspace->weights().set_interrupt([this] { return interrupts_.Ask(); });
}

Measuring::~Measuring() {
  serving_->workspace->weights().set_interrupt(nullptr);
  serving_->workspace->set_exact_rows(was_exact_);
}

}  // namespace kvlathe::python
