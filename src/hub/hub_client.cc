#include "hub/hub_client.h"

#include <absl/strings/numbers.h>

#include <algorithm>

namespace kvlathe {
namespace {

constexpr int kMostRedirects = 10;
constexpr size_t kMostListingBytes = 32 << 20;

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// An ETag without quotes and the mark of a weak one.
std::string Normalized(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  return std::string(etag);
}

int64_t NumberOf(std::string_view text) {
  int64_t number = -1;
  return absl::SimpleAtoi(std::string(text), &number) && number >= 0 ? number : -1;
}

const BodySink kNoBody = {[](const HttpAnswer&) -> StatusOr<bool> { return false; },
                          [](std::string_view) { return OkStatus(); }};

}  // namespace

HubClient::HubClient(const HubOptions& options, const HubModel& model)
    : options_(options), model_(model), transfer_(options.connect_seconds, options.stall_seconds) {}

StatusOr<HubListing> HubClient::List() {
  std::string text;
  const BodySink sink = {[](const HttpAnswer&) -> StatusOr<bool> { return true; },
                         [&](std::string_view bytes) -> Status {
                           text += bytes;
                           if (text.size() <= kMostListingBytes) return OkStatus();
                           return Error(StatusCode::kDataLoss,
                                        "{}: the hub's list of files does not end", model_.Text());
                         }};
  KVL_RETURN_IF_ERROR(Follow({.url = fmt::format("{}/api/models/{}/revision/main?blobs=true",
                                                 options_.endpoint, model_.Repository())},
                             /*path=*/"", sink)
                          .status());
  return ParseHubListing(model_, text);
}

StatusOr<HubFileFacts> HubClient::Ask(const std::string& commit, const std::string& path) {
  KVL_ASSIGN_OR_RETURN(const HttpAnswer answer,
                       Follow({.url = UrlOf(commit, path), .is_head = true}, path, kNoBody));
  const std::string_view linked_etag = answer.Header("x-linked-etag");
  const bool is_linked = !linked_etag.empty();
  HubFileFacts facts;
  facts.etag = Normalized(is_linked ? linked_etag : answer.Header("etag"));
  facts.n_bytes = NumberOf(answer.Header("x-linked-size"));
  if (facts.n_bytes < 0 && !IsRedirect(answer.status)) {
    facts.n_bytes = NumberOf(answer.Header("content-length"));
  }
  if (IsSha256(facts.etag)) facts.sha256 = facts.etag;
  if (!IsSafeWord(facts.etag) || facts.n_bytes < 0) {
    return Error(StatusCode::kDataLoss,
                 "{}: {} does not say the size and the ETag of {}, as a hub does; check "
                 "HF_ENDPOINT",
                 model_.Text(), HostOf(options_.endpoint), path);
  }
  return facts;
}

Status HubClient::Download(const std::string& commit, const std::string& path, int64_t first_byte,
                           const BodySink& sink) {
  return Follow({.url = UrlOf(commit, path), .first_byte = first_byte}, path, sink).status();
}

std::string HubClient::UrlOf(const std::string& commit, const std::string& path) const {
  return fmt::format("{}/{}/resolve/{}/{}", options_.endpoint, model_.Repository(), commit,
                     EncodePath(path));
}

StatusOr<HttpAnswer> HubClient::Follow(HttpRequest request, const std::string& path,
                                       const BodySink& sink) {
  const BodySink wanted = {[&](const HttpAnswer& answer) -> StatusOr<bool> {
                             if (answer.status >= 300) return false;
                             return sink.begin(answer);
                           },
                           sink.write};
  for (int n = 0; n <= kMostRedirects; ++n) {
    const bool is_hub = HaveSameOrigin(request.url, options_.endpoint);
    request.token = is_hub ? options_.token : "";
    KVL_ASSIGN_OR_RETURN(HttpAnswer answer, transfer_.Run(request, wanted));
    if (answer.status >= 400) return Refusal(answer, path);
    if (!IsRedirect(answer.status)) return answer;
    const std::string next = ResolveUrl(request.url, std::string(answer.Header("location")));
    const bool is_known =
        !answer.Header("x-linked-etag").empty() && !answer.Header("x-linked-size").empty();
    if (request.is_head && (is_known || !HaveSameOrigin(next, options_.endpoint))) return answer;
    if (next.empty()) {
      return Error(StatusCode::kDataLoss, "{}: {} leads to {}, which is no address of HTTP",
                   model_.Text(), HostOf(request.url), Quoted(answer.Header("location")));
    }
    if (request.url.starts_with("https:") && !next.starts_with("https:")) {
      return Error(StatusCode::kDataLoss,
                   "{}: {} leads to {} without encryption; nothing is fetched from there",
                   model_.Text(), HostOf(request.url), HostOf(next));
    }
    request.url = next;
  }
  return Error(StatusCode::kDataLoss, "{}: {} leads from one address to the next without end",
               model_.Text(), HostOf(options_.endpoint));
}

Status HubClient::Refusal(const HttpAnswer& answer, const std::string& path) const {
  const std::string host = HostOf(options_.endpoint), text = model_.Text();
  const std::string page = options_.endpoint + "/" + model_.Repository();
  const std::string_view code = answer.Header("x-error-code");
  const int status = answer.status;
  const bool has_token = !options_.token.empty();
  if (code == "GatedRepo" || (status == 403 && code.empty())) {
    return Error(StatusCode::kNotFound,
                 "{}: {} gives this model to those who accepted its terms; accept them at {}{}",
                 text, host, page,
                 has_token ? " with the account that the token in HF_TOKEN belongs to"
                           : ", and set HF_TOKEN to a token of that account");
  }
  if (code == "EntryNotFound") {
    return Error(StatusCode::kNotFound, "{}: {} has the model, but no {} of it", text, host, path);
  }
  if (status == 401 || status == 404) {
    return Error(StatusCode::kNotFound, "{}: {} has no such model, or does not show it {}", text,
                 host,
                 has_token ? "to the token in HF_TOKEN; check the name and the token"
                           : "without a token; check the name, or set HF_TOKEN");
  }
  const std::string_view reason = answer.Header("x-error-message");
  const std::string why = reason.empty() ? "" : ": " + Quoted(reason);
  const bool may_pass = status == 408 || status == 429 || status >= 500;
  StatusCode kind = may_pass ? StatusCode::kAborted : StatusCode::kNotFound;
  if (status == 416) kind = StatusCode::kOutOfRange;
  return Error(kind, "{}: {} answers {}{}{}", text, host, status, why,
               status == 429 ? "; it was asked too often: wait, or set HF_TOKEN" : "");
}

}  // namespace kvlathe
