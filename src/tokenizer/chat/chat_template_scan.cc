#include "tokenizer/chat/chat_template_scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"

namespace kvlathe {
namespace {

constexpr std::string_view kSpaces = " \t\n\v\f\r";

struct Block {
  char kind = 0;  // '{', '%' or '#'; 0: the end of the template
  size_t begin = 0;
  size_t end = 0;
  bool strips_before = false;
  bool strips_after = false;
  std::string_view body;
};

// The end of the string that starts with the quote at text[pos]; npos if it is not closed.
size_t EndOfString(std::string_view text, size_t pos) {
  for (size_t i = pos + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == text[pos]) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

// Where the block of `kind` whose body starts at pos is closed.
size_t FindClose(std::string_view text, size_t pos, char kind) {
  const char closing[] = {kind == '{' ? '}' : kind, '}'};
  while (pos < text.size()) {
    if (text.substr(pos).starts_with(std::string_view(closing, 2))) return pos;
    const bool is_string = kind != '#' && (text[pos] == '\'' || text[pos] == '"');
    pos = is_string ? EndOfString(text, pos) : pos + 1;
  }
  return std::string_view::npos;
}

StatusOr<Block> NextBlock(std::string_view text, size_t pos) {
  Block block;
  size_t begin = pos;
  while (true) {
    begin = text.find('{', begin);
    if (begin == std::string_view::npos || begin + 1 == text.size()) {
      block.begin = block.end = text.size();
      return block;
    }
    if (std::string_view("{%#").find(text[begin + 1]) != std::string_view::npos) break;
    ++begin;
  }
  block.kind = text[begin + 1];
  block.begin = begin;
  const size_t close = FindClose(text, begin + 2, block.kind);
  if (close == std::string_view::npos) {
    return Error(StatusCode::kDataLoss, "chat template: the block at byte {} is not closed", begin);
  }
  block.end = close + 2;
  block.body = text.substr(begin + 2, close - begin - 2);
  if (block.body.starts_with('-')) block.strips_before = true;
  if (block.body.starts_with('-') || block.body.starts_with('+')) block.body.remove_prefix(1);
  if (block.body.ends_with('-')) block.strips_after = true;
  if (block.body.ends_with('-') || block.body.ends_with('+')) block.body.remove_suffix(1);
  return block;
}

std::string_view PrintedText(std::string_view raw, const Block& before, const Block& after) {
  const bool starts_line = before.kind == 0 || raw.starts_with('\n');
  if (before.strips_after) {
    raw.remove_prefix(std::min(raw.find_first_not_of(kSpaces), raw.size()));
  } else if (before.kind == '%' || before.kind == '#') {
    if (raw.starts_with('\n')) raw.remove_prefix(1);
  }
  if (after.strips_before) return raw.substr(0, raw.find_last_not_of(kSpaces) + 1);
  if (after.kind == 0) {
    if (raw.ends_with('\n')) raw.remove_suffix(1);
  } else if (after.kind != '{') {
    const size_t last = raw.find_last_not_of(" \t");
    const size_t n_kept = last == std::string_view::npos ? 0 : last + 1;
    if (n_kept == 0 ? starts_line : raw[n_kept - 1] == '\n') raw = raw.substr(0, n_kept);
  }
  return raw;
}

// What the code of a block is made of.
struct Piece {
  enum class Kind { kString, kName, kSign };
  Kind kind;
  std::string text;  // of a string: its content
};
using Pieces = std::vector<Piece>;

bool IsSign(const Piece& piece, char c) {
  return piece.kind == Piece::Kind::kSign && piece.text[0] == c;
}

// The content of a quoted string.
std::string Resolved(std::string_view quoted) {
  std::string text;
  for (size_t i = 1; i + 1 < quoted.size(); ++i) {
    char c = quoted[i];
    if (c == '\\') {
      c = quoted[++i];
      if (c == 'n') c = '\n';
      if (c == 'r') c = '\r';
      if (c == 't') c = '\t';
    }
    text += c;
  }
  return text;
}

std::string Quoted(std::string_view text) {
  return fmt::format("'{}'",
                     absl::StrReplaceAll(std::string(text), {{"\\", "\\\\"}, {"'", "\\'"}}));
}

std::string Unquoted(std::string_view quoted) {
  return absl::StrReplaceAll(std::string(quoted.substr(1, quoted.size() - 2)),
                             {{"\\\\", "\\"}, {"\\'", "'"}});
}

Pieces Split(std::string_view body) {
  Pieces pieces;
  for (size_t i = 0; i < body.size();) {
    size_t end = i + 1;
    if (body[i] == '\'' || body[i] == '"') {
      // FindClose has seen that every string is closed.
      end = EndOfString(body, i);
      pieces.push_back({Piece::Kind::kString, Resolved(body.substr(i, end - i))});
    } else if (absl::ascii_isalnum(static_cast<unsigned char>(body[i])) || body[i] == '_') {
      while (end < body.size() &&
             (absl::ascii_isalnum(static_cast<unsigned char>(body[end])) || body[end] == '_')) {
        ++end;
      }
      pieces.push_back({Piece::Kind::kName, std::string(body.substr(i, end - i))});
    } else if (kSpaces.find(body[i]) == std::string_view::npos) {
      pieces.push_back({Piece::Kind::kSign, std::string(1, body[i])});
    }
    i = end;
  }
  return pieces;
}

// x['content'] for x.content, filters for methods of strings, + for ~.
Pieces InOneSpelling(const Pieces& pieces) {
  const auto sign_at = [&](size_t i, char c) { return i < pieces.size() && IsSign(pieces[i], c); };
  Pieces spelt;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (IsSign(pieces[i], '~')) {
      spelt.push_back({Piece::Kind::kSign, "+"});
      continue;
    }
    const std::string after_dot =
        IsSign(pieces[i], '.') && i + 1 < pieces.size() ? pieces[i + 1].text : "";
    const bool calls = sign_at(i + 2, '(');
    if ((after_dot == "content" || after_dot == "role") && !calls) {
      spelt.push_back({Piece::Kind::kSign, "["});
      spelt.push_back({Piece::Kind::kString, after_dot});
      spelt.push_back({Piece::Kind::kSign, "]"});
      ++i;
    } else if ((after_dot == "strip" || after_dot == "title") && calls && sign_at(i + 3, ')')) {
      spelt.push_back({Piece::Kind::kSign, "|"});
      spelt.push_back({Piece::Kind::kName, after_dot == "strip" ? "trim" : after_dot});
      i += 3;
    } else if (after_dot == "replace" && calls) {
      spelt.push_back({Piece::Kind::kSign, "|"});
    } else {
      spelt.push_back(pieces[i]);
    }
  }
  return spelt;
}

// Sums of strings as one string.
Pieces Summed(const Pieces& pieces) {
  // Signs that bind a string tighter than + does.
  const auto binds = [](const Piece& p) {
    return p.kind == Piece::Kind::kSign &&
           std::string_view("|.[(*/%").find(p.text) != std::string_view::npos;
  };
  Pieces sums;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const size_t n = sums.size();
    const bool joins = pieces[i].kind == Piece::Kind::kString && n >= 2 &&
                       IsSign(sums[n - 1], '+') && sums[n - 2].kind == Piece::Kind::kString &&
                       (n == 2 || IsSign(sums[n - 3], '(') || !binds(sums[n - 3])) &&
                       (i + 1 == pieces.size() || !binds(pieces[i + 1]));
    if (joins) {
      sums.pop_back();
      sums.back().text += pieces[i].text;
    } else {
      sums.push_back(pieces[i]);
    }
  }
  return sums;
}

std::string Code(std::span<const Piece> pieces) {
  std::string code;
  for (const Piece& p : pieces) code += p.kind == Piece::Kind::kString ? Quoted(p.text) : p.text;
  return code;
}

// A block, or a print with the text around it.
struct Item {
  bool prints = false;
  bool has_text = false;  // of the template's own between blocks
  Pieces pieces;
};

bool IsVariable(const Pieces& pieces, size_t i) {
  return pieces[i].kind == Piece::Kind::kName &&
         (i == 0 || (!IsSign(pieces[i - 1], '.') && !IsSign(pieces[i - 1], '|')));
}

// The names by which recognisers know the variables of a template.
constexpr std::string_view kVariables[] = {"messages", "message",        "loop_messages",
                                           "content",  "system_message", "first_user_prefix"};

// What the variable of "set NAME=..." or "for NAME in ..." is called in one spelling; empty if it
// keeps its name.
std::string_view VariableOf(const Pieces& statement) {
  if (statement.size() < 4 || statement[1].kind != Piece::Kind::kName) return {};
  const std::string value = Code(std::span(statement).subspan(3));
  const bool is_messages =
      value == "messages" || value == "messages[1:]" || value == "loop_messages";
  if (statement[0].text == "for" && statement[2].text == "in") return is_messages ? "message" : "";
  if (statement[0].text != "set" || !IsSign(statement[2], '=')) return {};
  if (is_messages) return "loop_messages";
  if (value == "message['content']") return "content";
  if (value == "messages[0]['content']") return "system_message";
  if (value == "messages[0]['content']+'\n\n'") return "first_user_prefix";
  return {};
}

void Rename(const absl::flat_hash_map<std::string, std::string>& names, Pieces* pieces) {
  for (size_t i = 0; i < pieces->size(); ++i) {
    if (!IsVariable(*pieces, i)) continue;
    const auto it = names.find((*pieces)[i].text);
    if (it != names.end()) (*pieces)[i].text = it->second;
  }
}

// A name that the template has already is given to no other variable.
void RenameVariables(std::vector<Item>* items) {
  absl::flat_hash_set<std::string> taken;
  for (const Item& item : *items) {
    for (size_t i = 0; i < item.pieces.size(); ++i) {
      if (IsVariable(item.pieces, i)) taken.insert(item.pieces[i].text);
    }
  }
  absl::flat_hash_map<std::string, std::string> names;
  for (const Item& item : *items) {
    if (item.prints) continue;
    Pieces statement = item.pieces;
    Rename(names, &statement);
    const std::string name(VariableOf(statement));
    if (name.empty() || taken.contains(name)) continue;
    const std::string& own = statement[1].text;
    if (std::ranges::find(kVariables, own) == std::end(kVariables)) names[own] = name;
  }
  for (Item& item : *items) Rename(names, &item.pieces);
}

// In parentheses unless it is a plain sum.
Pieces AsTerm(Pieces pieces) {
  int depth = 0;
  bool is_sum = true;
  for (const Piece& p : pieces) {
    if (p.kind == Piece::Kind::kString) continue;
    if (std::string_view("([{").find(p.text) != std::string_view::npos) ++depth;
    if (std::string_view(")]}").find(p.text) != std::string_view::npos) --depth;
    if (depth > 0) continue;
    for (const std::string_view word :
         {"if", "else", "or", "and", "not", "in", "is", "<", ">", "=", "!", ","}) {
      if (p.text == word) is_sum = false;
    }
  }
  if (is_sum) return pieces;
  pieces.insert(pieces.begin(), {Piece::Kind::kSign, "("});
  pieces.push_back({Piece::Kind::kSign, ")"});
  return pieces;
}

void AddToSum(Pieces term, Pieces* sum) {
  *sum = AsTerm(std::move(*sum));
  sum->push_back({Piece::Kind::kSign, "+"});
  term = AsTerm(std::move(term));
  sum->insert(sum->end(), term.begin(), term.end());
}

void AddText(std::string_view text, std::vector<Item>* items) {
  Pieces string = {{Piece::Kind::kString, std::string(text)}};
  if (items->empty() || !items->back().prints) {
    items->push_back({.prints = true, .has_text = true, .pieces = std::move(string)});
    return;
  }
  AddToSum(std::move(string), &items->back().pieces);
  items->back().has_text = true;
}

void AddBlock(const Block& block, std::vector<Item>* items) {
  Pieces pieces = InOneSpelling(Split(block.body));
  const bool raises = !pieces.empty() && pieces[0].text == "raise_exception";
  const bool prints = block.kind == '{' && !raises;
  if (prints && !items->empty() && items->back().has_text) {
    AddToSum(std::move(pieces), &items->back().pieces);
  } else {
    items->push_back({.prints = prints, .pieces = std::move(pieces)});
  }
}

void CollectStrings(const Pieces& pieces, std::vector<std::string>* strings) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].kind != Piece::Kind::kString || pieces[i].text.empty()) continue;
    const bool is_subscript =
        i > 0 && IsSign(pieces[i - 1], '[') && i + 1 < pieces.size() && IsSign(pieces[i + 1], ']');
    if (is_subscript) continue;
    if (std::ranges::find(*strings, pieces[i].text) == strings->end()) {
      strings->push_back(pieces[i].text);
    }
  }
}

// White space between blocks that is no part of a turn: alone, or beside BOS.
bool IsStraySpace(const Item& item) {
  if (!item.has_text) return false;
  const Pieces& p = item.pieces;
  const bool starts_with_space = p[0].kind == Piece::Kind::kString &&
                                 p[0].text.find_first_not_of(kSpaces) == std::string::npos;
  if (p.size() < 3) return p.size() == 1 && starts_with_space;
  const bool spaces_bos = p[0].text == "bos_token" && p[2].kind == Piece::Kind::kString &&
                          kSpaces.find(p[2].text[0]) != std::string_view::npos;
  return spaces_bos || (starts_with_space && p[2].text == "bos_token");
}

}  // namespace

std::string ScannedTemplate::StringAt(size_t pos) const {
  return Unquoted(std::string_view(code).substr(pos, EndOfString(code, pos) - pos));
}

StatusOr<ScannedTemplate> ScanTemplate(std::string_view source) {
  // Line breaks as Jinja reads them.
  const std::string text = absl::StrReplaceAll(std::string(source), {{"\r\n", "\n"}, {"\r", "\n"}});
  ScannedTemplate scanned;
  std::vector<Item> items;
  Block before;
  size_t pos = 0;
  do {
    KVL_ASSIGN_OR_RETURN(const Block block, NextBlock(text, pos));
    const std::string_view printed =
        PrintedText(std::string_view(text).substr(pos, block.begin - pos), before, block);
    scanned.raw += printed;
    if (!printed.empty()) AddText(printed, &items);
    if (block.kind == '{' || block.kind == '%') AddBlock(block, &items);
    before = block;
    pos = block.end;
  } while (before.kind != 0);
  RenameVariables(&items);
  for (Item& item : items) {
    item.pieces = Summed(item.pieces);
    const std::string code = Code(item.pieces);
    const bool raises = code.starts_with("raise_exception(");
    scanned.code += item.prints || raises ? "{{" + code + "}}" : "{%" + code + "%}";
    if (item.prints || code.starts_with("set")) CollectStrings(item.pieces, &scanned.strings);
    if (IsStraySpace(item)) scanned.has_stray_space = true;
  }
  return scanned;
}

}  // namespace kvlathe
