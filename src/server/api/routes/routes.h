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
void HandleEmbeddings(const ServiceState& state, const ExchangePtr& exchange);
void HandleTokenize(const ServiceState& state, const ExchangePtr& exchange);
void HandleDetokenize(const ServiceState& state, const ExchangePtr& exchange);
void HandleApplyTemplate(const ServiceState& state, const ExchangePtr& exchange);
void HandleTokenizerInfo(const ServiceState& state, const ExchangePtr& exchange);

// llama.cpp's.
void HandleProps(const ServiceState& state, const ExchangePtr& exchange);
void HandleSlots(const ServiceState& state, const ExchangePtr& exchange);
// Saving, restoring and erasing, by the query.
void HandleSlot(const ServiceState& state, const ExchangePtr& exchange, const std::string& id);
void HandleLlamaCppEmbedding(const ServiceState& state, const ExchangePtr& exchange);
void HandleInfill(const ServiceState& state, const ExchangePtr& exchange);

// Ollama's.
void HandleOllamaChat(const ServiceState& state, const ExchangePtr& exchange);
void HandleOllamaGenerate(const ServiceState& state, const ExchangePtr& exchange);
void HandleOllamaEmbed(const ServiceState& state, const ExchangePtr& exchange);
void HandleOllamaEmbeddings(const ServiceState& state, const ExchangePtr& exchange);
void HandleOllamaTags(const ServiceState& state, const ExchangePtr& exchange);
void HandleOllamaRunning(const ServiceState& state, const ExchangePtr& exchange);
void HandleOllamaShow(const ServiceState& state, const ExchangePtr& exchange);
void HandleOllamaVersion(const ServiceState& state, const ExchangePtr& exchange);

}  // namespace kvlathe::api
