// A model that Python holds: opened once, with its caches, an engine, and sessions of its own.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "python/errors.h"
#include "python/guards.h"
#include "runtime/serving_model.h"

namespace kvlathe::python {

// What kvlathe.LLM is given (python/kvlathe/llm.py says what each means).
struct ModelSettings {
  std::string model;
  std::vector<std::string> kv;
  int max_model_len = 0;
  int n_threads = 0;
  std::string device = "cpu";
  bool computes_in_f32 = false;
  std::string basis;
  int64_t kv_budget_bytes = 0;
  int max_num_seqs = 64;
  int max_num_batched_tokens = 512;
  int64_t prefix_bytes = 0;
  bool deterministic = false;
  bool exact_rows = false;
  bool exact_attention = false;
  std::string chat_template;
};

// Whom the library tells of its work. Copies are shared by threads without the interpreter.
class Listeners {
 public:
  // on_note(kind, text); on_progress(what, fraction) or None, which may be changed.
  explicit Listeners(nanobind::object on_note) : on_note_(std::move(on_note)) {}

  // All take the interpreter. What Python raises is dropped: work goes on.
  void Tell(const Note& note) const;
  void Progress(const std::string& what, double fraction) const;
  // With the interpreter.
  void set_on_progress(nanobind::object on_progress);

 private:
  nanobind::object on_note_, on_progress_;
  std::atomic<bool> has_progress_ = false;  // what needs no interpreter to be known
};

struct HeldSession;

class HeldModel : public std::enable_shared_from_this<HeldModel> {
 public:
  static std::shared_ptr<HeldModel> Open(const ModelSettings& settings, nanobind::object on_note);
  // Without a turn, by whoever holds the last reference.
  ~HeldModel();

  Turns* turns() { return &turns_; }
  Listeners& listeners() { return *listeners_; }
  const ModelSettings& settings() const { return settings_; }
  // For any thread, which keeps what it gets as long as it uses it. Throws where it is closed.
  std::shared_ptr<ServingModel> serving() const;
  bool is_closed() const;

  // --- While the turn is the caller's. They throw where it is closed. ---

  Workspace* workspace() { return serving()->workspace.get(); }
  Engine* engine();
  BlockPool* pool() { return &*serving()->pool; }
  // The level of a cache; one that is not there yet is made, unless requests are running.
  int LevelOf(const std::string& kv);
  SpecModel& level(int index) { return serving()->levels[index]; }
  // Frees what is there: whoever waits for an answer gets an exception.
  void Close();
  // Caches of sessions that nobody has any more go back to the pool.
  void FreeDropped();

  // For any thread.
  void Register(const std::shared_ptr<HeldSession>& session);
  void Drop(std::unique_ptr<SequenceCache> cache);

 private:
  HeldModel(const ModelSettings& settings, std::shared_ptr<Listeners> listeners)
      : settings_(settings), listeners_(std::move(listeners)) {}
  void StartEngine();

  Turns turns_;
  ModelSettings settings_;
  std::shared_ptr<Listeners> listeners_;
  mutable std::mutex mutex_;  // of what follows, but for the engine
  std::shared_ptr<ServingModel> serving_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::weak_ptr<HeldSession>> sessions_;
  std::vector<std::unique_ptr<SequenceCache>> dropped_;
  pid_t process_ = getpid();
};

// A sequence between two requests, as Python holds it.
struct HeldSession {
  explicit HeldSession(std::shared_ptr<HeldModel> of) : model(std::move(of)) {}
  ~HeldSession() { Reset(); }

  // For any thread while no request has it.
  void Reset();
  // Throws while a request has it, or once it is closed.
  void CheckIsFree() const;

  std::shared_ptr<HeldModel> model;
  Session session;
  std::string kv;  // of its level
  int64_t kv_bytes = 0;
  bool is_busy = false;
  bool is_closed = false;
};

// Has a library that was told to ask it stop where a signal handler of Python raises something.
class Interrupts {
 public:
  // Without the interpreter: kCancelled once something was raised.
  Status Ask();
  // Throws what was raised, or the error.
  void Check(const Status& status);
  template <typename T>
  T Value(StatusOr<T> value) {
    Check(value.status());
    return *std::move(value);
  }

 private:
  Signals signals_;
  std::exception_ptr raised_;
};

// Asks for signals before each step of a model while it lives, and measures exactly where
// `exact_rows` says so. With the turn.
class Measuring {
 public:
  Measuring(HeldModel* model, bool exact_rows);
  ~Measuring();
  Measuring(const Measuring&) = delete;
  Measuring& operator=(const Measuring&) = delete;

  // Interrupts::Check.
  void Check(const Status& status) { interrupts_.Check(status); }
  template <typename T>
  T Value(StatusOr<T> value) {
    return interrupts_.Value(std::move(value));
  }

 private:
  std::shared_ptr<ServingModel> serving_;
  Interrupts interrupts_;
  bool was_exact_;
};

}  // namespace kvlathe::python
