// str(), repr() and json.dumps() of values, byte for byte as Python prints them.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tokenizer/jinja/limits.h"
#include "tokenizer/jinja/value.h"

namespace vayu::jinja {
namespace {

void check_size(const std::string& out) {
  if (out.size() > kMaxTextBytes) fail(ErrorKind::kTooLarge, "text of more than {} bytes", kMaxTextBytes);
}

void append_repr(std::string& out, const Value& v);

void append_items(std::string& out, const std::vector<Value>& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i) out += ", ";
    append_repr(out, items[i]);
  }
}

void append_list_repr(std::string& out, const List& list) {
  switch (list.kind) {
    case ListKind::kTuple:
      out += '(';
      append_items(out, list.items);
      out += list.items.size() == 1 ? ",)" : ")";
      return;
    case ListKind::kRange:
      out += fmt::format("range({}, {}", list.range[0], list.range[1]);
      out += list.range[2] == 1 ? ")" : fmt::format(", {})", list.range[2]);
      return;
    case ListKind::kGenerator:
      fail("a generator has no text form; use |list or |join");
    case ListKind::kKeys:
      out += "dict_keys([";
      break;
    case ListKind::kValues:
      out += "dict_values([";
      break;
    case ListKind::kItems:
      out += "dict_items([";
      break;
    case ListKind::kList:
      out += '[';
      break;
  }
  append_items(out, list.items);
  out += list.kind == ListKind::kList ? "]" : "])";
}

void append_repr(std::string& out, const Value& v) {
  if (v.undefined()) {
    out += "Undefined";
  } else if (v.none()) {
    out += "None";
  } else if (v.is_bool()) {
    out += v.as_int() ? "True" : "False";
  } else if (v.get<int64_t>()) {
    out += std::to_string(v.as_int());
  } else if (v.get<double>()) {
    out += float_repr(*v.get<double>());
  } else if (v.text()) {
    if (v.text()->markup) fail("repr of safe or escaped text is not supported");
    out += text_repr(v.text()->str());
  } else if (v.list()) {
    append_list_repr(out, *v.list());
  } else if (v.dict()) {
    out += '{';
    const char* separator = "";
    for (const auto& [key, value] : v.dict()->entries) {
      out += separator;
      append_repr(out, key);
      out += ": ";
      append_repr(out, value);
      separator = ", ";
    }
    out += '}';
  } else {
    fail("a {} has no text form", type_name(v));
  }
  check_size(out);
}

}  // namespace

std::string float_repr(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  char buffer[64];
  // Shortest digits that read back equal, as d.ddde[+-]xx.
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, v, std::chars_format::scientific).ptr;
  const std::string scientific(buffer, end);
  const size_t e = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return scientific;
  const auto fixed_end = std::to_chars(buffer, buffer + sizeof buffer, v, std::chars_format::fixed).ptr;
  std::string fixed(buffer, fixed_end);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

std::string text_repr(std::string_view s) {
  const bool has_single = s.find('\'') != std::string_view::npos;
  const char quote = has_single && s.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0, length; i < s.size(); i += length) {
    const char32_t c = decode_at(s, i, &length);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out.append(s, i, length);
    } else {
      const auto code = static_cast<uint32_t>(c);
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    }
  }
  return out + quote;
}

std::string repr(const Value& v) {
  std::string out;
  append_repr(out, v);
  return out;
}

TextPtr to_text(const Value& v) {
  static const TextPtr kEmpty = std::make_shared<const Text>(std::string(), true);
  if (const auto* text = v.get<TextPtr>()) return *text;
  if (v.undefined()) return kEmpty;
  return std::make_shared<const Text>(repr(v), false);
}

namespace {

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& v, int level) {
    if (v.none()) {
      out_ += "null";
    } else if (v.is_number()) {
      write_number(v);
    } else if (v.text()) {
      write_text(v.text()->str());
    } else if (v.dict()) {
      write_dict(*v.dict(), level);
    } else if (v.list() && v.list()->kind <= ListKind::kTuple) {
      const auto& items = v.list()->items;
      write_group('[', ']', items.size(), level, [&](size_t i) { write(items[i], level + 1); });
    } else {
      fail("a value of type {} is not JSON serializable", type_name(v));
    }
    check_size(out_);
  }
  std::string take() { return std::move(out_); }

 private:
  void write_number(const Value& v) {
    if (v.is_bool()) {
      out_ += v.as_int() ? "true" : "false";
    } else if (v.get<int64_t>()) {
      out_ += std::to_string(v.as_int());
    } else {
      const double d = *v.get<double>();
      out_ += std::isnan(d) ? "NaN" : std::isinf(d) ? (d < 0 ? "-Infinity" : "Infinity") : float_repr(d);
    }
  }

  void write_text(std::string_view s) {
    out_ += '"';
    for (size_t i = 0, length; i < s.size(); i += length) {
      const char32_t c = decode_at(s, i, &length);
      static constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
      const size_t at = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : std::string_view::npos;
      if (at != std::string_view::npos) {
        out_ += '\\';
        out_ += kLetters[at];
      } else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7F)) {
        if (c >= 0x10000) {
          const auto low = static_cast<uint32_t>(c - 0x10000);
          out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (low >> 10), 0xDC00 + (low & 0x3FF));
        } else {
          out_ += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
        }
      } else {
        out_.append(s, i, length);
      }
    }
    out_ += '"';
  }

  void write_dict(const Dict& dict, int level) {
    std::vector<const std::pair<Value, Value>*> order;
    for (const auto& entry : dict.entries) order.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(order.begin(), order.end(),
                       [](const auto* a, const auto* b) { return compare(a->first, b->first) < 0; });
    }
    write_group('{', '}', order.size(), level, [&](size_t i) {
      const Value& key = order[i]->first;
      if (key.text()) {
        write_text(key.text()->str());
      } else if (key.none() || key.is_number()) {
        out_ += '"';
        write(key, level);
        out_ += '"';
      } else {
        fail("JSON keys must be str, int, float, bool or None, not {}", type_name(key));
      }
      out_ += style_.key_separator;
      write(order[i]->second, level + 1);
    });
  }

  template <class F>
  void write_group(char open, char close, size_t n, int level, F&& write_one) {
    out_ += open;
    for (size_t i = 0; i < n; ++i) {
      if (i) out_ += style_.item_separator;
      if (style_.pretty) new_line(level + 1);
      write_one(i);
    }
    if (n > 0 && style_.pretty) new_line(level);
    out_ += close;
  }

  void new_line(int level) {
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += style_.indent;
    check_size(out_);
  }

  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

std::string dump_json(const Value& v, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(v, 0);
  return writer.take();
}

}  // namespace vayu::jinja
