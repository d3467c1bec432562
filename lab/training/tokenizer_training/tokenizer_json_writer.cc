#include "training/tokenizer_training/tokenizer_json_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "tokenizer/text_map.h"
#include "tokenizer/utf8.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;
using Kind = SentencePieceModel::Kind;
using Piece = SentencePieceModel::Piece;

// Longer than any learned piece (16 characters); bounds what a hostile file makes us do.
constexpr size_t kMaxPieceBytes = 256;
constexpr const char* kMetaspace = "\u2581";

Status CheckHasEqual(const SentencePieceModel& model) {
  const auto unsupported = [](std::string_view what) {
    return Error(StatusCode::kUnimplemented, "{} has no equal in tokenizer.json", what);
  };
  if (!model.is_bpe) return unsupported("a model other than BPE");
  if (!model.byte_fallback) return unsupported("a vocabulary without byte fallback");
  if (model.whitespace_is_suffix) return unsupported("white space as a suffix");
  if (model.has_rules) return unsupported("a normalisation other than identity");
  if (model.remove_extra_whitespaces) return unsupported("the removal of extra white space");
  if (!model.escape_whitespaces) return unsupported("white space that is not escaped");
  for (const Piece& piece : model.pieces) {
    if (piece.kind == Kind::kUserDefined || piece.kind == Kind::kUnused) {
      return unsupported(fmt::format("the {} piece \"{}\"",
                                     piece.kind == Kind::kUnused ? "unused" : "user-defined",
                                     piece.text));
    }
    if (piece.text.size() > kMaxPieceBytes) {
      return unsupported(fmt::format("a piece of {} bytes", piece.text.size()));
    }
  }
  return OkStatus();
}

struct Merge {
  std::string_view left;
  std::string_view right;
};

// Finds the one merge that forms a piece. Within the stretch of text that becomes a piece, merges
// run as they do on the piece alone, because none of them crosses its ends; so the last merge of
// the piece alone is the last one wherever the piece is formed.
class MergeFinder {
 public:
  // The pieces must outlive the finder.
  explicit MergeFinder(const std::vector<Piece>& pieces) {
    for (const Piece& piece : pieces) {
      if (piece.kind == Kind::kNormal) score_of_.try_emplace(piece.text, piece.score);
    }
  }

  // None for a single character and for a piece that its characters never grow into.
  std::optional<Merge> MergeOf(std::string_view piece) {
    symbols_.clear();
    for (size_t pos = 0; pos < piece.size(); pos += symbols_.back().size()) {
      symbols_.push_back(piece.substr(pos, ReadUtf8(piece, pos).n_bytes));
    }
    while (symbols_.size() > 1) {
      const std::optional<size_t> left = BestPair();
      if (!left) return std::nullopt;
      if (symbols_.size() == 2) return Merge{symbols_[0], symbols_[1]};
      symbols_[*left] = Joined(*left);
      symbols_.erase(symbols_.begin() + static_cast<int64_t>(*left) + 1);
    }
    return std::nullopt;
  }

 private:
  // Neighbours are neighbours in the piece too.
  std::string_view Joined(size_t left) const {
    return {symbols_[left].data(), symbols_[left].size() + symbols_[left + 1].size()};
  }

  // The leftmost of the pairs of the greatest score.
  std::optional<size_t> BestPair() const {
    std::optional<size_t> best;
    float best_score = 0;
    for (size_t i = 0; i + 1 < symbols_.size(); ++i) {
      const auto entry = score_of_.find(Joined(i));
      if (entry == score_of_.end() || (best && entry->second <= best_score)) continue;
      best = i;
      best_score = entry->second;
    }
    return best;
  }

  TextMap<float> score_of_;
  std::vector<std::string_view> symbols_;
};

// "left right" in the order in which the pieces are formed.
StatusOr<Json> MergesOf(const SentencePieceModel& model) {
  std::vector<const Piece*> order;
  for (const Piece& piece : model.pieces) {
    if (piece.kind == Kind::kNormal) order.push_back(&piece);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Piece* a, const Piece* b) { return a->score > b->score; });
  MergeFinder finder(model.pieces);
  Json merges = Json::array();
  const Piece* previous = nullptr;
  for (const Piece* piece : order) {
    const std::optional<Merge> merge = finder.MergeOf(piece->text);
    if (!merge) continue;
    // Among equals the leftmost is first in one form, the lower id in the other.
    if (previous != nullptr && previous->score == piece->score) {
      return Error(StatusCode::kUnimplemented,
                   "pieces \"{}\" and \"{}\" of one score have no equal in tokenizer.json",
                   previous->text, piece->text);
    }
    merges.push_back(fmt::format("{} {}", merge->left, merge->right));
    previous = piece;
  }
  return merges;
}

StatusOr<Json> ModelSection(const SentencePieceModel& model) {
  Json vocab = Json::object();
  std::string unk_token;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const Piece& piece = model.pieces[id];
    vocab.push_back({piece.text, id});
    if (piece.kind == Kind::kUnknown) unk_token = piece.text;
  }
  KVL_ASSIGN_OR_RETURN(Json merges, MergesOf(model));
  return Json{{"type", "BPE"},
              {"dropout", nullptr},
              {"unk_token", unk_token},
              {"continuing_subword_prefix", nullptr},
              {"end_of_word_suffix", nullptr},
              {"fuse_unk", true},
              {"byte_fallback", true},
              {"ignore_merges", false},
              {"vocab", std::move(vocab)},
              {"merges", std::move(merges)}};
}

Json ReplaceStep(const char* pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{"String", pattern}}}, {"content", content}};
}

Json NormalizerSection(const SentencePieceModel& model) {
  Json steps = Json::array();
  if (model.add_dummy_prefix) steps.push_back({{"type", "Prepend"}, {"prepend", kMetaspace}});
  steps.push_back(ReplaceStep(" ", kMetaspace));
  return {{"type", "Sequence"}, {"normalizers", std::move(steps)}};
}

Json DecoderSection(const SentencePieceModel& model) {
  Json steps = {ReplaceStep(kMetaspace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (model.add_dummy_prefix) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return {{"type", "Sequence"}, {"decoders", std::move(steps)}};
}

Json AddedTokensSection(const SentencePieceModel& model) {
  Json added = Json::array();
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const Piece& piece = model.pieces[id];
    if (piece.kind != Kind::kUnknown && piece.kind != Kind::kControl) continue;
    added.push_back({{"id", id},
                     {"content", piece.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  return added;
}

// <s> in front of every text.
Json PostProcessorSection(const SentencePieceModel& model) {
  const auto bos = std::find_if(model.pieces.begin(), model.pieces.end(), [](const Piece& piece) {
    return piece.kind == Kind::kControl && piece.text == "<s>";
  });
  if (bos == model.pieces.end()) return nullptr;
  const auto special = [](int type_id) {
    return Json{{"SpecialToken", {{"id", "<s>"}, {"type_id", type_id}}}};
  };
  const auto sequence = [](const char* name, int type_id) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type_id}}}};
  };
  const auto bos_id = bos - model.pieces.begin();
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({special(0), sequence("A", 0)})},
          {"pair", Json::array({special(0), sequence("A", 0), special(1), sequence("B", 1)})},
          {"special_tokens",
           {{"<s>",
             {{"id", "<s>"}, {"ids", Json::array({bos_id})}, {"tokens", Json::array({"<s>"})}}}}}};
}

}  // namespace

StatusOr<std::string> TokenizerJsonOf(const SentencePieceModel& model) {
  KVL_RETURN_IF_ERROR(CheckHasEqual(model));
  KVL_ASSIGN_OR_RETURN(Json model_section, ModelSection(model));
  const Json file = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", AddedTokensSection(model)},
                     {"normalizer", NormalizerSection(model)},
                     {"pre_tokenizer", nullptr},
                     {"post_processor", PostProcessorSection(model)},
                     {"decoder", DecoderSection(model)},
                     {"model", std::move(model_section)}};
  return file.dump(1) + "\n";
}

}  // namespace kvlathe
