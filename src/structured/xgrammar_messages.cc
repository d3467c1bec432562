#include "structured/xgrammar_messages.h"

#include <stdexcept>
#include <utility>

namespace {

thread_local std::string warnings;

constexpr int kWarning = 2;  // XGRAMMAR_LOG_LEVEL_WARNING

}  // namespace

// XGrammar's hooks (cpp/support/logging.h), where it is built with XGRAMMAR_LOG_CUSTOMIZE.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  if (level < kWarning) return;
  if (!warnings.empty()) warnings += '\n';
  warnings += message;
}

}  // namespace xgrammar

namespace kvlathe {

std::string TakeXGrammarWarnings() { return std::exchange(warnings, {}); }

}  // namespace kvlathe
