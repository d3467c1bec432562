#include "tokenizer/files/tokenizer_json.h"

#include "tokenizer/files/bpe_files.h"
#include "tokenizer/files/json_fields.h"
#include "tokenizer/files/model_settings.h"

namespace kvlathe {
namespace {

using nlohmann::json;

Status CheckModelType(const json& model) {
  if (!model.is_object()) return Error(StatusCode::kDataLoss, "there is no \"model\" object");
  // Files from before types were written are BPE if they have merges.
  KVL_ASSIGN_OR_RETURN(const std::string type,
                       StringField(model, "type", model.contains("merges") ? "BPE" : ""));
  if (type != "BPE") {
    return Error(StatusCode::kUnimplemented, "model type \"{}\" is not supported", type);
  }
  const json& dropout = FieldOrNull(model, "dropout");
  if (!dropout.is_null() && dropout != 0.0) {
    return Error(StatusCode::kUnimplemented, "model \"dropout\" is not supported");
  }
  return OkStatus();
}

Status ParseModel(const json& model, TokenizerParts* parts) {
  KVL_RETURN_IF_ERROR(CheckModelType(model));
  KVL_RETURN_IF_ERROR(AddVocabulary(FieldOrNull(model, "vocab"), &parts->vocabulary));
  BpeSpec& bpe = parts->bpe;
  KVL_ASSIGN_OR_RETURN(bpe.subword_prefix, StringField(model, "continuing_subword_prefix"));
  KVL_ASSIGN_OR_RETURN(bpe.word_suffix, StringField(model, "end_of_word_suffix"));
  KVL_RETURN_IF_ERROR(AddMerges(FieldOrNull(model, "merges"), parts->vocabulary, &bpe.merges,
                                bpe.subword_prefix.size()));
  KVL_ASSIGN_OR_RETURN(bpe.ignore_merges, BoolField(model, "ignore_merges", false));
  KVL_ASSIGN_OR_RETURN(bpe.byte_fallback, BoolField(model, "byte_fallback", false));
  KVL_ASSIGN_OR_RETURN(bpe.fuse_unk, BoolField(model, "fuse_unk", false));
  KVL_ASSIGN_OR_RETURN(const std::string unk_token, StringField(model, "unk_token"));
  if (unk_token.empty()) return OkStatus();
  bpe.unk_id = parts->vocabulary.Find(unk_token);
  if (!bpe.unk_id) {
    return Error(StatusCode::kDataLoss, "\"unk_token\" \"{}\" is not in the vocabulary", unk_token);
  }
  return OkStatus();
}

Status ParseAddedTokens(const json& list, TokenizerParts* parts) {
  if (list.is_null()) return OkStatus();
  if (!list.is_array()) return Error(StatusCode::kDataLoss, "\"added_tokens\" is not a list");
  std::vector<AddedToken> tokens;
  for (const json& entry : list) {
    KVL_ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(entry));
    const json& id = FieldOrNull(entry, "id");
    if (!id.is_number_integer()) {
      return Error(StatusCode::kDataLoss, "added token \"{}\" has no id", token.content);
    }
    token.id = id.get<int64_t>();
    tokens.push_back(std::move(token));
  }
  return MergeAddedTokens(tokens, &parts->vocabulary, &parts->added_tokens);
}

// The special tokens that the template puts before the text.
Status AppendTemplatePrefix(const json& processor, TokenizerParts* parts) {
  const json& single = FieldOrNull(processor, "single");
  if (!single.is_array()) return Error(StatusCode::kDataLoss, "a template has no list \"single\"");
  for (const json& item : single) {
    if (!FieldOrNull(item, "Sequence").is_null()) break;
    KVL_ASSIGN_OR_RETURN(const std::string name,
                         StringField(FieldOrNull(item, "SpecialToken"), "id"));
    const auto id = parts->vocabulary.Find(name);
    if (!id) {
      return Error(StatusCode::kDataLoss, "the template's token \"{}\" is not in the vocabulary",
                   name);
    }
    parts->prefix_ids.push_back(*id);
  }
  return OkStatus();
}

Status ParsePostProcessor(const json& section, TokenizerParts* parts) {
  if (section.is_null()) return OkStatus();
  KVL_ASSIGN_OR_RETURN(const std::string type, StringField(section, "type"));
  if (type == "TemplateProcessing") return AppendTemplatePrefix(section, parts);
  if (type == "Sequence") {
    const json& list = FieldOrNull(section, "processors");
    if (!list.is_array()) {
      return Error(StatusCode::kDataLoss, "post_processor \"Sequence\" has no list \"processors\"");
    }
    for (const json& item : list) {
      KVL_ASSIGN_OR_RETURN(const std::string item_type, StringField(item, "type"));
      if (item_type == "TemplateProcessing") {
        KVL_RETURN_IF_ERROR(AppendTemplatePrefix(item, parts));
      } else if (item_type != "ByteLevel") {
        return Error(StatusCode::kUnimplemented, "post_processor \"{}\" is not supported",
                     item_type);
      }
    }
    return OkStatus();
  }
  // ByteLevel only trims offsets, which nobody here asks for.
  if (type == "ByteLevel") return OkStatus();
  return Error(StatusCode::kUnimplemented, "post_processor \"{}\" is not supported", type);
}

}  // namespace

StatusOr<TokenizerParts> ParseTokenizerJson(const json& file) {
  if (!file.is_object()) return Error(StatusCode::kDataLoss, "not a JSON object");
  TokenizerParts parts;
  KVL_RETURN_IF_ERROR(ParseModel(FieldOrNull(file, "model"), &parts));
  KVL_RETURN_IF_ERROR(ParseAddedTokens(FieldOrNull(file, "added_tokens"), &parts));
  KVL_ASSIGN_OR_RETURN(parts.normalizer, ParseNormalizer(FieldOrNull(file, "normalizer")));
  KVL_ASSIGN_OR_RETURN(parts.pre_tokenizer,
                       ParsePreTokenizer(FieldOrNull(file, "pre_tokenizer"), &parts.byte_level));
  KVL_ASSIGN_OR_RETURN(parts.decoder, ParseDecoder(FieldOrNull(file, "decoder")));
  parts.decoder.byte_level |= parts.byte_level;
  KVL_RETURN_IF_ERROR(ParsePostProcessor(FieldOrNull(file, "post_processor"), &parts));
  return parts;
}

}  // namespace kvlathe
