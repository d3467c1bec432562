// Tests and benchmarks have small tokenizers, made from a list of words.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace kvlathe {

inline const std::vector<std::string>& SampleWords() {
  static const std::vector<std::string> kWords = {
      "the", "lathe", "turns",  "slowly", "while",   "copper", "curls", "fall",     "upon",
      "a",   "bench", "beside", "seven",  "quiet",   "clocks", "and",   "nobody",   "measures",
      "how", "long",  "rain",   "has",    "drummed", "over",   "glass", "workshop", "roof"};
  return kWords;
}

// Adds to vocab and merges what spells `word` out of `symbols`, left to right.
inline void AddWordMerges(const std::vector<std::string>& symbols, nlohmann::json* vocab,
                          nlohmann::json* merges) {
  std::string left = symbols[0];
  for (size_t i = 1; i < symbols.size(); ++i) {
    const std::string merged = left + symbols[i];
    if (!vocab->contains(merged)) {
      (*vocab)[merged] = vocab->size();
      merges->push_back(left + " " + symbols[i]);
    }
    left = merged;
  }
}

inline std::vector<std::string> CharactersOf(std::string_view text) {
  std::vector<std::string> characters;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = ReadUtf8(text, pos);
    characters.emplace_back(text.substr(pos, c.n_bytes));
    pos += c.n_bytes;
  }
  return characters;
}

// Byte-level BPE: ids 0 to 255 are the bytes, then every prefix of " word"; <|end|> is special.
inline nlohmann::json ByteLevelSample() {
  nlohmann::json vocab = nlohmann::json::object(), merges = nlohmann::json::array();
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    vocab[BytesToAlphabet({&c, 1})] = byte;
  }
  for (const std::string& word : SampleWords()) {
    AddWordMerges(CharactersOf(BytesToAlphabet(" " + word)), &vocab, &merges);
  }
  const size_t end_id = vocab.size();
  return {{"added_tokens", {{{"id", end_id}, {"content", "<|end|>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

// SentencePiece-style BPE with byte fallback: <unk>, <s>, </s>, 256 bytes, characters, words.
inline nlohmann::json CharLevelSample() {
  nlohmann::json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}}, merges = nlohmann::json::array();
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  const auto add_character = [&](const std::string& c) {
    if (!vocab.contains(c)) vocab[c] = vocab.size();
  };
  add_character("\u2581");
  for (char c = '!'; c <= '~'; ++c) add_character(std::string(1, c));
  for (const std::string& word : SampleWords()) {
    AddWordMerges(CharactersOf("\u2581" + word), &vocab, &merges);
  }
  nlohmann::json added = nlohmann::json::array();
  for (const char* name : {"<unk>", "<s>", "</s>"}) {
    added.push_back(
        {{"id", vocab[name]}, {"content", name}, {"special", true}, {"normalized", false}});
  }
  const nlohmann::json metaspace = {{"String", "\u2581"}}, space = {{"String", " "}};
  return {{"added_tokens", added},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "\u2581"}},
              {{"type", "Replace"}, {"pattern", space}, {"content", "\u2581"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", metaspace}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", merges}}}};
}

// A serialised SentencePiece model (protocol buffer) with the pieces of CharLevelSample: BPE, byte
// fallback, no normalisation, a space in front of each text.
inline std::string SentencePieceSample() {
  const auto length_delimited = [](int field, std::string_view payload) {
    std::string out(1, static_cast<char>(field << 3 | 2));
    for (size_t n = payload.size();; n >>= 7) {
      out.push_back(static_cast<char>((n & 0x7F) | (n > 0x7F ? 0x80 : 0)));
      if (n <= 0x7F) break;
    }
    return out.append(payload);
  };
  const nlohmann::json vocab = CharLevelSample()["model"]["vocab"];
  std::vector<std::string> pieces(vocab.size());
  for (const auto& [piece, id] : vocab.items()) pieces[id.get<size_t>()] = piece;
  std::string model;
  for (size_t id = 0; id < pieces.size(); ++id) {
    constexpr char kUnknown = 2, kControl = 3, kByte = 6, kNormal = 1;
    const char type = id == 0 ? kUnknown : id < 3 ? kControl : id < 259 ? kByte : kNormal;
    const float score = -static_cast<float>(id);
    std::string piece = length_delimited(1, pieces[id]);
    piece.push_back('\x15');  // field 2, 32 bits
    piece.append(reinterpret_cast<const char*>(&score), sizeof(score));
    piece.append({'\x18', type});  // field 3
    model += length_delimited(1, piece);
  }
  model += length_delimited(2, std::string_view("\x18\x02\x98\x02\x01", 5));  // BPE, byte_fallback
  // identity, add_dummy_prefix, keep extra white space, escape white space
  model += length_delimited(
      3, length_delimited(1, "identity") + std::string("\x18\x01\x20\x00\x28\x01", 6));
  return model;
}

// Sentences of the sample words; the same on every machine.
inline std::string SampleText(size_t n_bytes) {
  Random random(17);
  std::string text;
  while (text.size() < n_bytes) {
    text += SampleWords()[random.Below(SampleWords().size())];
    const uint64_t ending = random.Below(24);
    text += ending == 0 ? ".\n" : ending == 1 ? ", " : ending == 2 ? " 1842 " : " ";
  }
  return text;
}

}  // namespace kvlathe
