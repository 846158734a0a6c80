// Methods of str that cut or change text. Searching ones are in methods_search.cc.
#include <algorithm>

#include "tokenizer/jinja/filters.h"

namespace vayu::jinja {

Text replace_text(Interp& in, const Text& t, const Text& from, const Text& to, int64_t limit) {
  Text out;
  size_t done = 0;
  auto put = [&] {
    in.charge(1);
    out.append(to);
    if (out.size() > kMaxTextBytes) fail(ErrorKind::kTooLarge, "text of more than {} bytes", kMaxTextBytes);
  };
  in.charge(static_cast<int64_t>(t.size() / 64));
  if (from.empty()) {  // Python puts `to` before every character and at the end
    for (size_t i = 0; i <= t.size() && limit != 0; --limit) {
      put();
      const size_t next = i < t.size() ? i + char_length(t.str()[i]) : i + 1;
      out.append(t, i, std::min(next, t.size()));
      done = i = next;
    }
  } else {
    for (size_t at; limit != 0 && (at = t.str().find(from.str(), done)) != std::string::npos; --limit) {
      out.append(t, done, at);
      put();
      done = at + from.size();
    }
  }
  out.append(t, std::min(done, t.size()), t.size());
  return out;
}

Value char_at(Interp& in, const Text& t, int64_t i) {
  const std::string& s = t.str();
  const bool ascii = is_ascii(s);
  in.charge(1 + static_cast<int64_t>(s.size() / 64));
  const auto size = static_cast<int64_t>(ascii ? s.size() : count_code_points(s));
  if (i < 0) i += size;
  if (i < 0 || i >= size) return Value();
  size_t at = ascii ? static_cast<size_t>(i) : 0;
  for (int64_t k = 0; !ascii && k < i; ++k) at += char_length(s[at]);
  return in.text(t.substr(at, at + char_length(s[at])));
}

namespace {

Value make_texts(Interp& in, const Text& t, const std::vector<ByteRange>& ranges) {
  std::vector<Value> out;
  for (const ByteRange r : ranges) out.push_back(in.text(t.substr(r.begin, r.end)));
  return in.list(std::move(out));
}

// Words between runs of whitespace, from either side. What the limit leaves over keeps the whitespace at its far end.
std::vector<ByteRange> split_spaces(std::string_view s, int64_t limit, bool from_right) {
  std::vector<ByteRange> out;
  ByteRange rest = strip_range(s, nullptr, !from_right, from_right);
  while (rest.begin < rest.end) {
    if (limit >= 0 && static_cast<int64_t>(out.size()) == limit) {
      out.push_back(rest);
      break;
    }
    size_t length;
    if (from_right) {
      size_t begin = rest.end;
      while (begin > rest.begin) {
        size_t i = begin - 1;
        while (i > rest.begin && is_continuation(s[i])) --i;
        if (is_space(decode_at(s, i, &length))) break;
        begin = i;
      }
      out.push_back({begin, rest.end});
      rest.end = rest.begin + strip_range(s.substr(rest.begin, begin - rest.begin), nullptr, false, true).end;
    } else {
      size_t end = rest.begin;
      while (end < rest.end && !is_space(decode_at(s, end, &length))) end += length;
      out.push_back({rest.begin, end});
      rest.begin = end + strip_range(s.substr(end, rest.end - end), nullptr, true, false).begin;
    }
  }
  return out;
}

std::vector<ByteRange> split_on(std::string_view s, std::string_view separator, int64_t limit, bool from_right) {
  std::vector<ByteRange> out;
  ByteRange rest{0, s.size()};
  while (limit < 0 || static_cast<int64_t>(out.size()) < limit) {
    const std::string_view left = s.substr(rest.begin, rest.end - rest.begin);
    const size_t at = from_right ? left.rfind(separator) : left.find(separator);
    if (at == std::string_view::npos) break;
    if (from_right) {
      out.push_back({rest.begin + at + separator.size(), rest.end});
      rest.end = rest.begin + at;
    } else {
      out.push_back({rest.begin, rest.begin + at});
      rest.begin += at + separator.size();
    }
  }
  out.push_back(rest);
  return out;
}

Value split_either(Interp& in, const Value& self, const Args& args, bool from_right) {
  const auto a = args.bind("split", {"sep", "maxsplit"});
  const Text& t = *self.text();
  in.charge_walk(self);
  const int64_t limit = int_arg(a[1], -1, "maxsplit");
  std::vector<ByteRange> ranges;
  if (!a[0] || a[0]->none()) {
    ranges = split_spaces(t.str(), limit, from_right);
  } else {
    const Text& separator = text_arg(*a[0], "separator");
    if (separator.empty()) fail("empty separator");
    ranges = split_on(t.str(), separator.str(), limit, from_right);
  }
  if (from_right) std::reverse(ranges.begin(), ranges.end());
  return make_texts(in, t, ranges);
}
Value split(Interp& in, const Value& self, const Args& args) { return split_either(in, self, args, false); }
Value rsplit(Interp& in, const Value& self, const Args& args) { return split_either(in, self, args, true); }

Value splitlines(Interp& in, const Value& self, const Args& args) {
  const auto a = args.bind("splitlines", {"keepends"});
  in.charge(static_cast<int64_t>(self.text()->size() / 16));
  return make_texts(in, *self.text(), split_lines(self.text()->str(), flag_arg(a[0], false)));
}

Value strip_either(Interp& in, const Value& self, const Args& args, bool left, bool right) {
  const auto a = args.bind("strip", {"chars"});
  const std::string* chars = a[0] && !a[0]->none() ? &text_arg(*a[0], "chars").str() : nullptr;
  in.charge_walk(self);
  const ByteRange kept = strip_range(self.text()->str(), chars, left, right);
  return in.text(self.text()->substr(kept.begin, kept.end));
}
Value strip(Interp& in, const Value& self, const Args& args) { return strip_either(in, self, args, true, true); }
Value lstrip(Interp& in, const Value& self, const Args& args) { return strip_either(in, self, args, true, false); }
Value rstrip(Interp& in, const Value& self, const Args& args) { return strip_either(in, self, args, false, true); }

Value replace(Interp& in, const Value& self, const Args& args) {
  if (!args.named.empty()) fail("str.replace takes no named arguments");
  const auto a = args.bind("replace", {"old", "new", "count"}, 2);
  const Text& from = text_arg(*a[0], "old");
  return in.text(replace_text(in, *self.text(), from, text_arg(*a[1], "new"), int_arg(a[2], -1, "count")));
}

Value remove_affix(Interp& in, const Value& self, const Args& args, bool prefix) {
  const std::string& affix = text_arg(*args.bind("removeprefix", {"affix"}, 1)[0], "affix").str();
  const Text& t = *self.text();
  const std::string& s = t.str();
  if (prefix && s.starts_with(affix)) return in.text(t.substr(affix.size(), s.size()));
  if (!prefix && s.ends_with(affix)) return in.text(t.substr(0, s.size() - affix.size()));
  return self;
}
Value removeprefix(Interp& in, const Value& self, const Args& args) { return remove_affix(in, self, args, true); }
Value removesuffix(Interp& in, const Value& self, const Args& args) { return remove_affix(in, self, args, false); }

Value partition_either(Interp& in, const Value& self, const Args& args, bool from_right) {
  const Text& separator = text_arg(*args.bind("partition", {"sep"}, 1)[0], "separator");
  if (separator.empty()) fail("empty separator");
  const Text& t = *self.text();
  in.charge_walk(self);
  const size_t at = from_right ? t.str().rfind(separator.str()) : t.str().find(separator.str());
  std::vector<Value> parts;
  if (at == std::string::npos) {
    parts = {in.text("", true), in.text("", true), in.text("", true)};
    parts[from_right ? 2 : 0] = self;
  } else {
    const size_t after = at + separator.size();
    parts = {in.text(t.substr(0, at)), in.text(t.substr(at, after)), in.text(t.substr(after, t.size()))};
  }
  return in.list(std::move(parts), ListKind::kTuple);
}
Value partition(Interp& in, const Value& self, const Args& args) { return partition_either(in, self, args, false); }
Value rpartition(Interp& in, const Value& self, const Args& args) { return partition_either(in, self, args, true); }

Value join(Interp& in, const Value& self, const Args& args) {
  const auto a = args.bind("join", {"iterable"}, 1);
  if (a[0]->undefined()) return in.text("", true);
  return in.text(join_texts(in, *self.text(), in.iterate(*a[0]), true));
}

// str.title: a letter after a letter is lower case, any other is title case.
Value title(Interp& in, const Value& self, const Args& args) {
  args.bind("title", {});
  const Text& t = *self.text();
  in.charge(static_cast<int64_t>(t.size()));
  std::string out;
  bool inside = false;
  const std::string_view s = t.str();
  for (size_t i = 0, length; i < s.size(); i += length) {
    const char32_t c = decode_at(s, i, &length);
    out += inside ? to_lower(s.substr(i, length)) : to_title_char(s.substr(i, length));
    inside = is_cased(c);
  }
  return in.text(t.uniform() || is_ascii(s) ? t.with_bytes(std::move(out)) : Text(std::move(out), false));
}

template <const char* const& Name>
Value by_filter(Interp& in, const Value& self, const Args& args) {
  return find_filter(Name)(in, self, args);
}
constexpr const char* kUpper = "upper";
constexpr const char* kLower = "lower";
constexpr const char* kCapitalize = "capitalize";

}  // namespace

std::span<const Named<Method>> text_methods() {
  static constexpr Named<Method> kTable[] = {{"split", split},
                                             {"rsplit", rsplit},
                                             {"splitlines", splitlines},
                                             {"strip", strip},
                                             {"lstrip", lstrip},
                                             {"rstrip", rstrip},
                                             {"replace", replace},
                                             {"removeprefix", removeprefix},
                                             {"removesuffix", removesuffix},
                                             {"partition", partition},
                                             {"rpartition", rpartition},
                                             {"join", join},
                                             {"title", title},
                                             {"upper", by_filter<kUpper>},
                                             {"lower", by_filter<kLower>},
                                             {"capitalize", by_filter<kCapitalize>}};
  return kTable;
}

}  // namespace vayu::jinja
