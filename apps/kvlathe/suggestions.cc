#include "kvlathe/suggestions.h"

#include <utility>

namespace kvlathe {
namespace {

constexpr std::string_view kOnCpu = "is not needed: kvlathe computes on the CPU";
constexpr std::string_view kTokens = "is called -n or --max-tokens here";
constexpr std::string_view kCacheType =
    "is part of --kv here, for keys and values together: --kv q8_0, --kv q4_0, --kv "
    "'kivi(bits=4)', ...";
constexpr std::string_view kNotNeeded = "is not needed here; leave it out";

constexpr std::pair<std::string_view, std::string_view> kForeignOptions[] = {
    {"--n-predict", kTokens},
    {"--predict", kTokens},
    {"-ngl", kOnCpu},
    {"--gpu-layers", kOnCpu},
    {"--n-gpu-layers", kOnCpu},
    {"-ctk", kCacheType},
    {"-ctv", kCacheType},
    {"--cache-type-k", kCacheType},
    {"--cache-type-v", kCacheType},
    {"--kv-cache-dtype", kCacheType},
    {"-fa", kNotNeeded},
    {"--flash-attn", kNotNeeded},
    {"--mlock", kNotNeeded},
    {"--no-mmap", kNotNeeded},
    {"-b", kNotNeeded},
    {"-ub", kNotNeeded},
    {"--batch-size", kNotNeeded},
    {"--ubatch-size", kNotNeeded},
    {"--jinja", kNotNeeded},
    {"-no-cnv", kNotNeeded},
    {"-tb", "is called -t or --threads here"},
    {"--threads-batch", "is called -t or --threads here"},
    {"--temperature", "is called --temp here"},
    {"--max-model-len", "is called -c or --ctx-size here"},
    {"--gpu-memory-utilization", "is called --kv-memory here, and takes a size"},
    {"--enable-prefix-caching", "is always on here, with --prefix-memory as its bound"},
    {"--no-enable-prefix-caching", "is called --prefix-memory 0 here"},
    {"--cache-ram", "is called --prefix-memory here, and takes a size"},
    {"--slot-save-path", "is called --prefix-dir here"},
    {"-sys", "is called --system here"},
    {"--system-prompt", "is called --system here"},
    {"-cnv", "is a verb of its own here: kvlathe chat"},
    {"--conversation", "is a verb of its own here: kvlathe chat"},
};

}  // namespace

std::optional<std::string_view> NameHere(std::string_view option) {
  for (const auto& [name, meaning] : kForeignOptions) {
    if (name == option) return meaning;
  }
  return std::nullopt;
}

}  // namespace kvlathe
