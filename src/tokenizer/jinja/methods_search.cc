// Methods of str that look into text, of dict and of list; and the lookup of methods by name.
#include <unicode/uchar.h>

#include <algorithm>

#include "tokenizer/jinja/filters.h"

namespace vayu::jinja {

Value format_braces(Interp& in, const Value& self, const Args& args);  // format.cc

namespace {

bool matches_affix(const std::string& s, const Value& affix, bool prefix) {
  if (affix.list() && affix.list()->kind == ListKind::kTuple) {
    const auto& options = affix.list()->items;
    return std::any_of(options.begin(), options.end(), [&](const Value& o) { return matches_affix(s, o, prefix); });
  }
  const std::string& wanted = text_arg(affix, "affix").str();
  return prefix ? s.starts_with(wanted) : s.ends_with(wanted);
}
Value startswith(Interp& in, const Value& self, const Args& args) {
  const Value& affix = *args.bind("startswith", {"prefix"}, 1)[0];
  in.charge_walk(affix);
  return matches_affix(self.text()->str(), affix, true);
}
Value endswith(Interp& in, const Value& self, const Args& args) {
  const Value& affix = *args.bind("endswith", {"suffix"}, 1)[0];
  in.charge_walk(affix);
  return matches_affix(self.text()->str(), affix, false);
}

// Byte range of self[start:end], whose bounds count code points as in Python.
ByteRange search_range(const std::string& s, const Value* start, const Value* end) {
  const auto size = static_cast<int64_t>(count_code_points(s));
  const Value whole = None{};
  const SliceSpan span = resolve_slice(start ? *start : whole, end ? *end : whole, whole, size);
  if (span.start > size ||
      (span.count == 0 && span.start == size && start && !start->none() && start->as_int() > size)) {
    return {1, 0};  // Python finds nothing past the end, not even the empty text
  }
  auto offset = [&](int64_t i) {
    size_t at = 0;
    while (i-- > 0) at += char_length(s[at]);
    return at;
  };
  return {offset(span.start), offset(span.start + span.count)};
}

// Index in code points, or -1.
int64_t find_index(Interp& in, const Value& self, const Args& args, bool from_right) {
  const auto a = args.bind("find", {"sub", "start", "end"}, 1);
  const std::string& wanted = text_arg(*a[0], "sub").str();
  const std::string& s = self.text()->str();
  in.charge(1 + static_cast<int64_t>(s.size() / 16));
  const ByteRange range = search_range(s, a[1], a[2]);
  if (range.begin > range.end) return -1;
  const std::string_view part = std::string_view(s).substr(range.begin, range.end - range.begin);
  const size_t at = from_right ? part.rfind(wanted) : part.find(wanted);
  if (at == std::string_view::npos) return -1;
  return static_cast<int64_t>(count_code_points(std::string_view(s).substr(0, range.begin + at)));
}
Value find(Interp& in, const Value& self, const Args& args) { return find_index(in, self, args, false); }
Value rfind(Interp& in, const Value& self, const Args& args) { return find_index(in, self, args, true); }
Value index(Interp& in, const Value& self, const Args& args) {
  const int64_t at = find_index(in, self, args, false);
  if (at < 0) fail("substring not found");
  return at;
}

Value count(Interp& in, const Value& self, const Args& args) {
  const std::string& wanted = text_arg(*args.bind("count", {"sub"}, 1)[0], "sub").str();
  const std::string& s = self.text()->str();
  in.charge(1 + static_cast<int64_t>(s.size() / 16));
  if (wanted.empty()) return static_cast<int64_t>(count_code_points(s)) + 1;
  int64_t n = 0;
  for (size_t at = s.find(wanted); at != std::string::npos; at = s.find(wanted, at + wanted.size())) ++n;
  return n;
}

template <bool (*Check)(char32_t)>
Value all_are(Interp& in, const Value& self, const Args& args) {
  args.bind("is", {});
  const std::string& s = self.text()->str();
  in.charge(1 + static_cast<int64_t>(s.size()));
  for (size_t i = 0, length; i < s.size(); i += length) {
    if (!Check(decode_at(s, i, &length))) return false;
  }
  return !s.empty();
}
bool letter(char32_t c) { return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_L_MASK) != 0; }
bool digit(char32_t c) {
  const auto kind = static_cast<UNumericType>(u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE));
  return kind == U_NT_DECIMAL || kind == U_NT_DIGIT;
}
bool decimal(char32_t c) { return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE) == U_NT_DECIMAL; }
bool numeric(char32_t c) { return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE) != U_NT_NONE; }
bool alphanumeric(char32_t c) { return letter(c) || numeric(c); }

template <bool Upper>
Value has_case(Interp& in, const Value& self, const Args& args) {
  static const Test kUpper = find_test("upper"), kLower = find_test("lower");
  return (Upper ? kUpper : kLower)(in, self, args);
}

Value dict_get(Interp& in, const Value& self, const Args& args) {
  if (!args.named.empty()) fail("dict.get takes no named arguments");
  const auto a = args.bind("get", {"key", "default"}, 1);
  if (!hashable(*a[0])) fail("unhashable type {}", type_name(*a[0]));
  in.charge(a[0]->text() ? value_weight(*a[0]) : static_cast<int64_t>(self.dict()->entries.size()));
  if (const Value* found = self.dict()->find(*a[0])) return *found;
  return a[1] ? *a[1] : Value(None{});
}
Value dict_entries(Interp& in, const Value& self, const Args& args) {
  args.bind("items", {});
  return dict_items(in, *self.dict(), ListKind::kItems);
}
Value dict_keys(Interp& in, const Value& self, const Args& args) {
  args.bind("keys", {});
  return in.list(in.iterate(self), ListKind::kKeys);
}
Value dict_values(Interp& in, const Value& self, const Args& args) {
  args.bind("values", {});
  std::vector<Value> out;
  for (const auto& entry : self.dict()->entries) out.push_back(entry.second);
  return in.list(std::move(out), ListKind::kValues);
}
Value copy(Interp&, const Value& self, const Args& args) {  // values never change, so the same one serves
  args.bind("copy", {});
  return self;
}

Value list_index(Interp& in, const Value& self, const Args& args) {
  const Value& wanted = *args.bind("index", {"value"}, 1)[0];
  const auto& items = self.list()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (in.same(items[i], wanted)) return static_cast<int64_t>(i);
  }
  fail("value is not in the list");
}
Value list_count(Interp& in, const Value& self, const Args& args) {
  const Value& wanted = *args.bind("count", {"value"}, 1)[0];
  int64_t n = 0;
  for (const Value& item : self.list()->items) n += in.same(item, wanted);
  return n;
}

constexpr Named<Method> kSearch[] = {{"startswith", startswith},
                                     {"endswith", endswith},
                                     {"find", find},
                                     {"rfind", rfind},
                                     {"index", index},
                                     {"count", count},
                                     {"format", format_braces},
                                     {"isdigit", all_are<digit>},
                                     {"isdecimal", all_are<decimal>},
                                     {"isnumeric", all_are<numeric>},
                                     {"isalpha", all_are<letter>},
                                     {"isalnum", all_are<alphanumeric>},
                                     {"isspace", all_are<is_space>},
                                     {"isupper", has_case<true>},
                                     {"islower", has_case<false>}};
constexpr Named<Method> kDict[] = {
    {"get", dict_get}, {"items", dict_entries}, {"keys", dict_keys}, {"values", dict_values}, {"copy", copy}};
constexpr Named<Method> kList[] = {{"index", list_index}, {"count", list_count}, {"copy", copy}};

}  // namespace

std::span<const Named<Method>> text_search_methods() { return kSearch; }

Method find_method(const Value& object, std::string_view name) {
  if (object.text()) {
    const Method method = find_named(text_methods(), name);
    return method ? method : find_named(text_search_methods(), name);
  }
  if (object.dict()) return find_named(std::span<const Named<Method>>(kDict), name);
  if (object.object()) return find_object_method(*object.object(), name);
  if (!object.list() || !object.list()->indexable()) return nullptr;
  if (name == "copy" && object.list()->kind != ListKind::kList) return nullptr;
  return find_named(std::span<const Named<Method>>(kList), name);
}

bool unsupported_method(const Value& object, std::string_view name) {
  static constexpr std::string_view kText[] = {
      "casefold", "center", "encode",    "expandtabs", "format_map", "isascii",  "isidentifier", "isprintable",
      "istitle",  "ljust",  "maketrans", "rindex",     "rjust",      "swapcase", "translate",    "zfill"};
  static constexpr std::string_view kNumber[] = {
      "real",     "imag",       "numerator",  "denominator",      "bit_length", "bit_count", "conjugate",
      "to_bytes", "from_bytes", "is_integer", "as_integer_ratio", "hex",        "fromhex"};
  static constexpr std::string_view kRange[] = {"start", "stop", "step"};
  static constexpr std::string_view kView[] = {"mapping", "isdisjoint"};
  auto has = [&](std::span<const std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (object.text()) return has(kText);
  if (object.is_number()) return has(kNumber);
  if (object.callable()) return true;  // a function's attributes
  if (!object.list()) return false;
  if (object.list()->kind == ListKind::kRange) return has(kRange);
  return !object.list()->indexable() && has(kView);
}

bool hidden_dict_method(std::string_view name) {
  static constexpr std::string_view kNames[] = {"clear", "pop", "popitem", "setdefault", "update", "fromkeys"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) || name.starts_with("__");
}

}  // namespace vayu::jinja
