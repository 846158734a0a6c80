// Filters on text and numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "tokenizer/jinja/filters.h"

namespace vayu::jinja {

bool flag_arg(const Value* v, bool fallback) { return v ? truthy(*v) : fallback; }

int64_t int_arg(const Value* v, int64_t fallback, std::string_view what) {
  if (!v) return fallback;
  if (!v->is_integral()) fail("{} must be an integer, not {}", what, type_name(*v));
  return v->as_int();
}

const Text& text_arg(const Value& v, std::string_view what) {
  if (!v.text()) fail("{} must be a str, not {}", what, type_name(v));
  return *v.text();
}

Text escape_html(const Text& t) {
  Text out;
  size_t done = 0;
  for (size_t i = 0; i < t.size(); ++i) {
    static constexpr std::string_view kSpecial = "&<>\"'";
    static constexpr std::string_view kEscapes[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    const size_t at = kSpecial.find(t.str()[i]);
    if (at == std::string_view::npos) continue;
    out.append(t, done, i);
    out.append(kEscapes[at], t.trusted_at(i));
    done = i + 1;
  }
  out.append(t, done, t.size());
  out.markup = true;
  return out;
}

namespace {

// A text of mapped bytes: marks stay where every byte keeps its place.
Text mapped(const Text& t, std::string bytes) {
  Text out = t.uniform() || is_ascii(t.str()) ? t.with_bytes(std::move(bytes)) : Text(std::move(bytes), false);
  out.markup = t.markup;
  return out;
}

Value upper(Interp& in, const Value& v, const Args& args) {
  args.bind("upper", {});
  const TextPtr t = in.str(v);
  in.charge_walk(t);
  return in.text(mapped(*t, to_upper(t->str())));
}

Value lower(Interp& in, const Value& v, const Args& args) {
  args.bind("lower", {});
  const TextPtr t = in.str(v);
  in.charge_walk(t);
  return in.text(mapped(*t, to_lower(t->str())));
}

Value capitalize(Interp& in, const Value& v, const Args& args) {
  args.bind("capitalize", {});
  const TextPtr t = in.str(v);
  in.charge_walk(t);
  if (t->empty()) return t;
  const size_t first = std::min(char_length(t->str()[0]), t->size());
  const std::string_view s = t->str();
  return in.text(mapped(*t, to_title_char(s.substr(0, first)) + to_lower(s.substr(first))));
}

// Words begin after '-', space, '(', '{', '[' or '<': jinja2's rule, not str.title's.
Value title(Interp& in, const Value& v, const Args& args) {
  args.bind("title", {});
  const TextPtr t = in.str(v);
  const std::string_view s = t->str();
  in.charge(static_cast<int64_t>(s.size()));
  std::string out;
  for (size_t i = 0, length; i < s.size(); i += length) {
    auto separates = [&](size_t at) {
      const char32_t c = decode_at(s, at, &length);
      return is_space(c) ||
             (c < 0x80 && std::string_view("-({[<").find(static_cast<char>(c)) != std::string_view::npos);
    };
    if (separates(i)) {
      out.append(s.substr(i, length));
      continue;
    }
    const size_t first = length;
    size_t end = i + first;
    while (end < s.size() && !separates(end)) end += length;
    out += to_upper(s.substr(i, first)) + to_lower(s.substr(i + first, end - i - first));
    length = end - i;
  }
  Text titled = mapped(*t, std::move(out));
  titled.markup = false;
  return in.text(std::move(titled));
}

Value trim(Interp& in, const Value& v, const Args& args) {
  const auto a = args.bind("trim", {"chars"});
  const TextPtr t = in.str(v);
  in.charge_walk(t);
  const bool any = a[0] && !a[0]->none();
  const ByteRange kept = strip_range(t->str(), any ? &text_arg(*a[0], "chars").str() : nullptr, true, true);
  Text out = t->substr(kept.begin, kept.end);
  out.markup = t->markup;
  return in.text(std::move(out));
}

Value replace(Interp& in, const Value& v, const Args& args) {
  const auto a = args.bind("replace", {"old", "new", "count"}, 2);
  const bool limited = a[2] && !a[2]->none();
  return in.text(
      replace_text(in, *in.str(v), *in.str(*a[0]), *in.str(*a[1]), limited ? int_arg(a[2], -1, "count") : -1));
}

Value indent(Interp& in, const Value& v, const Args& args) {
  const auto a = args.bind("indent", {"width", "first", "blank"});
  Text pad;
  if (a[0] && a[0]->text()) {
    pad = *a[0]->text();
  } else {
    const int64_t width = std::max<int64_t>(0, int_arg(a[0], 4, "width"));
    if (width > 10'000) fail(ErrorKind::kTooLarge, "indent of {} characters", width);
    pad = Text(std::string(static_cast<size_t>(width), ' '), true);
  }
  const bool blank = flag_arg(a[2], false);
  const TextPtr t = in.str(v);
  Text source = *t;
  source.append("\n", true);  // a text that ends in a newline keeps it, as an empty last line
  Text out;
  if (flag_arg(a[1], false)) out.append(pad);
  bool is_first = true;
  for (const ByteRange line : split_lines(source.str(), false)) {
    in.charge(1);
    if (!is_first) out.append("\n", true);
    if (!is_first && (blank || line.end > line.begin)) out.append(pad);
    if (out.size() > kMaxTextBytes) fail(ErrorKind::kTooLarge, "text too long");
    out.append(source, line.begin, line.end);
    is_first = false;
  }
  out.markup = t->markup;
  return in.text(std::move(out));
}

Value wordcount(Interp& in, const Value& v, const Args& args) {
  args.bind("wordcount", {});
  const TextPtr t = in.str(v);
  in.charge(static_cast<int64_t>(t->size()));
  int64_t words = 0;
  bool inside = false;
  for (size_t i = 0, length; i < t->size(); i += length) {
    const bool word = is_word(decode_at(t->str(), i, &length));
    words += word && !inside;
    inside = word;
  }
  return words;
}

Value escape(Interp& in, const Value& v, const Args& args) {
  args.bind("escape", {});
  const TextPtr t = in.str(v);
  in.charge(static_cast<int64_t>(t->size()));
  return t->markup ? Value(t) : in.text(escape_html(*t));
}

Value safe(Interp& in, const Value& v, const Args& args) {
  args.bind("safe", {});
  Text t = *in.str(v);
  t.markup = true;
  return in.text(std::move(t));
}

Value string(Interp& in, const Value& v, const Args& args) {
  args.bind("string", {});
  return in.str(v);
}

Value format(Interp& in, const Value& v, const Args& args) {
  if (!args.named.empty() && !args.positional.empty()) fail("format takes either positional or named arguments");
  return in.format_percent(*in.str(v), args);
}

// Python's int(str) and float(str), or nothing.
std::string number_text(std::string_view s) {
  const ByteRange kept = strip_range(s, nullptr, true, true);
  std::string out(s.substr(kept.begin, kept.end - kept.begin));
  for (size_t i = 0; i < out.size(); ++i) {  // single underscores between digits are allowed
    if (out[i] != '_') continue;
    if (i == 0 || i + 1 == out.size() || !std::isdigit(out[i - 1]) || !std::isdigit(out[i + 1])) return "";
  }
  std::erase(out, '_');
  if (out.size() > 1 && out[0] == '+' && out[1] != '-') out.erase(0, 1);
  return out;
}

std::optional<double> parse_float(std::string_view s) {
  const std::string t = number_text(s);
  double d = 0;
  const auto result = std::from_chars(t.data(), t.data() + t.size(), d);
  if (t.empty() || result.ptr != t.data() + t.size() || t.find('(') != std::string::npos) return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) d = std::strtod(t.c_str(), nullptr);
  return d;
}

std::optional<int64_t> parse_int(std::string_view s, int base) {
  const std::string t = number_text(s);
  int64_t value = 0;
  const auto result = std::from_chars(t.data(), t.data() + t.size(), value, base);
  if (t.empty() || result.ptr != t.data() + t.size()) return std::nullopt;
  if (result.ec != std::errc()) fail(ErrorKind::kUnsupported, "integer beyond 64 bits");
  return value;
}

Value int_of_float(double d, const Value& fallback) {
  if (std::isnan(d)) return fallback;
  if (!(std::fabs(d) < 9.2e18)) fail(ErrorKind::kUnsupported, "integer beyond 64 bits");
  return static_cast<int64_t>(d);
}

Value to_int(Interp& in, const Value& v, const Args& args) {
  const auto a = args.bind("int", {"default", "base"});
  const Value fallback = a[0] ? *a[0] : Value(int64_t{0});
  if (v.undefined()) in.arithmetic(ExprKind::kPos, v, v);  // raises, naming what is undefined
  if (v.is_integral()) return v.as_int();
  if (v.get<double>()) return int_of_float(*v.get<double>(), fallback);
  if (!v.text()) return fallback;
  const int64_t base = int_arg(a[1], 10, "base");
  if (base < 2 || base > 36) fail(ErrorKind::kUnsupported, "base {}", base);
  if (base == 2 || base == 8 || base == 16) fail(ErrorKind::kUnsupported, "int filter with base {}", base);
  if (const auto i = parse_int(v.text()->str(), static_cast<int>(base))) return *i;
  const auto d = parse_float(v.text()->str());
  return d && !std::isinf(*d) ? int_of_float(*d, fallback) : fallback;
}

Value to_float(Interp& in, const Value& v, const Args& args) {
  const auto a = args.bind("float", {"default"});
  const Value fallback = a[0] ? *a[0] : Value(0.0);
  if (v.undefined()) in.arithmetic(ExprKind::kPos, v, v);
  if (v.is_number()) return v.as_double();
  if (!v.text()) return fallback;
  const auto d = parse_float(v.text()->str());
  return d ? Value(*d) : fallback;
}

Value absolute(Interp& in, const Value& v, const Args& args) {
  args.bind("abs", {});
  if (!v.is_number()) fail("abs of a {}", type_name(v));
  if (v.get<double>()) return std::fabs(*v.get<double>());
  return v.as_int() < 0 ? in.arithmetic(ExprKind::kSub, Value(int64_t{0}), v) : Value(v.as_int());
}

Value round(Interp& in, const Value& v, const Args& args) {
  const auto a = args.bind("round", {"precision", "method"});
  const int64_t precision = int_arg(a[0], 0, "precision");
  const std::string method = a[1] ? text_arg(*a[1], "method").str() : "common";
  if (!v.is_number()) fail("round of a {}", type_name(v));
  if (precision < 0 || precision > 300) fail(ErrorKind::kUnsupported, "round to {} digits", precision);
  if (method == "common") {
    if (v.is_integral()) return v.as_int();
    if (!std::isfinite(v.as_double())) return v;
    return std::strtod(fmt::format("{:.{}f}", v.as_double(), precision).c_str(), nullptr);  // exact decimal rounding
  }
  if (method != "ceil" && method != "floor") fail("round method must be common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = v.as_double() * scale;
  if (!(std::fabs(scaled) < 9.2e18)) fail(ErrorKind::kUnsupported, "rounding a value that large");
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale + 0.0;
}

Value tojson(Interp& in, const Value& v, const Args& args) {
  const auto a = args.bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = flag_arg(a[0], false);
  style.sort_keys = flag_arg(a[3], false);
  if (a[1] && !a[1]->none()) {
    style.pretty = true;
    style.item_separator = ",";
    if (a[1]->text()) {
      style.indent = a[1]->text()->str();
    } else {
      const int64_t width = std::max<int64_t>(0, int_arg(a[1], 0, "indent"));
      if (width > 1000) fail(ErrorKind::kTooLarge, "JSON indent of {}", width);
      style.indent.assign(static_cast<size_t>(width), ' ');
    }
  }
  if (a[2] && !a[2]->none()) {
    const List* pair = a[2]->list();
    if (!pair || pair->items.size() != 2) fail("separators must be a pair of str");
    style.item_separator = text_arg(pair->items[0], "separator").str();
    style.key_separator = text_arg(pair->items[1], "separator").str();
  }
  in.charge_walk(v);
  return in.text(dump_json(v, style));
}

Value fallback(Interp& in, const Value& v, const Args& args) {
  const auto a = args.bind("default", {"default_value", "boolean"});
  const bool use = v.undefined() || (flag_arg(a[1], false) && !truthy(v));
  if (!use) return v;
  return a[0] ? *a[0] : in.text("", true);
}

}  // namespace

std::span<const Named<Filter>> text_filters() {
  static constexpr Named<Filter> kTable[] = {
      {"upper", upper},     {"lower", lower},   {"capitalize", capitalize}, {"title", title},      {"trim", trim},
      {"replace", replace}, {"indent", indent}, {"wordcount", wordcount},   {"escape", escape},    {"e", escape},
      {"safe", safe},       {"string", string}, {"format", format},         {"int", to_int},       {"float", to_float},
      {"abs", absolute},    {"round", round},   {"tojson", tojson},         {"default", fallback}, {"d", fallback}};
  return kTable;
}

}  // namespace vayu::jinja
