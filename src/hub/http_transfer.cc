#include "hub/http_transfer.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <curl/curl.h>

#include <array>
#include <utility>

#include "hub/certificates.h"

namespace kvlathe {
namespace {

struct UrlDeleter {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
using Url = std::unique_ptr<CURLU, UrlDeleter>;

Url ParseUrl(const std::string& text) {
  Url url(curl_url());
  if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) url.reset();
  return url;
}

std::string Part(const Url& url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (url == nullptr || curl_url_get(url.get(), part, &text, flags) != CURLUE_OK) return {};
  std::string copy = text;
  curl_free(text);
  return copy;
}

// libcurl is prepared once for the whole process.
bool PrepareCurl() {
  static const bool is_ready = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  return is_ready;
}

struct ListDeleter {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using HeaderList = std::unique_ptr<curl_slist, ListDeleter>;

void Append(HeaderList* list, const std::string& line) {
  list->reset(curl_slist_append(list->release(), line.c_str()));
}

// Whether an error means that the host cannot be reached, and not that what had begun ended.
bool IsUnreachable(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PROXY:
      return true;
    default:
      return false;
  }
}

}  // namespace

struct HttpTransfer::State {
  int connect_seconds, stall_seconds;
  CURL* curl = nullptr;
  std::array<char, CURL_ERROR_SIZE> message = {};

  // Of the request that runs.
  const BodySink* sink = nullptr;
  HttpAnswer answer;
  bool has_begun = false, is_unwanted = false;
  Status status;

  Status Failure(CURLcode code, const std::string& url) const;
  void TakeHeader(std::string_view line);
  bool TakeBody(std::string_view bytes);
  void Set(const HttpRequest& request, const HeaderList& headers);
};

Status HttpTransfer::State::Failure(CURLcode code, const std::string& url) const {
  const std::string cause = message[0] != '\0' ? message.data() : curl_easy_strerror(code);
  const std::string host = HostOf(url);
  if (code == CURLE_OPERATION_TIMEDOUT) {
    curl_off_t connect_microseconds = 0;
    curl_easy_getinfo(curl, CURLINFO_CONNECT_TIME_T, &connect_microseconds);
    if (connect_microseconds > 0) {
      return Error(StatusCode::kDeadlineExceeded, "{} sent nothing for {} s", host, stall_seconds);
    }
    return Error(StatusCode::kUnavailable, "{} cannot be reached: no connection within {} s", host,
                 connect_seconds);
  }
  if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE) {
    return Error(StatusCode::kUnavailable,
                 "{} cannot be trusted: {}; have SSL_CERT_FILE name a file of certificates, or "
                 "install those of the system (ca-certificates)",
                 host, cause);
  }
  if (IsUnreachable(code)) {
    return Error(StatusCode::kUnavailable, "{} cannot be reached: {}", host, cause);
  }
  return Error(StatusCode::kAborted, "the connection to {} ended early: {}", host, cause);
}

void HttpTransfer::State::TakeHeader(std::string_view line) {
  if (line.starts_with("HTTP/")) answer.headers.clear();  // behind an interim answer
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  std::string name(line.substr(0, colon)), value(line.substr(colon + 1));
  absl::AsciiStrToLower(&name);
  absl::StripAsciiWhitespace(&value);
  answer.headers[name] = std::move(value);
}

bool HttpTransfer::State::TakeBody(std::string_view bytes) {
  if (!has_begun) {
    has_begun = true;
    long code = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    answer.status = static_cast<int>(code);
    const StatusOr<bool> is_wanted = sink->begin(answer);
    status = is_wanted.status();
    is_unwanted = is_wanted.ok() && !*is_wanted;
    if (!status.ok() || is_unwanted) return false;
  }
  status = sink->write(bytes);
  return status.ok();
}

void HttpTransfer::State::Set(const HttpRequest& request, const HeaderList& headers) {
  using Callback = size_t (*)(char*, size_t, size_t, void*);
  const Callback take_header = [](char* data, size_t size, size_t n, void* self) {
    static_cast<State*>(self)->TakeHeader({data, size * n});
    return size * n;
  };
  const Callback take_body = [](char* data, size_t size, size_t n, void* self) -> size_t {
    return static_cast<State*>(self)->TakeBody({data, size * n}) ? size * n : CURL_WRITEFUNC_ERROR;
  };
  curl_easy_reset(curl);  // connections stay
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, static_cast<long>(connect_seconds));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(stall_seconds));
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "kvlathe");
  const Certificates certificates = FindCertificates();
  if (!certificates.file.empty()) {
    curl_easy_setopt(curl, CURLOPT_CAINFO, certificates.file.c_str());
  }
  if (!certificates.folder.empty()) {
    curl_easy_setopt(curl, CURLOPT_CAPATH, certificates.folder.c_str());
  }
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, message.data());
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, take_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, this);
  if (request.is_head) curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  if (request.first_byte > 0) {
    curl_easy_setopt(curl, CURLOPT_RANGE, fmt::format("{}-", request.first_byte).c_str());
  }
}

HttpTransfer::HttpTransfer(int connect_seconds, int stall_seconds) : state_(new State) {
  state_->connect_seconds = connect_seconds;
  state_->stall_seconds = stall_seconds;
  if (PrepareCurl()) state_->curl = curl_easy_init();
}

HttpTransfer::~HttpTransfer() { curl_easy_cleanup(state_->curl); }

StatusOr<HttpAnswer> HttpTransfer::Run(const HttpRequest& request, const BodySink& sink) {
  State& state = *state_;
  if (state.curl == nullptr) return Error(StatusCode::kInternal, "libcurl cannot be used");
  state.sink = &sink;
  state.answer = {};
  state.has_begun = state.is_unwanted = false;
  state.status = OkStatus();
  state.message[0] = '\0';
  HeaderList headers;
  Append(&headers, "Accept-Encoding: identity");  // sizes and ranges are those of the file
  if (!request.token.empty()) Append(&headers, "Authorization: Bearer " + request.token);
  state.Set(request, headers);
  const CURLcode code = curl_easy_perform(state.curl);
  KVL_RETURN_IF_ERROR(state.status);
  if (code != CURLE_OK && !state.is_unwanted) return state.Failure(code, request.url);
  long status = 0;
  curl_easy_getinfo(state.curl, CURLINFO_RESPONSE_CODE, &status);
  state.answer.status = static_cast<int>(status);
  return std::move(state.answer);
}

std::string HostOf(std::string_view url) {
  const Url parsed = ParseUrl(std::string(url));
  const std::string host = Part(parsed, CURLUPART_HOST), port = Part(parsed, CURLUPART_PORT);
  if (host.empty()) return "the hub";
  return port.empty() ? host : host + ":" + port;
}

bool HaveSameOrigin(const std::string& a, const std::string& b) {
  const Url url_a = ParseUrl(a), url_b = ParseUrl(b);
  if (url_a == nullptr || url_b == nullptr) return false;
  return absl::EqualsIgnoreCase(Part(url_a, CURLUPART_SCHEME), Part(url_b, CURLUPART_SCHEME)) &&
         absl::EqualsIgnoreCase(Part(url_a, CURLUPART_HOST), Part(url_b, CURLUPART_HOST)) &&
         Part(url_a, CURLUPART_PORT, CURLU_DEFAULT_PORT) ==
             Part(url_b, CURLUPART_PORT, CURLU_DEFAULT_PORT);
}

std::string ResolveUrl(const std::string& url, const std::string& location) {
  const Url base = ParseUrl(url);
  if (base == nullptr || location.empty()) return {};
  // Of a URL that is set already, another one is read as relative to it.
  if (curl_url_set(base.get(), CURLUPART_URL, location.c_str(), CURLU_URLENCODE) != CURLUE_OK) {
    return {};
  }
  const std::string scheme = Part(base, CURLUPART_SCHEME);
  if (scheme != "http" && scheme != "https") return {};
  curl_url_set(base.get(), CURLUPART_FRAGMENT, nullptr, 0);
  return Part(base, CURLUPART_URL);
}

std::string EncodePath(std::string_view path) {
  std::string encoded;
  for (const char c : path) {
    const bool is_plain =
        absl::ascii_isalnum(c) || std::string_view("-._~/").find(c) != std::string_view::npos;
    encoded += is_plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<uint8_t>(c));
  }
  return encoded;
}

}  // namespace kvlathe
