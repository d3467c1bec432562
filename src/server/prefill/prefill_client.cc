#include "server/prefill/prefill_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/sha256.h"
#include "kv/blocks/sequence_stream.h"
#include "server/prefill/prompt_question.h"

namespace kvlathe::server {
namespace {

constexpr int kPollMilliseconds = 100;
constexpr double kMostConnectSeconds = 2;
// Between the last part and the end of the answer.
constexpr double kMostEndSeconds = 1;
constexpr int64_t kProgressBytes = 64 << 10;
constexpr size_t kMostErrorBytes = 4096;

// libcurl is prepared once for the whole process.
bool IsCurlReady() {
  static const bool is_ready = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  return is_ready;
}

// What the error of an answer says, in one line.
std::string MessageOfAnswer(const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  std::string message = body;
  if (json.is_object() && json.contains("error") && json["error"].is_object()) {
    message = json["error"].value("message", std::string());
  }
  message.resize(std::min<size_t>(message.size(), 300));
  std::ranges::replace_if(
      message, [](unsigned char c) { return c < 32 || c == 127; }, '?');
  return message;
}

bool IsUnreachable(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
      return true;
    default:
      return false;
  }
}

}  // namespace

Status CheckPrefillUrl(const std::string& url) {
  CURLU* const parsed = curl_url();
  char* path = nullptr;
  const bool is_url = curl_url_set(parsed, CURLUPART_URL, url.c_str(), 0) == CURLUE_OK &&
                      (url.starts_with("http://") || url.starts_with("https://"));
  const bool has_path = is_url && curl_url_get(parsed, CURLUPART_PATH, &path, 0) == CURLUE_OK &&
                        std::string_view(path) != "/";
  curl_free(path);
  curl_url_cleanup(parsed);
  if (is_url && !has_path) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "--prefill {}: not the address of a prefill replica; give http://HOST:PORT or "
               "https://HOST:PORT, without a path",
               url);
}

// A prompt that was asked for. What is not atomic is of the thread of the client, but for the file,
// which is there for everybody once the state says so.
struct PrefillClient::Asked {
  std::string body;
  SequenceIdentity identity;
  const CacheLayout* layout = nullptr;
  PromptAttempt attempt;  // that is under way
  int replica = 0;
  std::vector<bool> was_tried;

  std::atomic<DistantPrompt::State> state = DistantPrompt::State::kUnderWay;
  std::atomic<bool> is_unwanted = false;
  std::string file;

  CURL* curl = nullptr;
  curl_slist* headers = nullptr;
  std::array<char, CURL_ERROR_SIZE> message = {};
  std::unique_ptr<SequenceStreamReader> reader;
  Status stream_status;
  long http_status = 0;
  std::string error_body;
  Stopwatch since_begin;
  Stopwatch since_progress;
  int n_parts = 0;
  int64_t n_bytes_at_progress = 0;
  bool is_published = false;

  ~Asked() {
    curl_easy_cleanup(curl);
    curl_slist_free_all(headers);
  }
  bool Take(std::string_view bytes);
  void Note(std::string_view reason, Status status);
  void NoteProgress();
};

bool PrefillClient::Asked::Take(std::string_view bytes) {
  if (http_status == 0) curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &http_status);
  if (http_status != 200) {
    error_body.append(bytes.substr(0, kMostErrorBytes - error_body.size()));
    return true;
  }
  stream_status = reader->Add(bytes);
  NoteProgress();
  return stream_status.ok();
}

void PrefillClient::Asked::Note(std::string_view reason, Status status) {
  attempt.reason = reason;
  attempt.status = std::move(status);
  attempt.n_bytes = reader->n_received_bytes();
  attempt.seconds = since_begin.Seconds();
}

void PrefillClient::Asked::NoteProgress() {
  const int64_t n_bytes = reader->n_received_bytes();
  if (reader->n_parts() == n_parts && n_bytes < n_bytes_at_progress + kProgressBytes) return;
  n_parts = reader->n_parts();
  n_bytes_at_progress = n_bytes;
  since_progress.Restart();
}

// --- On the thread of the client. ---

class PrefillClient::Transfers {
 public:
  explicit Transfers(PrefillClient* client) : client_(client), multi_(curl_multi_init()) {}
  ~Transfers() {
    for (const auto& asked : under_way_) curl_multi_remove_handle(multi_, asked->curl);
    under_way_.clear();
    curl_multi_cleanup(multi_);
  }

  void Begin(const std::shared_ptr<Asked>& asked);
  void Work();
  void Wait() { curl_multi_poll(multi_, nullptr, 0, kPollMilliseconds, nullptr); }
  // By any thread.
  void Wake() { curl_multi_wakeup(multi_); }

 private:
  void Set(Asked* asked, const std::string& url);
  void TakeEnded();
  void GiveUpLate();
  // The file is there, and the connection ends by itself.
  void Publish(const std::shared_ptr<Asked>& asked);
  // The attempt has failed. `reason` as PromptAttempt has it.
  void EndAttempt(const std::shared_ptr<Asked>& asked, std::string_view reason, Status status);
  void Remove(Asked* asked);
  void Leave(const std::shared_ptr<Asked>& asked) {
    Remove(asked.get());
    client_->LeaveReplica(asked->replica, /*has_failed=*/false);
  }

  PrefillClient* client_;
  CURLM* multi_;
  std::vector<std::shared_ptr<Asked>> under_way_;
};

void PrefillClient::Transfers::Set(Asked* asked, const std::string& url) {
  using Callback = size_t (*)(char*, size_t, size_t, void*);
  const Callback take = [](char* data, size_t size, size_t n, void* self) -> size_t {
    return static_cast<Asked*>(self)->Take({data, size * n}) ? size * n : CURL_WRITEFUNC_ERROR;
  };
  const PrefillClientOptions& options = client_->options_;
  const double connect_seconds = std::min(options.timeout_seconds, kMostConnectSeconds);
  for (const std::string& line :
       {"Authorization: Bearer " + options.key, std::string("Content-Type: application/json"),
        std::string("Expect:"), "X-Request-Id: " + asked->attempt.request_id}) {
    asked->headers = curl_slist_append(asked->headers, line.c_str());
  }
  CURL* const curl = asked->curl;
  curl_easy_setopt(curl, CURLOPT_URL, (url + std::string(kPrefillPath)).c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(1e3 * connect_seconds));
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 512L << 10);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "kvlathe");
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, asked->headers);
  curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(asked->body.size()));
  curl_easy_setopt(curl, CURLOPT_POSTFIELDS, asked->body.c_str());
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, asked->message.data());
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, asked);
  curl_easy_setopt(curl, CURLOPT_PRIVATE, asked);
}

void PrefillClient::Transfers::Begin(const std::shared_ptr<Asked>& asked) {
  asked->attempt.url = client_->options_.urls[asked->replica];
  asked->reader =
      std::make_unique<SequenceStreamReader>(asked->attempt.url, asked->identity, asked->layout,
                                             static_cast<int>(asked->attempt.n_tokens));
  asked->stream_status = OkStatus();
  asked->http_status = 0;
  asked->error_body.clear();
  asked->message[0] = '\0';
  asked->n_parts = 0;
  asked->n_bytes_at_progress = 0;
  asked->since_progress.Restart();
  asked->curl = curl_easy_init();
  Set(asked.get(), asked->attempt.url);
  under_way_.push_back(asked);
  curl_multi_add_handle(multi_, asked->curl);
}

void PrefillClient::Transfers::Remove(Asked* asked) {
  curl_multi_remove_handle(multi_, asked->curl);
  curl_easy_cleanup(std::exchange(asked->curl, nullptr));
  curl_slist_free_all(std::exchange(asked->headers, nullptr));
  std::erase_if(under_way_, [&](const auto& other) { return other.get() == asked; });
}

void PrefillClient::Transfers::EndAttempt(const std::shared_ptr<Asked>& asked,
                                          std::string_view reason, Status status) {
  Remove(asked.get());
  const bool is_unwanted = asked->is_unwanted.load();
  client_->LeaveReplica(asked->replica, /*has_failed=*/!is_unwanted);
  if (is_unwanted) return client_->End(asked, /*was_read=*/false);
  asked->Note(reason, std::move(status));
  client_->options_.on_attempt(asked->attempt);
  asked->replica = client_->TakeReplica(asked->was_tried);
  if (asked->replica < 0) return client_->End(asked, /*was_read=*/false);
  asked->was_tried[asked->replica] = true;
  Begin(asked);
}

void PrefillClient::Transfers::Publish(const std::shared_ptr<Asked>& asked) {
  asked->is_published = true;
  asked->since_progress.Restart();
  asked->Note({}, OkStatus());
  asked->file = asked->reader->TakeFile();
  client_->options_.on_attempt(asked->attempt);
  client_->End(asked, /*was_read=*/true);
}

void PrefillClient::Transfers::TakeEnded() {
  int n_left = 0;
  while (const CURLMsg* const message = curl_multi_info_read(multi_, &n_left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const CURLcode code = message->data.result;
    Asked* found = nullptr;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &found);
    const auto place = std::ranges::find_if(
        under_way_, [&](const std::shared_ptr<Asked>& other) { return other.get() == found; });
    if (place == under_way_.end()) continue;
    const std::shared_ptr<Asked> asked = *place;
    const std::string& url = asked->attempt.url;
    const std::string cause =
        asked->message[0] != '\0' ? asked->message.data() : curl_easy_strerror(code);
    if (asked->http_status == 0) {
      curl_easy_getinfo(asked->curl, CURLINFO_RESPONSE_CODE, &asked->http_status);
    }
    if (!asked->is_published && asked->stream_status.ok() && asked->reader->is_whole()) {
      Publish(asked);
    }
    if (asked->is_published) {
      Leave(asked);
    } else if (!asked->stream_status.ok()) {
      EndAttempt(asked, "broken", asked->stream_status);
    } else if (code == CURLE_OPERATION_TIMEDOUT || IsUnreachable(code)) {
      EndAttempt(asked, "unreachable",
                 Error(StatusCode::kUnavailable, "{} cannot be reached: {}", url, cause));
    } else if (asked->http_status != 0 && asked->http_status != 200) {
      EndAttempt(asked, "refused",
                 Error(StatusCode::kUnavailable, "{} answers {}: {}", url, asked->http_status,
                       MessageOfAnswer(asked->error_body)));
    } else {
      EndAttempt(asked, "broken",
                 Error(StatusCode::kAborted, "{} broke off behind {} bytes: {}", url,
                       asked->reader->n_received_bytes(),
                       code == CURLE_OK ? "the stream is not whole" : cause));
    }
  }
}

void PrefillClient::Transfers::GiveUpLate() {
  const double longest = client_->options_.timeout_seconds;
  const auto all = under_way_;
  for (const std::shared_ptr<Asked>& asked : all) {
    if (asked->is_published) {
      if (asked->since_progress.Seconds() > kMostEndSeconds) Leave(asked);
    } else if (asked->is_unwanted.load()) {
      EndAttempt(asked, "unused", OkStatus());
    } else if (asked->stream_status.ok() && asked->reader->is_whole()) {
      Publish(asked);
    } else if (asked->since_progress.Seconds() > longest) {
      EndAttempt(asked, "timeout",
                 Error(StatusCode::kDeadlineExceeded, "{} sent nothing new for {} s",
                       asked->attempt.url, longest));
    }
  }
}

void PrefillClient::Transfers::Work() {
  int n_running = 0;
  curl_multi_perform(multi_, &n_running);
  TakeEnded();
  GiveUpLate();
}

// What the engine holds of a prompt.
class PrefillClient::Handle : public DistantPrompt {
 public:
  Handle(PrefillClient* client, std::shared_ptr<Asked> asked)
      : client_(client), asked_(std::move(asked)) {}
  ~Handle() override {
    asked_->is_unwanted = true;
    if (state() == State::kUnderWay) client_->transfers_->Wake();
  }

  State state() const override { return asked_->state.load(std::memory_order_acquire); }
  std::string TakeFile() override { return std::move(asked_->file); }
  void Refuse(const Status& why) override {
    PromptAttempt attempt = asked_->attempt;
    attempt.reason = "unused";
    attempt.status = why;
    client_->options_.on_attempt(attempt);
  }

 private:
  PrefillClient* client_;
  std::shared_ptr<Asked> asked_;
};

PrefillClient::PrefillClient(PrefillClientOptions options) : options_(std::move(options)) {
  for (const std::string& url : options_.urls) replicas_.push_back({.url = url});
  IsCurlReady();
  transfers_ = std::make_unique<Transfers>(this);
  thread_ = std::thread([this] { Run(); });
}

PrefillClient::~PrefillClient() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  transfers_->Wake();
  thread_.join();
}

int PrefillClient::TakeReplica(const std::vector<bool>& was_tried) {
  const std::lock_guard lock(mutex_);
  int best = -1;
  for (int i = 0; i < std::ssize(replicas_); ++i) {
    Replica& replica = replicas_[i];
    if (replica.rests && replica.since_failure.Seconds() > kRestSeconds) replica.rests = false;
    if (replica.rests || was_tried[i]) continue;
    if (best < 0 || replica.n_under_way < replicas_[best].n_under_way) best = i;
  }
  if (best >= 0) ++replicas_[best].n_under_way;
  return best;
}

void PrefillClient::LeaveReplica(int place, bool has_failed) {
  const std::lock_guard lock(mutex_);
  Replica& replica = replicas_[place];
  --replica.n_under_way;
  if (!has_failed) return;
  replica.rests = true;
  replica.since_failure.Restart();
}

void PrefillClient::End(const std::shared_ptr<Asked>& asked, bool was_read) {
  const auto state = was_read ? DistantPrompt::State::kRead : DistantPrompt::State::kFailed;
  const std::lock_guard lock(mutex_);
  --n_prompts_;
  asked->state.store(state, std::memory_order_release);
  has_changed_.notify_all();
}

void PrefillClient::Run() {
  std::vector<std::shared_ptr<Asked>> arrived;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stops_) return;
      arrived.swap(arrived_);
    }
    for (const auto& asked : arrived) transfers_->Begin(asked);
    arrived.clear();
    transfers_->Work();
    transfers_->Wait();
  }
}

std::unique_ptr<DistantPrompt> PrefillClient::Ask(const Question& question) {
  auto asked = std::make_shared<Asked>();
  asked->was_tried.assign(options_.urls.size(), false);
  asked->attempt = {.request_id = question.request_id, .n_tokens = std::ssize(question.tokens) - 1};
  bool is_full = false;
  {
    const std::lock_guard lock(mutex_);
    is_full = n_prompts_ >= kMostPrompts;
  }
  asked->replica = is_full ? -1 : TakeReplica(asked->was_tried);
  if (asked->replica < 0) {
    asked->attempt.reason = "nobody";
    options_.on_attempt(asked->attempt);
    return nullptr;
  }
  asked->was_tried[asked->replica] = true;
  asked->identity = *question.key->identity;
  asked->layout = question.key->layout;
  asked->body = ToJson({.kv = asked->identity.spec,
                        .place = PlaceOf(*question.key),
                        .rate = question.rate,
                        .salt = DigestOf({options_.key, question.key->salt}),
                        .tokens = {question.tokens.begin(), question.tokens.end()}});
  {
    const std::lock_guard lock(mutex_);
    ++n_prompts_;
    arrived_.push_back(asked);
  }
  transfers_->Wake();
  return std::make_unique<Handle>(this, std::move(asked));
}

void PrefillClient::WaitForChange(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  has_changed_.wait_for(lock, at_most);
}

}  // namespace kvlathe::server
