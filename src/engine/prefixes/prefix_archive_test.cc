// What prefixes on disk give back, and what damaged, foreign and missing files and full disks cost.
#include "engine/prefixes/prefix_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "engine/engine.h"
#include "engine/small_model.h"
#include "io/file_size_limit.h"
#include "io/files.h"
#include "io/scratch_folder.h"
#include "kv/blocks/host_pool_fixture.h"
#include "model/tensor_source.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kArchivePoolBytes = int64_t{64} << 20;

std::vector<int32_t> Joined(std::vector<int32_t> tokens, const std::vector<int32_t>& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (path.ends_with(kPrefixFileEnding)) paths.push_back(path);
  }
  return paths;
}

mode_t ModeOf(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0);
  return info.st_mode & 0777;
}

// --- Heads of files. ---

PrefixFacts SomeFacts() {
  return {.spec = "none",
          .place = DigestOf({"place"}),
          .tenant = DigestOf({"tenant"}),
          .n_prompt = 7,
          .reference_bytes = 1000,
          .tokens = {5, 6, 7, 8}};
}

StatusOr<PrefixFacts> ParsedHead(const std::string& file) {
  const auto bytes = std::as_bytes(std::span(file));
  const auto start = bytes.first(std::min<size_t>(kPrefixStartBytes, bytes.size()));
  KVL_ASSIGN_OR_RETURN(const int64_t n_head, PrefixHeadBytes(start, std::ssize(file), "file"));
  return ParsePrefixHead(bytes.first(static_cast<size_t>(n_head)), "file");
}

TEST(PrefixFileTest, AHeadSaysWhatItWasMadeOf) {
  const PrefixFacts facts = SomeFacts();
  const StatusOr<PrefixFacts> parsed = ParsedHead(PrefixHead(facts, 3) + "abc");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->spec, facts.spec);
  EXPECT_EQ(parsed->place, facts.place);
  EXPECT_EQ(parsed->tenant, facts.tenant);
  EXPECT_EQ(parsed->n_prompt, facts.n_prompt);
  EXPECT_EQ(parsed->reference_bytes, facts.reference_bytes);
  EXPECT_EQ(parsed->tokens, facts.tokens);
}

TEST(PrefixFileTest, NoFlippedBitOfAHeadAndNoTornFileIsRead) {
  const std::string file = PrefixHead(SomeFacts(), 3) + "abc";
  for (size_t i = 0; i + 3 < file.size(); ++i) {
    std::string flipped = file;
    flipped[i] ^= 1;
    EXPECT_FALSE(ParsedHead(flipped).ok()) << i;
  }
  for (size_t n = 0; n < file.size(); ++n) EXPECT_FALSE(ParsedHead(file.substr(0, n)).ok()) << n;
}

TEST(PrefixFileTest, NamesAreOfWhatAnEntryIs) {
  const std::string name = PrefixFileName(SomeFacts());
  const auto changed = [](auto change) {
    PrefixFacts facts = SomeFacts();
    change(&facts);
    return PrefixFileName(facts);
  };
  EXPECT_EQ(name, PrefixFileName(SomeFacts()));
  EXPECT_NE(name, changed([](auto* f) { f->tokens.back() = 9; }));
  EXPECT_NE(name, changed([](auto* f) { f->tenant = DigestOf({"other"}); }));
  EXPECT_NE(name, changed([](auto* f) { f->place = DigestOf({"other"}); }));
  EXPECT_NE(name, changed([](auto* f) { f->n_prompt = 8; }));
}

// --- The folder. ---

TEST(PrefixFolderTest, IsTheOwnersAloneAndOneForAllThatOpenIt) {
  const ScratchFolder scratch;
  const std::string path = scratch / "some/prefixes";
  const auto one = PrefixFolder::Open(path, 100), other = PrefixFolder::Open(path, 100);
  ASSERT_TRUE(one.ok() && other.ok()) << one.status() << other.status();
  EXPECT_EQ(one->TenantOf("key"), other->TenantOf("key"));
  EXPECT_NE(one->TenantOf("key"), one->TenantOf("other key"));
  const auto elsewhere = PrefixFolder::Open(scratch / "elsewhere", 100);
  ASSERT_TRUE(elsewhere.ok());
  EXPECT_NE(one->TenantOf("key"), elsewhere->TenantOf("key"));
  EXPECT_EQ(ModeOf(path), 0700u);
  auto file = one->Create("a.kvprefix");
  ASSERT_TRUE(file.ok() && file->Write("abc", 3).ok() && file->Commit().ok());
  for (const auto& entry : fs::directory_iterator(path)) {
    EXPECT_EQ(ModeOf(entry.path().string()), 0600u) << entry.path();
  }
}

TEST(PrefixFolderTest, WhatWasUsedLeastRecentlyMakesRoom) {
  const ScratchFolder scratch;
  const auto folder = PrefixFolder::Open(scratch / "prefixes", 10);
  ASSERT_TRUE(folder.ok());
  for (const char* name : {"a.kvprefix", "b.kvprefix", "c.kvprefix"}) {
    ASSERT_TRUE(WriteFileAtomically(folder->PathOf(name), "abc").ok());
    const auto when = fs::file_time_type::clock::now() - std::chrono::hours('d' - name[0]);
    fs::last_write_time(folder->PathOf(name), when);
  }
  folder->NoteUse("a.kvprefix");
  ASSERT_TRUE(folder->MakeRoomFor(4).ok());
  EXPECT_TRUE(FileExists(folder->PathOf("a.kvprefix")));
  EXPECT_FALSE(FileExists(folder->PathOf("b.kvprefix")));
  EXPECT_TRUE(FileExists(folder->PathOf("c.kvprefix")));
  EXPECT_EQ(folder->MakeRoomFor(11).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(folder->List()->size(), 2u);
}

// --- Requests. ---

class FillCounter : public EngineObserver {
 public:
  void OnStepEnded(const StepWork& work, const EngineLoad&, double, const Status&) override {
    n_fill_tokens += work.n_fill_tokens;
  }
  void OnPreempted(RequestId) override { ++n_preempted; }
  int n_fill_tokens = 0;
  int n_preempted = 0;
};

class ArchivedEngineTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto weights =
        ModelWeights::Load(WideConfig(/*head_dim=*/32), DType::kBf16, MakeRandomSource(3),
                           MakeMachine(&threads_, SelectIsa().value()));
    ASSERT_TRUE(weights.ok()) << weights.status();
    model_ = MakeSmallModel(*std::move(weights), GetParam());
  }

  // A process: a pool, an archive, an engine.
  struct Server {
    explicit Server(int64_t pool_bytes) : pool(pool_bytes) {}
    HostPool pool;
    FillCounter observer;
    std::unique_ptr<PrefixArchive> archive;
    std::unique_ptr<Engine> engine;
  };
  ArchiveOptions Options() {
    return {.folder = folder_,
            .settles_in = std::chrono::milliseconds(0),
            .looks_every = std::chrono::milliseconds(20),
            .on_trouble = [this](const Status&) { ++n_troubles_; }};
  }
  std::unique_ptr<Server> Start(int64_t pool_bytes = kArchivePoolBytes) {
    return StartWith(Options(), pool_bytes);
  }
  std::unique_ptr<Server> StartWith(ArchiveOptions options,
                                    int64_t pool_bytes = kArchivePoolBytes) {
    auto server = std::make_unique<Server>(pool_bytes);
    auto archive = PrefixArchive::Open(std::move(options));
    EXPECT_TRUE(archive.ok()) << archive.status();
    server->archive = *std::move(archive);
    server->engine = std::make_unique<Engine>(std::vector<Model*>{model_.get()}, &server->pool,
                                              EngineOptions{.prefix_bytes = pool_bytes / 2,
                                                            .archive = server->archive.get(),
                                                            .identities = {{GetParam(), "a model"}},
                                                            .observer = &server->observer});
    return server;
  }
  static Request MakeRequest(std::vector<int32_t> prompt, int max_tokens = 8,
                             const std::string& salt = {}) {
    Request request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    request.prefix_salt = salt;
    return request;
  }
  static std::vector<RequestOutcome> RunAll(Engine* engine, const std::vector<Request>& requests) {
    std::vector<RequestOutcome> outcomes(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const auto id = engine->Submit(
          requests[i], nullptr, [&outcomes, i](auto, const RequestOutcome& o) { outcomes[i] = o; });
      EXPECT_TRUE(id.ok()) << id.status();
    }
    EXPECT_TRUE(engine->RunUntilIdle().ok());
    return outcomes;
  }
  static RequestOutcome Run(Server* server, const Request& request) {
    return RunAll(server->engine.get(), {request})[0];
  }
  std::vector<int32_t> Alone(const Request& request) {
    HostPool pool(kArchivePoolBytes);
    Engine engine({model_.get()}, &pool, {});
    return RunAll(&engine, {request})[0].tokens;
  }

  ThreadPool threads_{1};
  std::unique_ptr<Model> model_;
  const ScratchFolder scratch_;
  const std::string folder_ = scratch_ / "prefixes";
  std::atomic<int> n_troubles_ = 0;
};

TEST_P(ArchivedEngineTest, APromptIsNotReadAgainAfterARestart) {
  const Request request = MakeRequest(RandomPrompt(300, 1));
  RequestOutcome first = Run(Start().get(), request);
  ASSERT_EQ(FilesIn(folder_).size(), 1u);
  for (int restart = 0; restart < 3; ++restart) {
    const auto server = Start();
    const RequestOutcome again = Run(server.get(), request);
    EXPECT_EQ(again.n_prefix_tokens, 299);
    EXPECT_EQ(server->observer.n_fill_tokens, 1);
    EXPECT_EQ(again.tokens, first.tokens);
    EXPECT_EQ(again.kv_bytes.total(), first.kv_bytes.total());
    EXPECT_EQ(server->archive->stats().n_read, 1);
    EXPECT_EQ(server->archive->stats().n_written, 0);
  }
  EXPECT_EQ(first.tokens, Alone(request));
  EXPECT_EQ(n_troubles_, 0);
}

TEST_P(ArchivedEngineTest, SeveralRequestsForOneFileReadItOnce) {
  const Request request = MakeRequest(RandomPrompt(300, 1));
  Run(Start().get(), request);
  const auto server = Start();
  for (const RequestOutcome& outcome : RunAll(server->engine.get(), {5, request})) {
    EXPECT_EQ(outcome.tokens, Alone(request));
  }
  EXPECT_EQ(server->observer.n_fill_tokens, 5);
  EXPECT_EQ(server->archive->stats().n_read, 1);
}

TEST_P(ArchivedEngineTest, AConversationGoesOnAndLeavesItsLastTurn) {
  std::vector<int32_t> text = RandomPrompt(500, 1);
  for (int turn = 0; turn < 8; ++turn) {
    const size_t n_before = text.size();
    text = Joined(std::move(text), RandomPrompt(30 + turn, 7));
    const auto server = Start();
    const RequestOutcome outcome = Run(server.get(), MakeRequest(text, 20));
    // What a file lacks of it in the end is written, but for a few tokens.
    if (turn > 0) EXPECT_GT(outcome.n_prefix_tokens + PrefixStore::kLeastTokensOnDisk, n_before);
    text = Joined(std::move(text), outcome.tokens);
  }
  // Ends of prompts and of answers made 16 entries. Where runs are sealed neither takes the other's
  // place.
  EXPECT_LE(FilesIn(folder_).size(), model_->layout().seal.has_value() ? 8u : 2u);
}

TEST_P(ArchivedEngineTest, AnotherQuestionAfterADocumentBeginsBehindIt) {
  const std::vector<int32_t> document = RandomPrompt(640, 1);
  Run(Start().get(), MakeRequest(Joined(document, RandomPrompt(60, 2))));
  const Request other = MakeRequest(Joined(document, RandomPrompt(60, 3)));
  const auto server = Start();
  const RequestOutcome outcome = Run(server.get(), other);
  EXPECT_GE(outcome.n_prefix_tokens, 512);
  EXPECT_EQ(outcome.tokens, Alone(other));
}

TEST_P(ArchivedEngineTest, ALongFileIsNotReadForFewTokens) {
  const std::vector<int32_t> document = RandomPrompt(700, 1);
  Run(Start().get(), MakeRequest(document));
  const auto server = Start();
  const std::vector<int32_t> begin(document.begin(), document.begin() + 20);
  EXPECT_EQ(Run(server.get(), MakeRequest(Joined(begin, RandomPrompt(30, 2)))).n_prefix_tokens, 0);
  EXPECT_EQ(server->archive->stats().n_read, 0);
}

TEST_P(ArchivedEngineTest, OthersFindNothingAndTheirKeysAreNotInTheFiles) {
  const std::string key = "sk-a-key-of-somebody";
  const std::vector<int32_t> prompt = RandomPrompt(300, 1);
  Run(Start().get(), MakeRequest(prompt, 8, key));
  const auto server = Start();
  EXPECT_EQ(Run(server.get(), MakeRequest(prompt, 8, "another key")).n_prefix_tokens, 0);
  EXPECT_EQ(Run(server.get(), MakeRequest(prompt)).n_prefix_tokens, 0);
  EXPECT_EQ(Run(server.get(), MakeRequest(prompt, 8, key)).n_prefix_tokens, 299);
  for (const std::string& path : FilesIn(folder_)) {
    EXPECT_THAT(*ReadTextFile(path), testing::Not(testing::HasSubstr(key)));
  }
}

TEST_P(ArchivedEngineTest, AnotherModelFindsNothing) {
  const Request request = MakeRequest(RandomPrompt(300, 1));
  Run(Start().get(), request);
  auto server = Start();
  server->engine =
      std::make_unique<Engine>(std::vector<Model*>{model_.get()}, &server->pool,
                               EngineOptions{.prefix_bytes = kArchivePoolBytes / 2,
                                             .archive = server->archive.get(),
                                             .identities = {{GetParam(), "another model"}}});
  EXPECT_EQ(Run(server.get(), request).n_prefix_tokens, 0);
}

TEST_P(ArchivedEngineTest, DamagedFilesAreIgnoredAndCounted) {
  const Request request = MakeRequest(RandomPrompt(300, 1));
  Run(Start().get(), request);
  const std::string path = FilesIn(folder_)[0];
  const std::string bytes = *ReadTextFile(path);
  const auto flipped = [&](size_t at) {
    std::string changed = bytes;
    changed[at] ^= 4;
    return changed;
  };
  const std::string damages[] = {
      "",           bytes.substr(0, 20),       bytes.substr(0, bytes.size() - 1), flipped(0),
      flipped(200), flipped(bytes.size() / 2), flipped(bytes.size() - 1),         bytes + "x"};
  for (const std::string& damaged : damages) {
    n_troubles_ = 0;
    ASSERT_TRUE(WriteFileAtomically(path, damaged).ok());
    const auto server = Start();
    const RequestOutcome outcome = Run(server.get(), request);
    EXPECT_EQ(outcome.n_prefix_tokens, 0);
    EXPECT_EQ(outcome.tokens, Alone(request));
    EXPECT_EQ(server->archive->stats().n_ignored, 1);
    EXPECT_EQ(n_troubles_, 1);
  }
  // What was written since is whole again.
  EXPECT_EQ(*ReadTextFile(path), bytes);
}

TEST_P(ArchivedEngineTest, LinksAndFoldersAreNoEntries) {
  const Request request = MakeRequest(RandomPrompt(300, 1));
  Run(Start().get(), request);
  const std::string path = FilesIn(folder_)[0];
  fs::rename(path, scratch_ / "elsewhere");
  fs::create_symlink(scratch_ / "elsewhere", path);
  fs::create_directory(folder_ + "/folder" + std::string(kPrefixFileEnding));
  ASSERT_EQ(::mkfifo((folder_ + "/pipe" + std::string(kPrefixFileEnding)).c_str(), 0600), 0);
  const auto server = Start();
  EXPECT_EQ(server->archive->stats().n_ignored, 3);
  EXPECT_EQ(Run(server.get(), request).n_prefix_tokens, 0);
}

TEST_P(ArchivedEngineTest, AFullDiskStopsNothing) {
  const Request request = MakeRequest(RandomPrompt(300, 1));
  {
    const auto server = Start();
    const FileSizeLimit full(1000);
    EXPECT_EQ(Run(server.get(), request).tokens, Alone(request));
    server->engine.reset();
    EXPECT_GT(server->archive->stats().n_failed_writes, 0);
    EXPECT_EQ(server->archive->stats().n_files, 0);
    EXPECT_EQ(n_troubles_, server->archive->stats().n_failed_writes);
  }
  EXPECT_TRUE(FilesIn(folder_).empty());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_P(ArchivedEngineTest, AFolderThatGoesAwayStopsNothing) {
  const auto server = Start();
  fs::remove_all(folder_);
  const Request request = MakeRequest(RandomPrompt(300, 1));
  EXPECT_EQ(Run(server.get(), request).tokens, Alone(request));
  EXPECT_EQ(Run(server.get(), request).n_prefix_tokens, 299);  // in memory
}

TEST_P(ArchivedEngineTest, TheBoundOfTheFolderHolds) {
  Run(Start().get(), MakeRequest(RandomPrompt(300, 1)));
  ArchiveOptions options = Options();
  options.max_bytes = static_cast<int64_t>(fs::file_size(FilesIn(folder_)[0])) * 5 / 2;
  const auto server = StartWith(options);
  for (int i = 2; i < 8; ++i) Run(server.get(), MakeRequest(RandomPrompt(300, i)));
  server->engine.reset();
  const ArchiveStats stats = server->archive->stats();
  EXPECT_GE(FilesIn(folder_).size(), 2u);
  EXPECT_LE(stats.n_bytes, options.max_bytes);
  EXPECT_EQ(stats.n_failed_writes, 0);
}

TEST_P(ArchivedEngineTest, WhatMemoryGivesUpIsOnDisk) {
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(MakeRequest(RandomPrompt(300, i), 4));
  const int64_t n_bytes = Run(Start().get(), requests[0]).kv_bytes.total();
  ArchiveOptions options = Options();
  options.settles_in = std::chrono::hours(1);  // nothing is written but what has to go
  const auto server = StartWith(options, 6 * n_bytes);
  for (const Request& request : requests) Run(server.get(), request);
  for (const Request& request : requests) {
    const RequestOutcome again = Run(server.get(), request);
    EXPECT_EQ(again.n_prefix_tokens, 299);
    EXPECT_EQ(again.tokens, Alone(request));
  }
  EXPECT_EQ(server->archive->stats().n_lost, 0);
}

TEST_P(ArchivedEngineTest, WhatIsPreemptedComesBackFromDisk) {
  std::vector<Request> requests;
  for (int i = 0; i < 3; ++i) requests.push_back(MakeRequest(RandomPrompt(100, i), 800));
  std::vector<RequestOutcome> alone;
  int64_t end_bytes = 0;
  for (const Request& request : requests) {
    HostPool pool(kArchivePoolBytes);
    Engine engine({model_.get()}, &pool, {});
    alone.push_back(RunAll(&engine, {request})[0]);
    end_bytes = std::max(end_bytes, alone.back().kv_bytes.total());
  }
  const auto server = Start(2 * end_bytes);
  const std::vector<RequestOutcome> outcomes = RunAll(server->engine.get(), requests);
  ASSERT_GT(server->observer.n_preempted, 0);
  // Whether there is room for all that is read depends on how long it took.
  EXPECT_GT(server->archive->stats().n_read, 0);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(outcomes[i].tokens, alone[i].tokens);
}

TEST_P(ArchivedEngineTest, TwoProcessesShareAFolder) {
  const auto one = Start(), other = Start();
  const Request request = MakeRequest(RandomPrompt(300, 1));
  Run(one.get(), request);
  one->engine.reset();
  while (other->archive->stats().n_files == 0) usleep(1000);
  EXPECT_EQ(Run(other.get(), request).n_prefix_tokens, 299);
  // What is removed is not missed.
  for (const std::string& path : FilesIn(folder_)) fs::remove(path);
  while (other->archive->stats().n_files > 0) usleep(1000);
  EXPECT_EQ(Run(other.get(), request).n_prefix_tokens, 299);
}

TEST_P(ArchivedEngineTest, ARequestThatIsCancelledWhileItsFileIsReadLeavesNothing) {
  const Request request = MakeRequest(RandomPrompt(300, 1));
  Run(Start().get(), request);
  const auto server = Start();
  FinishReason reason = FinishReason::kNone;
  const auto id = server->engine->Submit(
      request, nullptr, [&](auto, const RequestOutcome& o) { reason = o.finish_reason; });
  ASSERT_TRUE(id.ok());
  server->engine->Step();
  server->engine->Cancel(*id);
  EXPECT_FALSE(server->engine->RunUntilIdle().code() == StatusCode::kInternal);
  EXPECT_EQ(reason, FinishReason::kCancelled);
  EXPECT_EQ(Run(server.get(), request).n_prefix_tokens, 299);
}

INSTANTIATE_TEST_SUITE_P(
    Caches, ArchivedEngineTest,
    ::testing::Values("none", "kivi(bits=4)", "lathe(ratio=4,scales=static,open=8,keys=centred)"),
    [](const auto& test) {
      return std::string(test.param).substr(0, std::string(test.param).find('('));
    });

}  // namespace
}  // namespace kvlathe
