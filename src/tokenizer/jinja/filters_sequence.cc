// Filters on lists and dicts, except those that apply a test or filter to each item (filters_select.cc).
#include <algorithm>

#include "tokenizer/jinja/filters.h"

namespace vayu::jinja {
namespace {

Value length(Interp& in, const Value& v, const Args& args) {
  args.bind("length", {});
  if (v.text()) in.charge_walk(v);
  if (v.undefined()) return int64_t{0};
  if (v.text()) return static_cast<int64_t>(count_code_points(v.text()->str()));
  if (v.dict()) return static_cast<int64_t>(v.dict()->entries.size());
  if (!v.list() || v.list()->kind == ListKind::kGenerator) fail("a value of type {} has no length", type_name(v));
  return static_cast<int64_t>(v.list()->items.size());
}

Value first(Interp& in, const Value& v, const Args& args) {
  args.bind("first", {});
  if (v.text()) {
    const Value c = char_at(in, *v.text(), 0);
    return c.undefined() ? make_undefined("no first item, the text was empty") : c;
  }
  List* list = v.list();
  if (list && !list->items.empty()) {
    Value item = list->items[0];
    if (list->kind == ListKind::kGenerator) list->items.erase(list->items.begin());
    return item;
  }
  const std::vector<Value> items = in.iterate(v);
  return items.empty() ? make_undefined("no first item, the sequence was empty") : items[0];
}

Value last(Interp& in, const Value& v, const Args& args) {
  args.bind("last", {});
  if (v.list() && v.list()->kind == ListKind::kGenerator) fail("a generator has no last item; use |list first");
  if (v.text()) {
    const Value c = char_at(in, *v.text(), -1);
    return c.undefined() ? make_undefined("no last item, the text was empty") : c;
  }
  if (v.list() && !v.list()->items.empty()) return v.list()->items.back();
  const std::vector<Value> items = in.iterate(v);
  return items.empty() ? make_undefined("no last item, the sequence was empty") : items.back();
}

Value to_list(Interp& in, const Value& v, const Args& args) {
  args.bind("list", {});
  return in.list(in.iterate(v));
}

Value items(Interp& in, const Value& v, const Args& args) {
  args.bind("items", {});
  if (v.undefined()) return in.list({}, ListKind::kGenerator);
  if (!v.dict()) fail("items of a {}; a dict is needed", type_name(v));
  return dict_items(in, *v.dict(), ListKind::kGenerator);
}

Value reverse(Interp& in, const Value& v, const Args& args) {
  args.bind("reverse", {});
  if (const Text* t = v.text()) {
    in.charge(static_cast<int64_t>(t->size()));
    Text out;
    for (size_t end = t->size(); end > 0;) {
      size_t begin = end - 1;
      while (begin > 0 && is_continuation(t->str()[begin])) --begin;
      out.append(*t, begin, end);
      end = begin;
    }
    out.markup = t->markup;
    return in.text(std::move(out));
  }
  const bool was_generator = v.list() && v.list()->kind == ListKind::kGenerator;
  std::vector<Value> all = in.iterate(v);
  std::reverse(all.begin(), all.end());
  return in.list(std::move(all), was_generator ? ListKind::kList : ListKind::kGenerator);
}

// What sort, unique, min and max compare: the item or one of its attributes, texts in lower case unless case counts.
Value sort_key(Interp& in, const Value& item, const Value* attribute, bool case_sensitive) {
  const Value key = attribute ? in.path(item, *attribute) : item;
  if (case_sensitive || !key.text()) return key;
  return in.text(to_lower(key.text()->str()));
}

std::vector<Value> split_attributes(const Value* attribute) {
  std::vector<Value> parts;
  if (!attribute || attribute->none()) return parts;
  if (!attribute->text()) return {*attribute};
  const std::string& s = attribute->text()->str();
  for (size_t begin = 0; begin <= s.size();) {
    const size_t end = std::min(s.find(',', begin), s.size());
    parts.push_back(Text(s.substr(begin, end - begin), true));
    begin = end + 1;
  }
  return parts;
}

using Keyed = std::pair<Value, Value>;  // sort key, item

Value sorted(Interp& in, std::vector<Keyed> keyed, bool descending) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    in.charge(1);
    return (descending ? in.ordered(b.first, a.first) : in.ordered(a.first, b.first)) == -1;
  });
  std::vector<Value> out;
  for (Keyed& k : keyed) out.push_back(std::move(k.second));
  return in.list(std::move(out));
}

Value sort(Interp& in, const Value& v, const Args& args) {
  const auto a = args.bind("sort", {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = flag_arg(a[1], false);
  const std::vector<Value> attributes = split_attributes(a[2]);
  std::vector<Keyed> keyed;
  for (Value& item : in.iterate(v)) {
    std::vector<Value> key;
    for (const Value& attribute : attributes) key.push_back(sort_key(in, item, &attribute, case_sensitive));
    if (attributes.empty()) key.push_back(sort_key(in, item, nullptr, case_sensitive));
    keyed.emplace_back(key.size() == 1 ? key[0] : in.list(std::move(key)), std::move(item));
  }
  return sorted(in, std::move(keyed), flag_arg(a[0], false));
}

Value dictsort(Interp& in, const Value& v, const Args& args) {
  const auto a = args.bind("dictsort", {"case_sensitive", "by", "reverse"});
  const std::string by = a[1] ? text_arg(*a[1], "by").str() : "key";
  if (by != "key" && by != "value") fail("dictsort by must be 'key' or 'value'");
  if (!v.dict()) fail("dictsort of a {}", type_name(v));
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : v.dict()->entries) {
    keyed.emplace_back(sort_key(in, by == "key" ? key : value, nullptr, flag_arg(a[0], false)),
                       in.list({key, value}, ListKind::kTuple));
  }
  return sorted(in, std::move(keyed), flag_arg(a[2], false));
}

Value unique(Interp& in, const Value& v, const Args& args) {
  const auto a = args.bind("unique", {"case_sensitive", "attribute"});
  Dict seen;
  std::vector<Value> out;
  for (Value& item : in.iterate(v)) {
    const Value key = sort_key(in, item, a[1] && !a[1]->none() ? a[1] : nullptr, flag_arg(a[0], false));
    in.charge(key.text() ? 1 : static_cast<int64_t>(out.size()));
    if (seen.find(key)) continue;
    seen.set(key, true);
    out.push_back(std::move(item));
  }
  return in.list(std::move(out), ListKind::kGenerator);
}

Value extreme(Interp& in, const Value& v, const Args& args, int wanted, std::string_view name) {
  const auto a = args.bind(name, {"case_sensitive", "attribute"});
  const std::vector<Value> all = in.iterate(v);
  if (all.empty()) return make_undefined("no aggregated item, the sequence was empty");
  const Value* attribute = a[1] && !a[1]->none() ? a[1] : nullptr;
  size_t best = 0;
  Value best_key = sort_key(in, all[0], attribute, flag_arg(a[0], false));
  for (size_t i = 1; i < all.size(); ++i) {
    Value key = sort_key(in, all[i], attribute, flag_arg(a[0], false));
    if (in.ordered(key, best_key) != wanted) continue;
    best = i;
    best_key = std::move(key);
  }
  return all[best];
}

Value minimum(Interp& in, const Value& v, const Args& args) { return extreme(in, v, args, -1, "min"); }
Value maximum(Interp& in, const Value& v, const Args& args) { return extreme(in, v, args, 1, "max"); }

Value sum(Interp& in, const Value& v, const Args& args) {
  const auto a = args.bind("sum", {"attribute", "start"});
  Value total = a[1] ? *a[1] : Value(int64_t{0});
  if (total.text()) fail("sum cannot add str; use |join");
  for (const Value& item : in.iterate(v)) {
    const Value part = a[0] && !a[0]->none() ? in.path(item, *a[0]) : item;
    if (part.undefined()) fail("sum of an undefined value");
    total = in.add(total, part);
  }
  return total;
}

Value join(Interp& in, const Value& v, const Args& args) {
  const auto a = args.bind("join", {"d", "attribute"});
  std::vector<Value> parts = in.iterate(v);
  if (a[1] && !a[1]->none()) {
    for (Value& part : parts) part = in.path(part, *a[1]);
  }
  return in.text(join_texts(in, a[0] ? *in.str(*a[0]) : Text(), parts, false));
}

Value batch(Interp& in, const Value& v, const Args& args) {
  const auto a = args.bind("batch", {"linecount", "fill_with"}, 1);
  const int64_t size = int_arg(a[0], 1, "linecount");
  if (size < 1 || size > kMaxRange) fail("batch of {} items", size);
  std::vector<Value> out, current;
  for (Value& item : in.iterate(v)) {
    if (static_cast<int64_t>(current.size()) == size) out.push_back(in.list(std::exchange(current, {})));
    current.push_back(std::move(item));
  }
  if (!current.empty()) {
    if (a[1] && !a[1]->none()) current.resize(static_cast<size_t>(size), *a[1]);
    out.push_back(in.list(std::move(current)));
  }
  return in.list(std::move(out), ListKind::kGenerator);
}

}  // namespace

Text join_texts(Interp& in, const Text& separator, const std::vector<Value>& parts, bool only_texts) {
  Text out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (only_texts && !parts[i].text()) fail("join of a {} where str is needed", type_name(parts[i]));
    const TextPtr part = in.str(parts[i]);
    if (i) out.append(separator);
    out.append(*part);
    in.charge(1);
    if (out.size() > kMaxTextBytes) fail(ErrorKind::kTooLarge, "text of more than {} bytes", kMaxTextBytes);
  }
  return out;
}

Value dict_items(Interp& in, const Dict& dict, ListKind kind) {
  std::vector<Value> out;
  for (const auto& [key, value] : dict.entries) out.push_back(in.list({key, value}, ListKind::kTuple));
  return in.list(std::move(out), kind);
}

std::span<const Named<Filter>> sequence_filters() {
  static constexpr Named<Filter> kTable[] = {
      {"length", length}, {"count", length},      {"first", first},   {"last", last},   {"list", to_list},
      {"items", items},   {"reverse", reverse},   {"sort", sort},     {"min", minimum}, {"max", maximum},
      {"sum", sum},       {"dictsort", dictsort}, {"unique", unique}, {"join", join},   {"batch", batch}};
  return kTable;
}

}  // namespace vayu::jinja
