// A thousand clients that read slowly, as docs/decisions/http-library.md measured it with other
// libraries: no thread for each, little memory for each, and the next client is served at once.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "server/http/server_fixture.h"

namespace kvlathe::http {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif
constexpr int kStreams = kIsSanitized ? 150 : 1000;

int CountThreads() {
  DIR* directory = opendir("/proc/self/task");
  int n_threads = -2;  // . and ..
  while (readdir(directory) != nullptr) ++n_threads;
  closedir(directory);
  return n_threads;
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t n_pages = 0;
  file >> n_pages >> n_pages;
  return n_pages * sysconf(_SC_PAGESIZE);
}

// Both ends of every connection are in this process.
void RaiseFileLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Writes to every stream that is open, over and over, as the thread of an engine does.
class Writer {
 public:
  Writer() : thread_([this] { Run(); }) {}
  ~Writer() {
    is_done_ = true;
    thread_.join();
  }

  void Add(std::shared_ptr<Reply> reply) {
    reply->BeginStream();
    const std::lock_guard lock(mutex_);
    replies_.push_back(std::move(reply));
  }

 private:
  void Run() {
    for (int step = 0; !is_done_; ++step) {
      {
        const std::lock_guard lock(mutex_);
        for (const auto& reply : replies_) {
          reply->Write("data: token " + std::to_string(step) + "\n\n");
        }
      }
      std::this_thread::sleep_for(milliseconds(100));
    }
    for (const auto& reply : replies_) {
      reply->Write("data: [DONE]\n\n");
      reply->EndStream();
    }
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Reply>> replies_;
  std::atomic<bool> is_done_ = false;
  std::thread thread_;
};

TEST(SlowStreamsTest, OneMoreClientIsServedBesideAThousand) {
  RaiseFileLimit();
  auto writer = std::make_unique<Writer>();
  HttpServerOptions options;
  const auto server =
      *HttpServer::Start(options, [&](Request request, std::shared_ptr<Reply> reply) {
        if (request.path == "/") return writer->Add(std::move(reply));
        reply->Send({.body = "quick"});
      });
  const int n_threads = CountThreads();
  const int64_t n_bytes = ResidentBytes();
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<TestClient>(server->port(), 4096));
    ASSERT_TRUE(clients.back()->is_connected()) << i;
    ASSERT_TRUE(clients.back()->Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
  }
  for (const auto& client : clients) ASSERT_TRUE(client->ReadUntil("data: token "));
  EXPECT_EQ(server->n_open_replies(), kStreams);
  EXPECT_EQ(CountThreads(), n_threads);
  // Both ends, with what the test holds of them.
  if (!kIsSanitized) {
    EXPECT_LT(ResidentBytes() - n_bytes, int64_t{16 << 10} * kStreams);
  }

  milliseconds longest(0);
  for (int i = 0; i < 10; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    TestClient next(server->port());
    next.Send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
    EXPECT_EQ(next.ReadResponse().value_or(TestResponse()).body, "quick");
    longest = std::max(longest, std::chrono::duration_cast<milliseconds>(
                                    std::chrono::steady_clock::now() - begin));
  }
  EXPECT_LT(longest, milliseconds(1000));
  RecordProperty("longest_ms", static_cast<int>(longest.count()));

  writer.reset();
  for (const auto& client : clients) ASSERT_TRUE(client->ReadUntil("[DONE]\n\n\r\n0\r\n\r\n"));
  EXPECT_EQ(server->n_open_replies(), 0);
  clients.clear();
  EXPECT_TRUE(Soon([&] { return server->n_connections() == 0; }));
}

}  // namespace
}  // namespace kvlathe::http
