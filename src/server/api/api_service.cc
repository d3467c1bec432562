#include "server/api/api_service.h"

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <utility>

#include "server/api/long_requests.h"
#include "server/api/routes/routes.h"

namespace kvlathe::api {
namespace {

constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr std::string_view kResponsePrefix = "/v1/responses/";
constexpr std::string_view kSlotPrefix = "/slots/";
constexpr char kNoRoute[] = "other";

// Routes whose path says everything.
struct RouteHandler {
  const char* method;
  std::string_view path;
  void (*handle)(const ServiceState& state, const ExchangePtr& exchange);
};
constexpr RouteHandler kHandlers[] = {{"GET", "/v1/models", HandleModels},
                                      {"POST", "/v1/completions", HandleCompletions},
                                      {"POST", "/v1/chat/completions", HandleChat},
                                      {"POST", "/v1/responses", HandleResponses},
                                      {"POST", "/v1/embeddings", HandleEmbeddings},
                                      {"POST", "/tokenize", HandleTokenize},
                                      {"POST", "/detokenize", HandleDetokenize},
                                      {"POST", "/apply-template", HandleApplyTemplate},
                                      {"GET", "/tokenizer_info", HandleTokenizerInfo},
                                      {"GET", "/props", HandleProps},
                                      {"GET", "/slots", HandleSlots},
                                      {"POST", "/embedding", HandleLlamaCppEmbedding},
                                      {"POST", "/embeddings", HandleLlamaCppEmbedding},
                                      {"POST", "/infill", HandleInfill},
                                      {"POST", "/api/chat", HandleOllamaChat},
                                      {"POST", "/api/generate", HandleOllamaGenerate},
                                      {"POST", "/api/embed", HandleOllamaEmbed},
                                      {"POST", "/api/embeddings", HandleOllamaEmbeddings},
                                      {"GET", "/api/tags", HandleOllamaTags},
                                      {"GET", "/api/ps", HandleOllamaRunning},
                                      {"POST", "/api/show", HandleOllamaShow},
                                      {"GET", "/api/version", HandleOllamaVersion}};

// What OpenAI's API has and this has not, by the beginning of its paths.
constexpr std::array<std::string_view, 17> kNotServed = {
    "/v1/assistants",    "/v1/audio",    "/v1/batches",     "/v1/containers", "/v1/conversations",
    "/v1/evals",         "/v1/files",    "/v1/fine_tuning", "/v1/images",     "/v1/moderations",
    "/v1/organization",  "/v1/realtime", "/v1/responses/",  "/v1/threads",    "/v1/uploads",
    "/v1/vector_stores", "/v1/videos"};

bool IsBelow(std::string_view path, std::string_view prefix) {
  if (!path.starts_with(prefix)) return false;
  return prefix.ends_with('/') || path.size() == prefix.size() || path[prefix.size()] == '/';
}

// Percent-decoded; what is no escape stays.
std::string DecodePath(std::string_view path) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::string decoded;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] == '%' && i + 2 < path.size() && digit(path[i + 1]) >= 0 &&
        digit(path[i + 2]) >= 0) {
      decoded += static_cast<char>(digit(path[i + 1]) * 16 + digit(path[i + 2]));
      i += 2;
    } else {
      decoded += path[i];
    }
  }
  return decoded;
}

ApiError NotServed(std::string_view path) {
  if (path.starts_with(kResponsePrefix)) {
    return {501, "not_supported_error", "not_supported", "",
            "this server keeps no responses; send the whole conversation as input of POST "
            "/v1/responses"};
  }
  return {501, "not_supported_error", "not_supported", "",
          fmt::format("{}: this server has no such service; docs/server_api.md lists its routes",
                      path)};
}

ApiError NotFound(const http::Request& request) {
  return {404, "invalid_request_error", "not_found", "",
          fmt::format("{} {}: there is no such route; docs/server_api.md lists them",
                      request.method, request.path)};
}

Status TooManyLongRequests() {
  return Error(StatusCode::kUnavailable,
               "requests with {} MiB of bodies wait to be read already; ask again later",
               LongRequests::kMaxWaitingBytes >> 20);
}

}  // namespace

class ApiService::Impl {
 public:
  explicit Impl(ApiContext context) : state_(std::move(context)) {}

  void Handle(http::Request request, std::shared_ptr<http::Reply> reply) {
    const std::string route = RouteOf(request.path);
    const auto n_body_bytes = std::ssize(request.body);
    const auto exchange = std::make_shared<Exchange>(std::move(request), std::move(reply), route,
                                                     state_.context().observer);
    if (n_body_bytes < LongRequests::kMinBodyBytes) return HandleNow(exchange, route);
    const bool is_taken =
        long_requests_.Add(n_body_bytes, [this, exchange, route] { HandleNow(exchange, route); });
    if (!is_taken) exchange->SendError(TooManyLongRequests());
  }

 private:
  void HandleNow(const ExchangePtr& exchange, const std::string& route) {
    try {
      Route(exchange, route);
    } catch (const std::exception& error) {  // of the standard library: no memory, a length
      exchange->SendError(
          Error(StatusCode::kInternal, "the request could not be handled: {}", error.what()));
    }
  }
  void Route(const ExchangePtr& exchange, const std::string& route);

  ServiceState state_;
  LongRequests long_requests_;  // last: its thread uses the state
};

void ApiService::Impl::Route(const ExchangePtr& exchange, const std::string& route) {
  const http::Request& request = exchange->request();
  if (route == kNoRoute) {
    const bool is_known = std::ranges::any_of(
        kNotServed, [&](std::string_view prefix) { return IsBelow(request.path, prefix); });
    return exchange->SendError(is_known ? NotServed(request.path) : NotFound(request));
  }
  const auto found = std::ranges::find(Routes(), route, &ApiRoute::path);
  const bool is_head = request.method == "HEAD" && found->method == "GET";
  if (request.method != found->method && !is_head) {
    const ApiError error{405, "invalid_request_error", "method_not_allowed", "",
                         fmt::format("{} {}: use {}", request.method, request.path, found->method)};
    exchange->NoteError(error);
    http::Response response = ErrorResponse(error);
    response.headers.emplace_back("Allow", found->method == "GET" ? "GET, HEAD" : found->method);
    return exchange->SendResponse(std::move(response));
  }
  if (route == "/v1/models/{id}") {
    return HandleModel(state_, exchange, DecodePath(request.path.substr(kModelPrefix.size())));
  }
  if (route == "/slots/{id}") {
    return HandleSlot(state_, exchange, DecodePath(request.path.substr(kSlotPrefix.size())));
  }
  const auto handler = std::ranges::find(kHandlers, route, &RouteHandler::path);
  handler->handle(state_, exchange);
}

ApiService::ApiService(ApiContext context) : impl_(std::make_unique<Impl>(std::move(context))) {}

ApiService::~ApiService() = default;

void ApiService::Handle(http::Request request, std::shared_ptr<http::Reply> reply) {
  impl_->Handle(std::move(request), std::move(reply));
}

const std::vector<ApiRoute>& ApiService::Routes() {
  static const std::vector<ApiRoute> kRoutes = [] {
    std::vector<ApiRoute> routes = {{"GET", "/v1/models/{id}"}, {"POST", "/slots/{id}"}};
    for (const RouteHandler& handler : kHandlers) {
      routes.push_back({handler.method, std::string(handler.path)});
    }
    return routes;
  }();
  return kRoutes;
}

std::string ApiService::RouteOf(const std::string& path) {
  if (path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size()) {
    return "/v1/models/{id}";
  }
  if (path.starts_with(kSlotPrefix) && path.size() > kSlotPrefix.size()) return "/slots/{id}";
  const auto found = std::ranges::find(Routes(), path, &ApiRoute::path);
  return found == Routes().end() ? kNoRoute : found->path;
}

}  // namespace kvlathe::api
