#include "engine/prefixes/prefix_archive.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"

namespace kvlathe {
namespace {

// Files beyond these are as if they were not there; the least recently used first.
constexpr size_t kMostFiles = 4096;
// To read so many costs as much as to compute one.
constexpr int kTokensReadForOne = 32;
// A file goes when a newer one gives so much of it: of a conversation stays its last turn.
constexpr double kShareToReplace = 7.0 / 8;
// What nobody came for after this time is dropped.
constexpr double kForgottenAfterSeconds = 30;

bool BeginsWith(std::span<const int32_t> tokens, std::span<const int32_t> with) {
  return tokens.size() >= with.size() && CommonTokens(with, tokens) == std::ssize(with);
}

int MostShareableOf(const PrefixFacts& facts, const CacheLayout& layout, int n_most,
                    int64_t n_prompt) {
  return MostShareable(layout, {static_cast<int>(facts.tokens.size()), facts.n_prompt}, n_most,
                       n_prompt);
}

}  // namespace

class PrefixArchive::Writing {
 public:
  std::string name;
  std::vector<std::string> replaces;  // names of files
  // Of the saved sequence.
  int64_t n_bytes = 0;
  int64_t n_given = 0;
  bool is_aborted = false;
  std::deque<std::string> pieces;  // that wait; the first has the head before it
  int64_t file_bytes = 0;

  // Of the thread of the archive.
  std::optional<AtomicFile> file;
  Status status;

  bool is_complete() const { return n_given == n_bytes; }
  bool is_over() const { return is_aborted || (is_complete() && pieces.empty()); }
};

StatusOr<std::unique_ptr<PrefixArchive>> PrefixArchive::Open(ArchiveOptions options) {
  KVL_ASSIGN_OR_RETURN(PrefixFolder folder, PrefixFolder::Open(options.folder, options.max_bytes));
  KVL_RETURN_IF_ERROR(folder.List().status());
  folder.RemoveUnfinished();
  return std::unique_ptr<PrefixArchive>(new PrefixArchive(std::move(options), std::move(folder)));
}

PrefixArchive::PrefixArchive(ArchiveOptions options, PrefixFolder folder)
    : options_(std::move(options)), folder_(std::move(folder)) {
  LookThrough();
  thread_ = std::thread([this] { Run(); });
}

PrefixArchive::~PrefixArchive() {
  Flush();
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  has_work_.notify_all();
  thread_.join();
}

const std::string& PrefixArchive::PlaceOf(const PrefixKey& key) {
  std::string& place = places_[key.layout];
  if (place.empty()) place = kvlathe::PlaceOf(key);
  return place;
}

const std::string& PrefixArchive::TenantOf(const std::string& salt) {
  std::string& tenant = tenants_[salt];
  if (tenant.empty()) tenant = folder_.TenantOf(salt);
  return tenant;
}

PrefixArchive::Found PrefixArchive::Find(const PrefixQuestion& question, int64_t max_bytes,
                                         int n_known) {
  const std::string& place = PlaceOf(*question.key);
  const std::string& tenant = TenantOf(question.key->salt);
  Found best;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, entry] : entries_) {
    const PrefixFacts& facts = entry.facts;
    if (facts.place != place || facts.tenant != tenant || entry.n_bytes > max_bytes) continue;
    const int n_equal = CommonTokens(question.sharable(), facts.tokens);
    best.n_common = std::max(best.n_common, n_equal);
    const auto n_read = static_cast<int>(facts.tokens.size());
    const int n_least = n_known + std::max(kLeastSharedTokens, n_read / kTokensReadForOne);
    if (n_equal < n_least || n_equal <= best.offer.n_tokens) continue;
    const PrefixOffer offer = OfferOf(question, n_equal, facts.n_prompt, [&](int64_t n_prompt) {
      return MostShareableOf(facts, *question.key->layout, n_equal, n_prompt);
    });
    if (offer.n_tokens < n_least || offer.n_tokens <= best.offer.n_tokens) continue;
    best.name = name;
    best.offer = offer;
  }
  return best;
}

PrefixArchive::ReadState PrefixArchive::Read(const std::string& name, std::string* sequence,
                                             std::vector<int32_t>* tokens) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(name);
  const auto reading = readings_.find(name);
  if (entry == entries_.end()) {
    if (reading != readings_.end() && reading->second.is_done) readings_.erase(reading);
    return ReadState::kFailed;
  }
  if (!entry->second.is_written) return ReadState::kUnderWay;
  if (reading == readings_.end()) {
    readings_[name];
    to_read_.push_back(name);
    has_work_.notify_one();
    return ReadState::kUnderWay;
  }
  if (!reading->second.is_done) return ReadState::kUnderWay;
  StatusOr<std::string> read = std::move(reading->second.sequence);
  readings_.erase(reading);
  if (!read.ok()) return ReadState::kFailed;
  *sequence = *std::move(read);
  *tokens = entry->second.facts.tokens;
  return ReadState::kRead;
}

void PrefixArchive::Ignore(const std::string& name, const Status& why) {
  entries_.erase(name);
  if (why.code() == StatusCode::kNotFound) return;  // removed meanwhile
  ignored_.insert(name);
  ++stats_.n_ignored;
}

void PrefixArchive::Refuse(const std::string& name, const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    Ignore(name, why);
  }
  Tell(why);
}

void PrefixArchive::WaitForChange(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  has_changed_.wait_for(lock, at_most);
}

void PrefixArchive::NoteUse(const std::string& name) {
  const std::lock_guard lock(mutex_);
  used_.insert(name);  // for the next time that the thread wakes up
}

int PrefixArchive::CountHeld(const Draft& draft) {
  const std::string& place = PlaceOf(draft.key);
  const std::string& tenant = TenantOf(draft.key.salt);
  int most = 0;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, entry] : entries_) {
    const PrefixFacts& facts = entry.facts;
    if (facts.place != place || facts.tenant != tenant) continue;
    const int n_equal = CommonTokens(draft.tokens, facts.tokens);
    if (n_equal <= most) continue;
    most = std::max(most, MostShareableOf(facts, *draft.key.layout, n_equal, draft.n_prompt));
  }
  return most;
}

std::shared_ptr<PrefixArchive::Writing> PrefixArchive::Begin(const Draft& draft, int64_t n_bytes) {
  const CacheLayout& layout = *draft.key.layout;
  Entry entry;
  entry.facts = {.spec = draft.key.identity->spec,
                 .place = PlaceOf(draft.key),
                 .tenant = TenantOf(draft.key.salt),
                 .n_prompt = draft.n_prompt,
                 .reference_bytes = ReferenceBytes(layout, std::ssize(draft.tokens)),
                 .tokens = {draft.tokens.begin(), draft.tokens.end()}};
  entry.is_written = false;
  auto writing = std::make_shared<Writing>();
  writing->name = PrefixFileName(entry.facts);
  writing->n_bytes = n_bytes;
  writing->pieces.push_back(PrefixHead(entry.facts, n_bytes));
  entry.n_bytes = writing->file_bytes = std::ssize(writing->pieces.front()) + n_bytes;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, old] : entries_) {
    if (name == writing->name || !old.is_written || old.facts.place != entry.facts.place ||
        old.facts.tenant != entry.facts.tenant || !BeginsWith(draft.tokens, old.facts.tokens)) {
      continue;
    }
    const auto n_old = static_cast<int>(old.facts.tokens.size());
    const int n_given = MostShareableOf(entry.facts, layout, n_old, old.facts.n_prompt);
    if (n_given >= kShareToReplace * n_old) writing->replaces.push_back(name);
  }
  n_waiting_bytes_ += std::ssize(writing->pieces.front());
  entries_[writing->name] = std::move(entry);
  ignored_.erase(writing->name);
  writings_.push_back(writing);
  has_work_.notify_one();
  return writing;
}

void PrefixArchive::Append(const std::shared_ptr<Writing>& writing, std::string piece) {
  const std::lock_guard lock(mutex_);
  writing->n_given += std::ssize(piece);
  KVL_CHECK_LE(writing->n_given, writing->n_bytes);
  n_waiting_bytes_ += std::ssize(piece);
  writing->pieces.push_back(std::move(piece));
  has_work_.notify_one();
}

void PrefixArchive::Abort(const std::shared_ptr<Writing>& writing) {
  const std::lock_guard lock(mutex_);
  writing->is_aborted = true;
  has_work_.notify_one();
}

int64_t PrefixArchive::n_waiting_bytes() {
  const std::lock_guard lock(mutex_);
  return n_waiting_bytes_;
}

void PrefixArchive::CountLost() {
  const std::lock_guard lock(mutex_);
  ++stats_.n_lost;
}

void PrefixArchive::Flush() {
  std::unique_lock lock(mutex_);
  has_changed_.wait(lock, [this] { return writings_.empty(); });
}

ArchiveStats PrefixArchive::stats() const {
  const std::lock_guard lock(mutex_);
  ArchiveStats stats = stats_;
  for (const auto& [name, entry] : entries_) {
    if (!entry.is_written) continue;
    ++stats.n_files;
    stats.n_bytes += entry.n_bytes;
  }
  return stats;
}

void PrefixArchive::Tell(const Status& trouble) const {
  if (options_.on_trouble) options_.on_trouble(trouble);
}

void PrefixArchive::Run() {
  std::unique_lock lock(mutex_);
  Stopwatch since_looked;
  while (!stops_) {
    if (!to_read_.empty()) {
      ReadNext(&lock);
    } else if (!WriteNext(&lock)) {
      has_work_.wait_for(lock, options_.looks_every);
    }
    if (std::chrono::duration<double>(options_.looks_every).count() > since_looked.Seconds()) {
      continue;
    }
    DropForgottenReadings();
    lock.unlock();
    LookThrough();
    since_looked.Restart();
    lock.lock();
  }
}

void PrefixArchive::DropForgottenReadings() {
  std::erase_if(readings_, [](const auto& reading) {
    return reading.second.is_done && reading.second.since_asked.Seconds() > kForgottenAfterSeconds;
  });
}

// Takes notice of what others have written and removed, and tells them what was used here.
void PrefixArchive::LookThrough() {
  std::set<std::string> used;
  {
    const std::lock_guard lock(mutex_);
    used.swap(used_);
  }
  for (const std::string& name : used) folder_.NoteUse(name);
  StatusOr<std::vector<PrefixFolder::File>> files = folder_.List();
  if (!files.ok()) return;  // a folder that is gone holds nothing; writing tells of it
  const size_t n_files = std::min(files->size(), kMostFiles);
  std::ranges::partial_sort(*files, files->begin() + static_cast<int64_t>(n_files),
                            std::ranges::greater(), &PrefixFolder::File::used_at);
  files->resize(n_files);
  std::set<std::string> there;
  for (const PrefixFolder::File& file : *files) {
    there.insert(file.name);
    {
      const std::lock_guard lock(mutex_);
      if (entries_.contains(file.name) || ignored_.contains(file.name)) continue;
    }
    StatusOr<PrefixFacts> facts = folder_.ReadFacts(file.name);
    {
      const std::lock_guard lock(mutex_);
      if (facts.ok()) {
        entries_.try_emplace(file.name, Entry{*std::move(facts), file.n_bytes});
        continue;
      }
      Ignore(file.name, facts.status());
    }
    if (facts.status().code() != StatusCode::kNotFound) Tell(facts.status());
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const auto& entry) {
    return entry.second.is_written && !there.contains(entry.first);
  });
  std::erase_if(ignored_, [&](const auto& name) { return !there.contains(name); });
}

void PrefixArchive::ReadNext(std::unique_lock<std::mutex>* lock) {
  const std::string name = std::move(to_read_.front());
  to_read_.pop_front();
  lock->unlock();
  StatusOr<std::string> sequence = folder_.ReadSequence(name);
  if (sequence.ok()) {
    folder_.NoteUse(name);
  } else if (sequence.status().code() != StatusCode::kNotFound) {
    Tell(sequence.status());
  }
  lock->lock();
  if (sequence.ok()) {
    ++stats_.n_read;
  } else {
    Ignore(name, sequence.status());
  }
  Reading& reading = readings_[name];
  reading.is_done = true;
  reading.sequence = std::move(sequence);
  has_changed_.notify_all();
}

bool PrefixArchive::WriteNext(std::unique_lock<std::mutex>* lock) {
  const auto next = std::ranges::find_if(
      writings_, [](const auto& w) { return !w->pieces.empty() || w->is_over(); });
  if (next == writings_.end()) return false;
  const std::shared_ptr<Writing> writing = *next;
  const bool writes = !writing->is_aborted && writing->status.ok();
  std::deque<std::string> pieces = std::exchange(writing->pieces, {});
  const bool ends = writing->is_over();
  lock->unlock();
  int64_t n_bytes = 0;
  std::vector<std::string> removed;
  const auto write = [&]() -> Status {
    if (!writing->file.has_value()) {
      KVL_ASSIGN_OR_RETURN(removed, folder_.MakeRoomFor(writing->file_bytes));
      KVL_ASSIGN_OR_RETURN(AtomicFile file, folder_.Create(writing->name));
      writing->file.emplace(std::move(file));
    }
    for (const std::string& piece : pieces) {
      KVL_RETURN_IF_ERROR(writing->file->Write(piece.data(), std::ssize(piece)));
    }
    return ends ? writing->file->Commit() : OkStatus();
  };
  for (const std::string& piece : pieces) n_bytes += std::ssize(piece);
  const bool is_first_failure = writes && !(writing->status = write()).ok();
  if (is_first_failure) Tell(writing->status);
  const bool is_there = ends && writes && writing->status.ok();
  if (ends || !writing->status.ok()) writing->file.reset();
  if (is_there) {
    for (const std::string& old : writing->replaces) folder_.Remove(old).IgnoreError();
    removed.insert(removed.end(), writing->replaces.begin(), writing->replaces.end());
  }
  lock->lock();
  for (const std::string& name : removed) entries_.erase(name);
  n_waiting_bytes_ -= n_bytes;
  if (is_first_failure) ++stats_.n_failed_writes;
  if (ends) {
    std::erase(writings_, writing);
    if (is_there) {
      ++stats_.n_written;
      entries_[writing->name].is_written = true;
    } else {
      entries_.erase(writing->name);
    }
  }
  has_changed_.notify_all();
  return true;
}

}  // namespace kvlathe
