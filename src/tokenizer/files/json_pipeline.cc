// The normalizer, pre_tokenizer and decoder sections of tokenizer.json.
#include "tokenizer/files/json_fields.h"
#include "tokenizer/files/tokenizer_json.h"

namespace kvlathe {
namespace {

using nlohmann::json;

Status Unsupported(const char* section, const std::string& type) {
  return Error(StatusCode::kUnimplemented, "{} \"{}\" is not supported", section, type);
}

// A {"type": "Sequence", <list_key>: [...]} holds steps, anything else is one step. Sequences do
// not nest in published files.
StatusOr<std::vector<json>> StepsOf(const json& section, const char* list_key, const char* name) {
  if (section.is_null()) return std::vector<json>();
  if (!section.is_object()) return Error(StatusCode::kDataLoss, "\"{}\" is not an object", name);
  KVL_ASSIGN_OR_RETURN(const std::string type, StringField(section, "type"));
  if (type != "Sequence") return std::vector<json>{section};
  const json& list = FieldOrNull(section, list_key);
  if (!list.is_array()) {
    return Error(StatusCode::kDataLoss, "{} \"Sequence\" has no list \"{}\"", name, list_key);
  }
  return std::vector<json>(list.begin(), list.end());
}

// {"String": "..."} as it is; {"Regex": "..."} is returned through *is_regex.
StatusOr<std::string> PatternOf(const json& step, bool* is_regex) {
  const json& pattern = FieldOrNull(step, "pattern");
  *is_regex = !FieldOrNull(pattern, "Regex").is_null();
  KVL_ASSIGN_OR_RETURN(std::string text, StringField(pattern, *is_regex ? "Regex" : "String"));
  if (text.empty()) return Error(StatusCode::kDataLoss, "a \"pattern\" is empty or missing");
  return text;
}

StatusOr<ReplaceStep> ParseReplace(const json& step, const char* section) {
  bool is_regex = false;
  KVL_ASSIGN_OR_RETURN(std::string pattern, PatternOf(step, &is_regex));
  if (is_regex) return Unsupported(section, "Replace with a Regex pattern");
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
  KVL_ASSIGN_OR_RETURN(Regex regex,
                       is_regex ? Regex::Compile(pattern) : Regex::CompileLiteral(pattern));
  return out->AddStep(SplitStep{std::move(regex), behavior, invert});
}

Status AddByteLevel(const json& step, PreTokenizer* out) {
  KVL_ASSIGN_OR_RETURN(const bool adds_space, BoolField(step, "add_prefix_space", true));
  KVL_ASSIGN_OR_RETURN(const bool uses_regex, BoolField(step, "use_regex", true));
  if (adds_space) KVL_RETURN_IF_ERROR(out->AddStep(PrefixSpaceStep{}));
  if (uses_regex) {
    KVL_ASSIGN_OR_RETURN(SplitStep words, Gpt2Split());
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

Status AddPreTokenizerStep(const json& step, const std::string& type, PreTokenizer* out) {
  if (type == "Split") return AddSplit(step, out);
  if (type == "ByteLevel") return AddByteLevel(step, out);
  if (type == "Metaspace") return AddMetaspace(step, out);
  if (type == "Digits") {
    KVL_ASSIGN_OR_RETURN(const bool individual, BoolField(step, "individual_digits", false));
    KVL_ASSIGN_OR_RETURN(SplitStep digits, DigitSplit(individual));
    return out->AddStep(std::move(digits));
  }
  if (type == "Punctuation") {
    KVL_ASSIGN_OR_RETURN(const SplitBehavior behavior, ParseBehavior(step, "Isolated"));
    KVL_ASSIGN_OR_RETURN(SplitStep punctuation, PunctuationSplit(behavior));
    return out->AddStep(std::move(punctuation));
  }
  return Unsupported("pre_tokenizer", type);
}

}  // namespace

StatusOr<Normalizer> ParseNormalizer(const json& section) {
  KVL_ASSIGN_OR_RETURN(const std::vector<json> steps,
                       StepsOf(section, "normalizers", "normalizer"));
  Normalizer normalizer;
  for (const json& step : steps) {
    KVL_ASSIGN_OR_RETURN(const std::string type, StringField(step, "type"));
    if (type == "NFC") {
      KVL_RETURN_IF_ERROR(normalizer.AddStep(UnicodeForm::kNfc));
    } else if (type == "NFD") {
      KVL_RETURN_IF_ERROR(normalizer.AddStep(UnicodeForm::kNfd));
    } else if (type == "NFKC") {
      KVL_RETURN_IF_ERROR(normalizer.AddStep(UnicodeForm::kNfkc));
    } else if (type == "NFKD") {
      KVL_RETURN_IF_ERROR(normalizer.AddStep(UnicodeForm::kNfkd));
    } else if (type == "Prepend") {
      KVL_ASSIGN_OR_RETURN(std::string prefix, StringField(step, "prepend"));
      KVL_RETURN_IF_ERROR(normalizer.AddStep(PrependStep{std::move(prefix)}));
    } else if (type == "Replace") {
      KVL_ASSIGN_OR_RETURN(ReplaceStep replace, ParseReplace(step, "normalizer"));
      KVL_RETURN_IF_ERROR(normalizer.AddStep(std::move(replace)));
    } else {
      return Unsupported("normalizer", type);
    }
  }
  return normalizer;
}

StatusOr<PreTokenizer> ParsePreTokenizer(const json& section, bool* byte_level) {
  KVL_ASSIGN_OR_RETURN(const std::vector<json> steps,
                       StepsOf(section, "pretokenizers", "pre_tokenizer"));
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
  KVL_ASSIGN_OR_RETURN(const std::vector<json> steps, StepsOf(section, "decoders", "decoder"));
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
      KVL_ASSIGN_OR_RETURN(ReplaceStep replace, ParseReplace(step, "decoder"));
      KVL_RETURN_IF_ERROR(add_replacement(std::move(replace)));
    } else if (type == "Metaspace") {
      KVL_ASSIGN_OR_RETURN(MetaspaceStep metaspace, ParseMetaspace(step));
      decoder.strips_leading_space = metaspace.prepend != MetaspaceStep::Prepend::kNever;
      KVL_RETURN_IF_ERROR(add_replacement({std::move(metaspace.replacement), " "}));
    } else if (type == "Strip") {
      const json& start = FieldOrNull(step, "start");
      decoder.strips_leading_space = start.is_number_integer() && start.get<int64_t>() > 0;
    } else if (type != "Fuse") {
      return Unsupported("decoder", type);
    }
  }
  return decoder;
}

}  // namespace kvlathe
