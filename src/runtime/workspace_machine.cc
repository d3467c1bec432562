// The machine that a model is opened on, and what its memory is for.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "runtime/workspace.h"

namespace kvlathe {
namespace {

// Of what a GPU has left. Chunks of the block pool are not always full, steps that compute logits
// of a whole text take more than those that generate, and kernels take room for partial results.
int64_t DeviceKvBudget(int64_t n_free) {
  constexpr int64_t kSlackDivisor = 16, kMostKernelBytes = int64_t{64} << 20, kKernelDivisor = 4;
  const int64_t for_kernels = std::min(kMostKernelBytes, n_free / kKernelDivisor);
  return std::max<int64_t>(1, n_free - n_free / kSlackDivisor - for_kernels);
}

// The verbs of Backend as a person calls what they do.
constexpr std::pair<std::string_view, std::string_view> kWordsOfVerbs[] = {
    {"Embed", "looking up embeddings"},
    {"TakeRows", "taking rows"},
    {"TakeChannel", "reading what decides what merges"},
    {"Project", "products with weights"},
    {"ProjectHeads", "products of heads"},
    {"Normalise", "norms"},
    {"Gate", "gates"},
    {"RotateAndMap", "RoPE and the maps of queries and keys"},
    {"Append", "appending rows"},
    {"Attend", "attention"},
    {"GatherGrams", "gathering a sequence's own basis"},
    {"MergeRows", "merging rows"},
    {"Prune", "dropping entries"},
    {"CutKeys", "cutting keys"},
    {"Seal", "sealing"},
    {"SealRotated", "sealing in a sequence's own basis"},
    {"Open", "opening sealed rows"},
    {"MeasureReencodings", "measuring what is sealed again"},
};

std::string_view WordsOf(std::string_view verb) {
  const auto* const found =
      std::ranges::find(kWordsOfVerbs, verb, &std::pair<std::string_view, std::string_view>::first);
  return found == std::end(kWordsOfVerbs) ? verb : found->second;
}

}  // namespace

Status Workspace::CheckDevice(const OpenOptions& options) {
  KVL_RETURN_IF_ERROR(CheckHasMachines(options.device));
  if (options.device.is_cpu()) {
    if (options.device_bytes == 0) return OkStatus();
    return Error(StatusCode::kInvalidArgument,
                 "--device-memory is of a GPU; give --device cuda, or --kv-memory for caches in "
                 "the computer's memory");
  }
  if (options.ranks == nullptr) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "--device {}: ranks share a model on processors alone; leave --tp and --pp out, or "
               "take --device cpu",
               DeviceText(options.device));
}

Status Workspace::ChooseMachine() {
  if (options_.device.is_cpu()) {
    const ExactProducts exact = {.weights = options_.exact_rows,
                                 .attention = options_.exact_attention};
    Communicator* const ranks = options_.ranks != nullptr ? options_.ranks->stage.get() : nullptr;
    machine_.machine = MakeMachine(threads_.get(), isa_, exact, ranks);
    return OkStatus();
  }
  const std::string device = DeviceText(options_.device);
  MachineRequest request = {
      .memory_bytes = options_.device_bytes, .pool = threads_.get(), .isa = isa_};
  request.on_host_verb = [on_note = options_.on_note, device](std::string_view verb) {
    if (!on_note) return;
    on_note({Note::Kind::kNote,
             fmt::format("{} has no kernel here for {}; the processors compute it, to which rows "
                         "travel",
                         device, WordsOf(verb))});
  };
  StatusOr<MadeMachine> made = MakeDeviceMachine(options_.device, std::move(request));
  if (!made.ok()) {
    return Error(made.status().code(), "--device {}: {}", device, MessageOf(made.status()));
  }
  machine_ = *std::move(made);
  return OkStatus();
}

void Workspace::set_exact_rows(bool exact) {
  options_.exact_rows = exact;
  machine_.machine->backend().set_exact_rows(exact);
}

Status Workspace::WithDevice(const Status& status) const {
  if (options_.device.is_cpu() || status.code() != StatusCode::kResourceExhausted) return status;
  return Error(status.code(), "{}, of which the model may take {}: {}", machine_.name,
               FormatBytes(machine_.memory_bytes), MessageOf(status));
}

int64_t Workspace::kv_budget_bytes() const {
  if (options_.device.is_cpu() || options_.kv_budget_bytes > 0) return kv_budget_bytes_;
  return DeviceKvBudget(machine_.machine->memory().n_free_bytes());
}

std::string Workspace::device_name() const {
  return options_.device.is_cpu() ? ProcessorName(isa_) : machine_.name;
}

Status Workspace::KeepRoomForSteps(Model* model) const {
  if (options_.device.is_cpu()) return OkStatus();
  const int n_tokens = std::min(options_.step_tokens, context_tokens_);
  KVL_RETURN_IF_ERROR(WithDevice(model->ReserveSteps(n_tokens)));
  const int64_t n_free = machine_.machine->memory().n_free_bytes();
  if (options_.kv_budget_bytes <= n_free) return OkStatus();
  return Error(StatusCode::kResourceExhausted,
               "--kv-memory {}: {} has {} left behind weights and a step of {} tokens; ask for "
               "less, or leave --kv-memory out",
               FormatBytes(options_.kv_budget_bytes), machine_.name, FormatBytes(n_free), n_tokens);
}

void Workspace::NoteDeviceMemory() const {
  if (options_.device.is_cpu()) return;
  const int64_t n_used = machine_.memory_bytes - machine_.machine->memory().n_free_bytes();
  Notify(Note::Kind::kNote,
         fmt::format("running on {}, {}: {}, of which {} hold weights", DeviceText(options_.device),
                     machine_.name, FormatBytes(machine_.memory_bytes), FormatBytes(n_used)));
}

}  // namespace kvlathe
