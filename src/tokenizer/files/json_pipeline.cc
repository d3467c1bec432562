// The normalizer, pre_tokenizer and decoder sections of tokenizer.json.
#include <optional>

#include "tokenizer/files/json_fields.h"
#include "tokenizer/files/tokenizer_json.h"

namespace kvlathe {
namespace {

using nlohmann::json;

Status Unsupported(const char* section, const std::string& type) {
  return Error(StatusCode::kUnimplemented, "{} \"{}\" is not supported", section, type);
}

struct SectionNames {
  const char* section;
  const char* list;  // of a Sequence
};

Status AddSteps(const json& section, const SectionNames& names, int depth,
                std::vector<json>* steps) {
  constexpr int kMaxDepth = 8;
  if (!section.is_object()) {
    return Error(StatusCode::kDataLoss, "\"{}\" is not an object", names.section);
  }
  KVL_ASSIGN_OR_RETURN(const std::string type, StringField(section, "type"));
  if (type != "Sequence") {
    steps->push_back(section);
    return OkStatus();
  }
  const json& list = FieldOrNull(section, names.list);
  if (!list.is_array()) {
    return Error(StatusCode::kDataLoss, "{} \"Sequence\" has no list \"{}\"", names.section,
                 names.list);
  }
  if (depth == kMaxDepth) return Unsupported(names.section, "Sequence in itself");
  for (const json& step : list) {
    KVL_RETURN_IF_ERROR(AddSteps(step, names, depth + 1, steps));
  }
  return OkStatus();
}

// A {"type": "Sequence", <list>: [...]} holds steps, anything else is one step.
StatusOr<std::vector<json>> StepsOf(const json& section, const SectionNames& names) {
  std::vector<json> steps;
  if (!section.is_null()) KVL_RETURN_IF_ERROR(AddSteps(section, names, 0, &steps));
  return steps;
}

// {"String": "..."} as it is; {"Regex": "..."} is returned through *is_regex.
StatusOr<std::string> PatternOf(const json& step, bool* is_regex) {
  const json& pattern = FieldOrNull(step, "pattern");
  *is_regex = !FieldOrNull(pattern, "Regex").is_null();
  KVL_ASSIGN_OR_RETURN(std::string text, StringField(pattern, *is_regex ? "Regex" : "String"));
  if (text.empty()) return Error(StatusCode::kDataLoss, "a \"pattern\" is empty or missing");
  return text;
}

// Of a text; *regex has the expression instead where it is one.
StatusOr<ReplaceStep> ParseReplace(const json& step, const char* section,
                                   std::optional<Regex>* regex) {
  bool is_regex = false;
  KVL_ASSIGN_OR_RETURN(std::string pattern, PatternOf(step, &is_regex));
  if (is_regex && regex == nullptr) return Unsupported(section, "Replace with a Regex pattern");
  if (is_regex) {
    KVL_ASSIGN_OR_RETURN(*regex, Regex::Compile(pattern));
    KVL_ASSIGN_OR_RETURN(std::string content, StringField(step, "content"));
    return ReplaceStep{{}, std::move(content)};
  }
  if (pattern.size() > ReplaceStep::kMaxPatternBytes) {
    return Error(StatusCode::kUnimplemented,
                 "{} \"Replace\" has a pattern of {} bytes; at most {} are supported", section,
                 pattern.size(), ReplaceStep::kMaxPatternBytes);
  }
  KVL_ASSIGN_OR_RETURN(std::string content, StringField(step, "content"));
  return ReplaceStep{std::move(pattern), std::move(content)};
}

StatusOr<SplitBehavior> ParseBehavior(const json& step, const char* fallback) {
  KVL_ASSIGN_OR_RETURN(const std::string name, StringField(step, "behavior", fallback));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  return Unsupported("split behavior", name);
}

Status AddSplit(const json& step, PreTokenizer* out) {
  bool is_regex = false;
  KVL_ASSIGN_OR_RETURN(const std::string pattern, PatternOf(step, &is_regex));
  KVL_ASSIGN_OR_RETURN(const SplitBehavior behavior, ParseBehavior(step, "Isolated"));
  KVL_ASSIGN_OR_RETURN(const bool invert, BoolField(step, "invert", false));
  if (is_regex) {
    KVL_ASSIGN_OR_RETURN(PreTokenizer::Step split,
                         PatternSplit(pattern, behavior, invert, RegexSyntax::kOniguruma));
    return out->AddStep(std::move(split));
  }
  KVL_ASSIGN_OR_RETURN(Regex regex, Regex::CompileLiteral(pattern));
  return out->AddStep(SplitStep{std::move(regex), behavior, invert});
}

Status AddByteLevel(const json& step, PreTokenizer* out) {
  KVL_ASSIGN_OR_RETURN(const bool adds_space, BoolField(step, "add_prefix_space", true));
  KVL_ASSIGN_OR_RETURN(const bool uses_regex, BoolField(step, "use_regex", true));
  if (adds_space) KVL_RETURN_IF_ERROR(out->AddStep(PrefixSpaceStep{}));
  if (uses_regex) {
    KVL_ASSIGN_OR_RETURN(PreTokenizer::Step words, Gpt2Split());
    KVL_RETURN_IF_ERROR(out->AddStep(std::move(words)));
  }
  return OkStatus();
}

// Newer files have prepend_scheme and split, older ones add_prefix_space.
StatusOr<MetaspaceStep> ParseMetaspace(const json& step) {
  MetaspaceStep metaspace;
  KVL_ASSIGN_OR_RETURN(metaspace.replacement, StringField(step, "replacement", "\u2581"));
  KVL_ASSIGN_OR_RETURN(const bool adds_space, BoolField(step, "add_prefix_space", true));
  KVL_ASSIGN_OR_RETURN(const std::string scheme,
                       StringField(step, "prepend_scheme", adds_space ? "always" : "never"));
  if (scheme == "never") {
    metaspace.prepend = MetaspaceStep::Prepend::kNever;
  } else if (scheme == "first") {
    metaspace.prepend = MetaspaceStep::Prepend::kFirst;
  } else if (scheme == "always") {
    metaspace.prepend = MetaspaceStep::Prepend::kAlways;
  } else {
    return Unsupported("prepend_scheme", scheme);
  }
  if (metaspace.replacement.empty()) {
    return Error(StatusCode::kDataLoss, "Metaspace has an empty \"replacement\"");
  }
  return metaspace;
}

Status AddMetaspace(const json& step, PreTokenizer* out) {
  KVL_ASSIGN_OR_RETURN(MetaspaceStep metaspace, ParseMetaspace(step));
  KVL_ASSIGN_OR_RETURN(const bool splits, BoolField(step, "split", true));
  const std::string replacement = metaspace.replacement;
  KVL_RETURN_IF_ERROR(out->AddStep(std::move(metaspace)));
  if (!splits) return OkStatus();
  KVL_ASSIGN_OR_RETURN(Regex regex, Regex::CompileLiteral(replacement));
  return out->AddStep(SplitStep{std::move(regex), SplitBehavior::kMergedWithNext});
}

// The parts between matches are pieces, or with `invert` the matches.
Status AddRemoving(std::string_view pattern, bool invert, PreTokenizer* out) {
  KVL_ASSIGN_OR_RETURN(PreTokenizer::Step split,
                       PatternSplit(pattern, SplitBehavior::kRemoved, invert, RegexSyntax::kRust));
  return out->AddStep(std::move(split));
}

Status AddDelimiter(const json& step, PreTokenizer* out) {
  KVL_ASSIGN_OR_RETURN(const std::string delimiter, StringField(step, "delimiter"));
  if (delimiter.empty()) {
    return Error(StatusCode::kDataLoss, "CharDelimiterSplit has an empty \"delimiter\"");
  }
  KVL_ASSIGN_OR_RETURN(Regex regex, Regex::CompileLiteral(delimiter));
  return out->AddStep(SplitStep{std::move(regex), SplitBehavior::kRemoved});
}

Status AddPunctuation(SplitBehavior behavior, PreTokenizer* out) {
  KVL_ASSIGN_OR_RETURN(PreTokenizer::Step punctuation, PunctuationSplit(behavior));
  return out->AddStep(std::move(punctuation));
}

Status AddPreTokenizerStep(const json& step, const std::string& type, PreTokenizer* out) {
  if (type == "Split") return AddSplit(step, out);
  if (type == "ByteLevel") return AddByteLevel(step, out);
  if (type == "Metaspace") return AddMetaspace(step, out);
  if (type == "Digits") {
    KVL_ASSIGN_OR_RETURN(const bool individual, BoolField(step, "individual_digits", false));
    KVL_ASSIGN_OR_RETURN(PreTokenizer::Step digits, DigitSplit(individual));
    return out->AddStep(std::move(digits));
  }
  if (type == "Punctuation") {
    KVL_ASSIGN_OR_RETURN(const SplitBehavior behavior, ParseBehavior(step, "Isolated"));
    return AddPunctuation(behavior, out);
  }
  if (type == "Whitespace") return AddRemoving(R"(\w+|[^\w\s]+)", /*invert=*/true, out);
  if (type == "WhitespaceSplit") return AddRemoving(R"(\s)", /*invert=*/false, out);
  if (type == "CharDelimiterSplit") return AddDelimiter(step, out);
  if (type == "BertPreTokenizer") {
    KVL_RETURN_IF_ERROR(AddRemoving(R"(\s)", /*invert=*/false, out));
    return AddPunctuation(SplitBehavior::kIsolated, out);
  }
  return Unsupported("pre_tokenizer", type);
}

Status AddReplace(const json& step, Normalizer* out) {
  std::optional<Regex> regex;
  KVL_ASSIGN_OR_RETURN(ReplaceStep replace, ParseReplace(step, "normalizer", &regex));
  if (!regex) return out->AddStep(std::move(replace));
  return out->AddStep(ReplaceMatchesStep{*std::move(regex), std::move(replace.content)});
}

Status AddStrip(const json& step, Normalizer* out) {
  KVL_ASSIGN_OR_RETURN(const bool left, BoolField(step, "strip_left", true));
  KVL_ASSIGN_OR_RETURN(const bool right, BoolField(step, "strip_right", true));
  return out->AddStep(StripStep{left, right});
}

Status AddNormalizerStep(const json& step, const std::string& type, Normalizer* out) {
  if (type == "NFC") return out->AddStep(UnicodeForm::kNfc);
  if (type == "NFD") return out->AddStep(UnicodeForm::kNfd);
  if (type == "NFKC") return out->AddStep(UnicodeForm::kNfkc);
  if (type == "NFKD") return out->AddStep(UnicodeForm::kNfkd);
  if (type == "Lowercase") return out->AddStep(CharacterStep::kLowercase);
  if (type == "StripAccents") return out->AddStep(CharacterStep::kStripAccents);
  if (type == "Nmt") return out->AddStep(CharacterStep::kNmt);
  if (type == "Strip") return AddStrip(step, out);
  if (type == "Replace") return AddReplace(step, out);
  if (type == "Prepend") {
    KVL_ASSIGN_OR_RETURN(std::string prefix, StringField(step, "prepend"));
    return out->AddStep(PrependStep{std::move(prefix)});
  }
  return Unsupported("normalizer", type);
}

// Whether the text loses a space in front.
StatusOr<bool> ParseStripDecoder(const json& step) {
  KVL_ASSIGN_OR_RETURN(const std::string content, StringField(step, "content", " "));
  const json& start = FieldOrNull(step, "start");
  const json& stop = FieldOrNull(step, "stop");
  const bool is_known =
      content == " " && (start == 0 || start == 1) && (stop == 0 || stop.is_null());
  if (!is_known) return Unsupported("decoder", "Strip of anything but one space in front");
  return start == 1;
}

}  // namespace

StatusOr<Normalizer> ParseNormalizer(const json& section) {
  KVL_ASSIGN_OR_RETURN(const std::vector<json> steps,
                       StepsOf(section, {"normalizer", "normalizers"}));
  Normalizer normalizer;
  for (const json& step : steps) {
    KVL_ASSIGN_OR_RETURN(const std::string type, StringField(step, "type"));
    KVL_RETURN_IF_ERROR(AddNormalizerStep(step, type, &normalizer));
  }
  return normalizer;
}

StatusOr<PreTokenizer> ParsePreTokenizer(const json& section, bool* byte_level) {
  KVL_ASSIGN_OR_RETURN(const std::vector<json> steps,
                       StepsOf(section, {"pre_tokenizer", "pretokenizers"}));
  PreTokenizer pre_tokenizer;
  *byte_level = false;
  for (size_t i = 0; i < steps.size(); ++i) {
    KVL_ASSIGN_OR_RETURN(const std::string type, StringField(steps[i], "type"));
    KVL_RETURN_IF_ERROR(AddPreTokenizerStep(steps[i], type, &pre_tokenizer));
    if (type != "ByteLevel") continue;
    *byte_level = true;
    // As the last step the alphabet would be undone at once.
    if (i + 1 < steps.size()) KVL_RETURN_IF_ERROR(pre_tokenizer.AddStep(ByteAlphabetStep{}));
  }
  return pre_tokenizer;
}

StatusOr<DecoderSpec> ParseDecoder(const json& section) {
  KVL_ASSIGN_OR_RETURN(const std::vector<json> steps, StepsOf(section, {"decoder", "decoders"}));
  DecoderSpec decoder;
  TextGrowth growth;
  const auto add_replacement = [&](ReplaceStep step) -> Status {
    KVL_RETURN_IF_ERROR(growth.Add(step.growth(), "a decoder"));
    decoder.replacements.push_back(std::move(step));
    return OkStatus();
  };
  for (const json& step : steps) {
    KVL_ASSIGN_OR_RETURN(const std::string type, StringField(step, "type"));
    if (type == "ByteLevel") {
      decoder.byte_level = true;
    } else if (type == "ByteFallback") {
      decoder.byte_fallback = true;
    } else if (type == "Replace") {
      KVL_ASSIGN_OR_RETURN(ReplaceStep replace, ParseReplace(step, "decoder", nullptr));
      KVL_RETURN_IF_ERROR(add_replacement(std::move(replace)));
    } else if (type == "Metaspace") {
      KVL_ASSIGN_OR_RETURN(MetaspaceStep metaspace, ParseMetaspace(step));
      decoder.strips_leading_space = metaspace.prepend != MetaspaceStep::Prepend::kNever;
      KVL_RETURN_IF_ERROR(add_replacement({std::move(metaspace.replacement), " "}));
    } else if (type == "Strip") {
      KVL_ASSIGN_OR_RETURN(decoder.strips_leading_space, ParseStripDecoder(step));
    } else if (type == "BPEDecoder") {
      KVL_ASSIGN_OR_RETURN(std::string suffix, StringField(step, "suffix", "</w>"));
      if (suffix.empty()) return Error(StatusCode::kDataLoss, "BPEDecoder has no \"suffix\"");
      decoder.strips_trailing_space = true;
      KVL_RETURN_IF_ERROR(add_replacement({std::move(suffix), " "}));
    } else if (type != "Fuse") {
      return Unsupported("decoder", type);
    }
  }
  return decoder;
}

}  // namespace kvlathe
