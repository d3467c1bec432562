#include "tokenizer/chat/python_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;

void AppendString(std::string_view text, std::string* out) {
  *out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      case '\f':
        *out += "\\f";
        break;
      case '\b':
        *out += "\\b";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          *out += fmt::format("\\u{:04x}", static_cast<int>(c));
        } else {
          *out += c;
        }
    }
  }
  *out += '"';
}

// repr() of a float: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
std::string FloatRepr(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char buffer[64];
  const double magnitude = std::abs(value);
  const bool has_exponent = magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16);
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value,
                    has_exponent ? std::chars_format::scientific : std::chars_format::fixed);
  std::string text(buffer, end.ptr);
  if (!has_exponent && text.find('.') == std::string::npos) text += ".0";
  return text;
}

class Writer {
 public:
  Writer(int n_indent, std::string* out) : n_indent_(n_indent), out_(*out) {}

  void Write(const Json& value, int depth) {
    if (value.is_string()) {
      AppendString(value.get_ref<const std::string&>(), &out_);
    } else if (value.is_number_float()) {
      out_ += FloatRepr(value.get<double>());
    } else if (!value.is_structured()) {
      out_ += value.dump();
    } else if (value.empty()) {
      out_ += value.is_array() ? "[]" : "{}";
    } else {
      WriteItems(value, depth);
    }
  }

 private:
  void WriteItems(const Json& value, int depth) {
    const bool is_array = value.is_array();
    out_ += is_array ? '[' : '{';
    bool is_first = true;
    for (const auto& item : value.items()) {
      if (!is_first) out_ += n_indent_ > 0 ? "," : ", ";
      is_first = false;
      NewLine(depth + 1);
      if (!is_array) {
        AppendString(item.key(), &out_);
        out_ += ": ";
      }
      Write(item.value(), depth + 1);
    }
    NewLine(depth);
    out_ += is_array ? ']' : '}';
  }

  void NewLine(int depth) {
    if (n_indent_ == 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(depth * n_indent_), ' ');
  }

  int n_indent_;
  std::string& out_;
};

// How deep the brackets outside of strings nest.
int DepthOf(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

std::string PythonJson(const Json& value, int n_indent) {
  std::string text;
  Writer(n_indent, &text).Write(value, 0);
  return text;
}

StatusOr<Json> ParseShallowJson(std::string_view text, std::string_view what) {
  if (DepthOf(text) > kMaxDepth) {
    return Error(StatusCode::kInvalidArgument, "{} nests deeper than {}", what, kMaxDepth);
  }
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    return Error(StatusCode::kInvalidArgument, "{} is not JSON", what);
  }
  return value;
}

}  // namespace kvlathe
