// The prefix archive keeps entries of the prefix store on disk, where they outlive the process and
// serve all that use the folder.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/prefixes/prefix_folder.h"
#include "engine/prefixes/prefix_question.h"

namespace kvlathe {

struct ArchiveOptions {
  std::string folder;
  int64_t max_bytes = int64_t{10} << 30;  // of all files in the folder
  // How long an entry is there before it is written: of a request that goes on, the next one takes
  // its place meanwhile.
  std::chrono::milliseconds settles_in{2000};
  // How often the folder is looked through for what others have written and removed.
  std::chrono::milliseconds looks_every{500};
  // Told of each file that is ignored and of what cannot be written, on the thread of the archive.
  std::function<void(const Status&)> on_trouble;
};

struct ArchiveStats {
  int64_t n_files = 0;          // that can be read, of all models
  int64_t n_bytes = 0;          // of them
  int64_t n_written = 0;        // files by this process
  int64_t n_read = 0;           // likewise
  int64_t n_ignored = 0;        // files that were torn, foreign or unreadable
  int64_t n_failed_writes = 0;  // full or unwritable disk
  int64_t n_lost = 0;           // entries that were given up in memory before they were written
};

// The bytes of entries are read and written on a thread of the archive's own, in whole files
// (prefix_folder.h): a disk that is slow holds nobody up, and one that is full or unreadable costs
// what it would have given. The thread that steps the engine copies what it gives and takes. Files
// are read into memory rather than mapped, because a page that cannot be read ends the process.
//
// Public calls are for the thread that steps, but for stats(), which any may make.
class PrefixArchive {
 public:
  // Looks through the folder, which is made where it is not there.
  static StatusOr<std::unique_ptr<PrefixArchive>> Open(ArchiveOptions options);
  ~PrefixArchive();  // when all that was begun is written
  PrefixArchive(const PrefixArchive&) = delete;
  PrefixArchive& operator=(const PrefixArchive&) = delete;

  const ArchiveOptions& options() const { return options_; }

  // --- Reading. ---

  struct Found {
    std::string name;  // of the file; empty: there is none
    PrefixOffer offer;
    // The most tokens that a file has in common with the question, whether or not it can give the
    // cache behind them.
    int n_common = 0;
  };
  // The file that gives the most to the question, of those up to max_bytes that give so many tokens
  // more than n_known that reading them is worth it.
  Found Find(const PrefixQuestion& question, int64_t max_bytes, int n_known);

  enum class ReadState { kUnderWay, kRead, kFailed };
  // Has the file read, or takes what was read: a saved sequence, which nobody has checked, and the
  // tokens of its entry. A file that is still being written is read once it is there.
  ReadState Read(const std::string& name, std::string* sequence, std::vector<int32_t>* tokens);
  // Says that what was read is not what its name and head promise. It is not found again.
  void Refuse(const std::string& name, const Status& why);
  // Until something has been read or written, or the time is over.
  void WaitForChange(std::chrono::milliseconds at_most);
  // Says that the entry of a file was used, which is in memory too.
  void NoteUse(const std::string& name);

  // --- Writing. ---

  // An entry to be written.
  struct Draft {
    PrefixKey key;
    std::span<const int32_t> tokens;  // as many as the cache holds
    int64_t n_prompt = 0;             // of the cache
  };
  // How many of its tokens the files give that are there or being written.
  int CountHeld(const Draft& draft);

  class Writing;
  // Begins a file, whose saved sequence of n_bytes follows piece by piece. Files that it gives
  // nearly as much as are removed once it is there.
  std::shared_ptr<Writing> Begin(const Draft& draft, int64_t n_bytes);
  void Append(const std::shared_ptr<Writing>& writing, std::string piece);
  // The rest does not follow.
  void Abort(const std::shared_ptr<Writing>& writing);
  // Bytes that have been given and not written yet.
  int64_t n_waiting_bytes();
  void CountLost();
  // Until all that was given is written, or failed.
  void Flush();

  ArchiveStats stats() const;

 private:
  // A file that is there, or will be.
  struct Entry {
    PrefixFacts facts;
    int64_t n_bytes = 0;
    bool is_written = true;
  };
  struct Reading {
    bool is_done = false;
    StatusOr<std::string> sequence = std::string();
    Stopwatch since_asked;
  };

  PrefixArchive(ArchiveOptions options, PrefixFolder folder);
  const std::string& PlaceOf(const PrefixKey& key);
  const std::string& TenantOf(const std::string& salt);

  // On the thread of the archive, or before there is one.
  void Run();
  void LookThrough();
  void ReadNext(std::unique_lock<std::mutex>* lock);
  // False where no writing has anything to write.
  bool WriteNext(std::unique_lock<std::mutex>* lock);
  void DropForgottenReadings();
  // The lock is held.
  void Ignore(const std::string& name, const Status& why);
  void Tell(const Status& trouble) const;

  const ArchiveOptions options_;
  const PrefixFolder folder_;
  // Of the thread that steps: digests take a while.
  std::map<const CacheLayout*, std::string> places_;
  std::map<std::string, std::string> tenants_;

  mutable std::mutex mutex_;
  std::condition_variable has_work_;      // for the thread
  std::condition_variable has_changed_;   // by the thread
  std::map<std::string, Entry> entries_;  // by name of the file
  std::set<std::string> ignored_;         // names of files
  std::map<std::string, Reading> readings_;
  std::deque<std::string> to_read_;
  std::set<std::string> used_;  // names of files whose entries were
  std::deque<std::shared_ptr<Writing>> writings_;
  int64_t n_waiting_bytes_ = 0;
  ArchiveStats stats_;
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace kvlathe
