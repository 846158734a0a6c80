// Text formatting: the % operator and str.format, with the common part of Python's format mini-languages. What lies
// outside it (alternate forms, nested fields, rarely used types) is refused.
#include <algorithm>
#include <cmath>

#include "tokenizer/jinja/filters.h"

namespace vayu::jinja {
namespace {

struct Spec {
  char align = '\0';  // '<', '>', '^'; '\0' by type
  char sign = '-';
  bool zero = false;
  bool comma = false;
  std::string fill = " ";
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

constexpr int64_t kMaxWidth = 10'000;

int64_t read_number(const std::string& s, size_t& i) {
  int64_t n = 0;
  for (; i < s.size() && s[i] >= '0' && s[i] <= '9'; ++i) {
    n = n * 10 + (s[i] - '0');
    if (n > kMaxWidth) fail(ErrorKind::kTooLarge, "format width or precision above {}", kMaxWidth);
  }
  return n;
}

Text pad(const Text& body, const Spec& spec, char default_align) {
  const auto size = static_cast<int64_t>(count_code_points(body.str()));
  if (size >= spec.width) return body;
  const int64_t missing = spec.width - size;
  const char align = spec.align ? spec.align : default_align;
  const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  Text out;
  for (int64_t i = 0; i < left; ++i) out.append(spec.fill, false);
  out.append(body);
  for (int64_t i = left; i < missing; ++i) out.append(spec.fill, false);
  return out;
}

std::string sign_of(bool negative, char mode) { return negative ? "-" : mode == '-' ? "" : std::string(1, mode); }

Text number_field(const std::string& sign, std::string digits, const Spec& spec) {
  if (spec.comma) {
    const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
    for (size_t i = whole; i > 3; i -= 3) digits.insert(i - 3, ",");
  }
  const auto size = static_cast<int64_t>(sign.size() + digits.size());
  const bool zeros = spec.zero && !spec.align;
  if (zeros && spec.comma) fail(ErrorKind::kUnsupported, "format with both zeros and commas");
  if (zeros && size < spec.width) digits.insert(0, static_cast<size_t>(spec.width - size), '0');
  return pad(Text(sign + digits, false), spec, '>');
}

Text format_int(int64_t value, const Spec& spec) {
  const uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  const std::string digits = spec.type == 'x'   ? fmt::format("{:x}", magnitude)
                             : spec.type == 'X' ? fmt::format("{:X}", magnitude)
                             : spec.type == 'o' ? fmt::format("{:o}", magnitude)
                             : spec.type == 'b' ? fmt::format("{:b}", magnitude)
                                                : std::to_string(magnitude);
  return number_field(sign_of(value < 0, spec.sign), digits, spec);
}

Text format_float(double value, const Spec& spec) {
  const double magnitude = std::fabs(value);
  const int64_t precision = spec.precision < 0 ? 6 : spec.precision;
  std::string digits;
  switch (spec.type) {
    case 'f':
    case 'F':
      digits = fmt::format("{:.{}f}", magnitude, precision);
      break;
    case 'e':
      digits = fmt::format("{:.{}e}", magnitude, precision);
      break;
    case 'E':
      digits = fmt::format("{:.{}E}", magnitude, precision);
      break;
    case 'g':
      digits = fmt::format("{:.{}g}", magnitude, precision);
      break;
    case '%':
      digits = fmt::format("{:.{}f}%", magnitude * 100, precision);
      break;
    default:
      fail(ErrorKind::kUnsupported, "format type '{}' for a float", spec.type);
  }
  if (!std::isfinite(value) && spec.zero) fail(ErrorKind::kUnsupported, "zero-padded format of an infinite value");
  return number_field(sign_of(std::signbit(value), spec.sign), std::move(digits), spec);
}

constexpr std::string_view kFloatTypes = "fFeEg%", kIntTypes = "dxXob";

// One field of str.format.
Text format_value(Interp& in, const Value& v, const Spec& spec, bool plain) {
  if (plain) return *in.str(v);
  if (v.text()) {
    if (spec.type != '\0' && spec.type != 's') fail("format type '{}' for a str", spec.type);
    if (spec.zero || spec.comma || spec.sign != '-') fail(ErrorKind::kUnsupported, "number format of a str");
    Text body = *v.text();
    if (spec.precision >= 0) body = *eval_prefix(in, body, spec.precision).get<TextPtr>()->get();
    return pad(body, spec, '<');
  }
  if (!v.is_number() || v.is_bool()) fail(ErrorKind::kUnsupported, "format specification for a {}", type_name(v));
  if (spec.type && kFloatTypes.find(spec.type) != std::string_view::npos) return format_float(v.as_double(), spec);
  if (v.get<int64_t>() && (!spec.type || kIntTypes.find(spec.type) != std::string_view::npos)) {
    if (spec.precision >= 0) fail("precision in an integer format");
    return format_int(v.as_int(), spec);
  }
  fail(ErrorKind::kUnsupported, "format type '{}' for a {}", spec.type ? std::string(1, spec.type) : "none",
       type_name(v));
}

Spec parse_spec(const std::string& s) {
  Spec spec;
  size_t i = 0;
  const size_t first = s.empty() ? 0 : std::min(char_length(s[0]), s.size());
  auto is_align = [](char c) { return c == '<' || c == '>' || c == '^'; };
  if (first < s.size() && is_align(s[first])) {
    spec.fill = s.substr(0, first);
    spec.align = s[first];
    i = first + 1;
  } else if (!s.empty() && is_align(s[0])) {
    spec.align = s[0];
    i = 1;
  }
  if (i < s.size() && (s[i] == '+' || s[i] == '-' || s[i] == ' ')) spec.sign = s[i++];
  if (i < s.size() && s[i] == '0') {
    spec.zero = true;
    ++i;
  }
  spec.width = read_number(s, i);
  if (i < s.size() && s[i] == ',') {
    spec.comma = true;
    ++i;
  }
  if (i < s.size() && s[i] == '.') {
    ++i;
    if (i >= s.size() || s[i] < '0' || s[i] > '9') fail("format precision is missing");
    spec.precision = read_number(s, i);
  }
  if (i < s.size()) spec.type = s[i++];
  if (i < s.size()) fail(ErrorKind::kUnsupported, "format specification '{}'", s);
  return spec;
}

const Value& named_arg(const Args& args, const std::string& name) {
  for (const auto& [key, value] : args.named) {
    if (key == name) return value;
  }
  fail("format has no argument '{}'", name);
}

// One conversion of the % operator; i is just after the '%'.
class PercentField {
 public:
  PercentField(const std::string& s, size_t& i) {
    if (i < s.size() && s[i] == '(') {
      const size_t close = s.find(')', i);
      if (close == std::string::npos) fail("incomplete format key");
      key = s.substr(i + 1, close - i - 1);
      i = close + 1;
    }
    for (; i < s.size() && std::string_view("-0+ ").find(s[i]) != std::string_view::npos; ++i) {
      if (s[i] == '-') spec.align = '<';
      if (s[i] == '0') spec.zero = true;
      if (s[i] == '+') spec.sign = '+';
      if (s[i] == ' ' && spec.sign == '-') spec.sign = ' ';
    }
    spec.width = read_number(s, i);
    if (i < s.size() && s[i] == '.') spec.precision = read_number(s, ++i);
    if (i >= s.size()) fail("incomplete format");
    spec.type = s[i++];
  }

  Text convert(Interp& in, const Value& v) {
    if (spec.type == 's' || spec.type == 'r') {
      in.charge_walk(v);
      Text body = spec.type == 's' ? *in.str(v) : Text(repr(v), false);
      if (spec.precision >= 0) body = *eval_prefix(in, body, spec.precision).get<TextPtr>()->get();
      spec.zero = false;
      return pad(body, spec, '>');
    }
    if (!v.is_number()) fail("%{} needs a number, not {}", spec.type, type_name(v));
    if (spec.type == 'd' || spec.type == 'i' || spec.type == 'u') {
      if (spec.precision >= 0) fail(ErrorKind::kUnsupported, "precision in %d");
      if (v.is_integral()) return format_int(v.as_int(), spec);
      if (!(std::fabs(v.as_double()) < 9.2e18)) fail("%d of a float that large");
      return format_int(static_cast<int64_t>(v.as_double()), spec);
    }
    if (std::string_view("fFeEg").find(spec.type) != std::string_view::npos) return format_float(v.as_double(), spec);
    const bool hex = spec.type == 'x' || spec.type == 'X' || spec.type == 'o';
    if (!hex || !v.is_integral() || spec.precision >= 0) fail(ErrorKind::kUnsupported, "format %{}", spec.type);
    return format_int(v.as_int(), spec);
  }

  std::string key;
  Spec spec;
};

}  // namespace

Value eval_prefix(Interp& in, const Text& t, int64_t code_points) {
  size_t end = 0;
  for (; code_points > 0 && end < t.size(); --code_points) end += char_length(t.str()[end]);
  return in.text(t.substr(0, std::min(end, t.size())));
}

Value Interp::format_percent(const Text& format, const Args& args) {
  if (format.markup) fail(ErrorKind::kUnsupported, "% formatting of safe or escaped text");
  const std::string& s = format.str();
  const bool single_dict = args.positional.size() == 1 && args.positional[0].dict();
  Text out;
  size_t used = 0;
  for (size_t i = 0; i < s.size();) {
    charge(1);
    const size_t percent = std::min(s.find('%', i), s.size());
    out.append(format, i, percent);
    if (percent == s.size()) break;
    i = percent + 1;
    if (i < s.size() && s[i] == '%') {
      out.append(format, i, i + 1);
      ++i;
      continue;
    }
    PercentField field(s, i);
    if (!field.key.empty()) {
      const Value* v = single_dict ? args.positional[0].dict()->find(std::string_view(field.key)) : nullptr;
      if (!v && single_dict) fail("format has no key '{}'", field.key);
      out.append(field.convert(*this, v ? *v : named_arg(args, field.key)));
    } else {
      if (used >= args.positional.size()) fail("not enough arguments for the format");
      out.append(field.convert(*this, args.positional[used++]));
    }
    if (out.size() > kMaxTextBytes) fail(ErrorKind::kTooLarge, "text too long");
  }
  if (used < args.positional.size() && !single_dict) fail("not all arguments are used by the format");
  return text(std::move(out));
}

Value format_braces(Interp& in, const Value& self, const Args& args) {
  const Text& format = *self.text();
  const std::string& s = format.str();
  Text out;
  size_t next_auto = 0;
  for (size_t i = 0; i < s.size();) {
    in.charge(1);
    const size_t brace = std::min(s.find_first_of("{}", i), s.size());
    out.append(format, i, brace);
    if (brace == s.size()) break;
    if (brace + 1 < s.size() && s[brace + 1] == s[brace]) {
      out.append(format, brace, brace + 1);
      i = brace + 2;
      continue;
    }
    const size_t close = s.find('}', brace);
    if (s[brace] == '}' || close == std::string::npos) fail("unmatched '{}' in a format", s[brace]);
    const std::string field = s.substr(brace + 1, close - brace - 1);
    const size_t colon = std::min(field.find(':'), field.size());
    std::string name = field.substr(0, colon);
    const std::string spec = colon < field.size() ? field.substr(colon + 1) : "";
    if (field.find_first_of("{[.!") < colon || spec.find('{') != std::string::npos) {
      fail(ErrorKind::kUnsupported, "format field '{}'", field);
    }
    const bool numbered = !name.empty() && name.find_first_not_of("0123456789") == std::string::npos && name.size() < 6;
    if (name.empty() || numbered) {
      const size_t index = numbered ? static_cast<size_t>(std::stoul(name)) : next_auto++;
      if (index >= args.positional.size()) fail("format has no argument {}", index);
      out.append(format_value(in, args.positional[index], parse_spec(spec), spec.empty()));
    } else {
      out.append(format_value(in, named_arg(args, name), parse_spec(spec), spec.empty()));
    }
    if (out.size() > kMaxTextBytes) fail(ErrorKind::kTooLarge, "text too long");
    i = close + 1;
  }
  return in.text(std::move(out));
}

}  // namespace vayu::jinja
