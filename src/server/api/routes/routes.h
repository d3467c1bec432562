// Each route has a handler. Each answers its exchange, now or with the tokens that it asks for.
#pragma once

#include <memory>
#include <string>

#include "server/api/exchange.h"
#include "server/api/service_state.h"

namespace kvlathe::api {

using ExchangePtr = std::shared_ptr<Exchange>;

void HandleModels(const ServiceState& state, const ExchangePtr& exchange);
// `id` is the last segment of the path, decoded.
void HandleModel(const ServiceState& state, const ExchangePtr& exchange, const std::string& id);
void HandleCompletions(const ServiceState& state, const ExchangePtr& exchange);
void HandleChat(const ServiceState& state, const ExchangePtr& exchange);
void HandleResponses(const ServiceState& state, const ExchangePtr& exchange);
void HandleTokenize(const ServiceState& state, const ExchangePtr& exchange);
void HandleDetokenize(const ServiceState& state, const ExchangePtr& exchange);
void HandleApplyTemplate(const ServiceState& state, const ExchangePtr& exchange);
void HandleTokenizerInfo(const ServiceState& state, const ExchangePtr& exchange);

}  // namespace kvlathe::api
