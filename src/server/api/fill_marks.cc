#include "server/api/fill_marks.h"

namespace kvlathe::api {
namespace {

struct MarkTexts {
  const char *prefix, *suffix, *middle;
};

constexpr MarkTexts kMarkTexts[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},
};
constexpr const char* kFileMarks[] = {"<|file_sep|>", "<|file_separator|>", "<file_sep>"};
constexpr const char* kEndMarks[] = {"<|endoftext|>", "<|fim_pad|>",        "<|repo_name|>",
                                     "<|file_sep|>",  "<|file_separator|>", "<file_sep>",
                                     "<fim_pad>",     "<repo_name>"};

// The token that is written so.
std::optional<int32_t> MarkOf(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.Tokenize(text, /*add_bos=*/false);
  if (ids.size() != 1 || tokenizer.TokenBytes(ids[0], /*keep_special=*/true) != text) {
    return std::nullopt;
  }
  return ids[0];
}

Status AppendText(const Tokenizer& tokenizer, std::string_view text, std::vector<int32_t>* ids) {
  KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> more,
                       tokenizer.TryTokenize(text, /*add_bos=*/false, /*parse_special=*/false));
  ids->insert(ids->end(), more.begin(), more.end());
  return OkStatus();
}

}  // namespace

std::optional<FillMarks> FindFillMarks(const Tokenizer& tokenizer) {
  for (const MarkTexts& texts : kMarkTexts) {
    const auto prefix = MarkOf(tokenizer, texts.prefix), suffix = MarkOf(tokenizer, texts.suffix),
               middle = MarkOf(tokenizer, texts.middle);
    if (!prefix || !suffix || !middle) continue;
    FillMarks marks = {
        .prefix = *prefix, .suffix = *suffix, .middle = *middle, .file = {}, .ends = {}};
    for (const char* const text : kFileMarks) {
      if (!marks.file) marks.file = MarkOf(tokenizer, text);
    }
    for (const char* const text : kEndMarks) {
      if (const auto end = MarkOf(tokenizer, text)) marks.ends.push_back(*end);
    }
    return marks;
  }
  return std::nullopt;
}

StatusOr<std::vector<int32_t>> TokensToFill(const Tokenizer& tokenizer, const FillMarks& marks,
                                            const std::vector<NamedText>& files,
                                            std::string_view prefix, std::string_view suffix) {
  std::vector<int32_t> ids = tokenizer.Tokenize("", /*add_bos=*/true);
  for (const NamedText& file : files) {
    ids.push_back(marks.file.value());
    KVL_RETURN_IF_ERROR(AppendText(tokenizer, file.name + "\n" + file.text, &ids));
  }
  if (!files.empty()) ids.push_back(*marks.file);
  ids.push_back(marks.prefix);
  KVL_RETURN_IF_ERROR(AppendText(tokenizer, prefix, &ids));
  ids.push_back(marks.suffix);
  KVL_RETURN_IF_ERROR(AppendText(tokenizer, suffix, &ids));
  ids.push_back(marks.middle);
  return ids;
}

}  // namespace kvlathe::api
