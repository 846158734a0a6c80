#include "tokenizer/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "tokenizer/jinja/callable.h"
#include "tokenizer/jinja/limits.h"

namespace vayu::jinja {
namespace {

constexpr size_t kIndexFrom = 8;  // entries from which a dict keeps its hash index

void check_shape(int depth, int64_t weight) {
  if (depth > kMaxValueDepth) fail(ErrorKind::kTooLarge, "value nested more than {} levels deep", kMaxValueDepth);
  if (weight > kMaxSteps) fail(ErrorKind::kTooLarge, "value with more than {} parts", kMaxSteps);
}

Value make_plain(const nlohmann::ordered_json& json, bool trusted) {
  using Kind = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Kind::null:
      return None{};
    case Kind::boolean:
      return json.get<bool>();
    case Kind::number_integer:
      return json.get<int64_t>();
    case Kind::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) fail("integer above 2^63 in the template's input");
      return static_cast<int64_t>(json.get<uint64_t>());
    case Kind::number_float:
      return json.get<double>();
    case Kind::string: {
      const auto& s = json.get_ref<const std::string&>();
      if (!valid_utf8(s)) fail("text that is not UTF-8 in the template's input");
      return Text(s, trusted);
    }
    default:
      fail("binary data in the template's input");
  }
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  if (!string_index_.empty()) {
    const auto it = string_index_.find(std::string(key));
    return it == string_index_.end() ? nullptr : &entries[it->second].second;
  }
  for (const auto& [k, v] : entries) {
    if (k.text() && k.text()->str() == key) return &v;
  }
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (key.text()) return find(key.text()->str());
  for (const auto& [k, v] : entries) {
    if (!k.text() && equals(k, key)) return &v;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  if (!hashable(key)) fail("unhashable dict key of type {}", type_name(key));
  if (const Value* old = find(key)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  entries.emplace_back(std::move(key), std::move(value));
  if (entries.size() < kIndexFrom) return;
  const size_t first = string_index_.empty() ? 0 : entries.size() - 1;
  for (size_t i = first; i < entries.size(); ++i) {
    if (entries[i].first.text()) string_index_.emplace(entries[i].first.text()->str(), i);
  }
}

const char* type_name(const Value& v) {
  if (v.undefined()) return "Undefined";
  if (v.none()) return "NoneType";
  if (v.is_bool()) return "bool";
  if (v.get<int64_t>()) return "int";
  if (v.get<double>()) return "float";
  if (v.text()) return "str";
  if (v.dict()) return "dict";
  if (v.callable()) return "function";
  if (const Object* o = v.object()) return o->kind == Object::Kind::kNamespace ? "Namespace" : "object";
  static constexpr const char* kNames[] = {"list",        "tuple",      "range",    "dict_keys",
                                           "dict_values", "dict_items", "generator"};
  return kNames[static_cast<int>(v.list()->kind)];
}

int value_depth(const Value& v) {
  if (v.list()) return v.list()->depth;
  if (v.dict()) return v.dict()->depth;
  return v.callable() ? v.callable()->depth() : 0;
}

int64_t value_weight(const Value& v) {
  if (v.list()) return v.list()->weight;
  if (v.dict()) return v.dict()->weight;
  return v.text() ? 1 + static_cast<int64_t>(v.text()->size() / 64) : 1;
}

Value make_list(std::vector<Value> items, ListKind kind) {
  auto list = std::make_shared<List>();
  for (const Value& item : items) {
    list->depth = std::max(list->depth, value_depth(item) + 1);
    list->weight += value_weight(item);
  }
  check_shape(list->depth, list->weight);
  list->kind = kind;
  list->items = std::move(items);
  return ListPtr(std::move(list));
}

Value make_dict(Dict dict) {
  for (const auto& [k, v] : dict.entries) {
    dict.depth = std::max({dict.depth, value_depth(k) + 1, value_depth(v) + 1});
    dict.weight += value_weight(k) + value_weight(v);
  }
  check_shape(dict.depth, dict.weight);
  return DictPtr(std::make_shared<const Dict>(std::move(dict)));
}

Value make_undefined(std::string hint) { return Undefined{std::make_shared<const std::string>(std::move(hint))}; }

Value from_json(const nlohmann::ordered_json& json, bool trusted, int depth) {
  if (!json.is_structured()) return make_plain(json, trusted);
  if (depth > kMaxValueDepth) fail(ErrorKind::kTooLarge, "input nested more than {} levels deep", kMaxValueDepth);
  if (json.is_array()) {
    std::vector<Value> items;
    items.reserve(json.size());
    for (const auto& item : json) items.push_back(from_json(item, trusted, depth + 1));
    return make_list(std::move(items));
  }
  Dict dict;
  for (const auto& [key, value] : json.items()) {
    if (!valid_utf8(key)) fail("text that is not UTF-8 in the template's input");
    dict.set(Text(key, trusted), from_json(value, trusted, depth + 1));
  }
  return make_dict(std::move(dict));
}

bool truthy(const Value& v) {
  if (v.undefined() || v.none()) return false;
  if (v.is_integral()) return v.as_int() != 0;
  if (v.get<double>()) return *v.get<double>() != 0;
  if (v.text()) return !v.text()->empty();
  if (v.list()) return v.list()->kind == ListKind::kGenerator || !v.list()->items.empty();
  if (v.dict()) return !v.dict()->entries.empty();
  return true;
}

namespace {

bool equal_lists(const List& a, const List& b) {
  if (a.kind != b.kind) return false;
  if (a.kind > ListKind::kRange) fail("comparing two {} objects is not supported", "view or generator");
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), equals);
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  return std::all_of(a.entries.begin(), a.entries.end(), [&](const auto& entry) {
    const Value* other = b.find(entry.first);
    return other && equals(entry.second, *other);
  });
}

int order(long double a, long double b) { return a < b ? -1 : a > b ? 1 : a == b ? 0 : 2; }

}  // namespace

bool equals(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return compare(a, b) == 0;
  }
  if (a.text() && b.text()) return a.text()->str() == b.text()->str();
  if (a.list() && b.list()) return a.list() == b.list() || equal_lists(*a.list(), *b.list());
  if (a.dict() && b.dict()) return a.dict() == b.dict() || equal_dicts(*a.dict(), *b.dict());
  if (a.object() && b.object()) return a.object() == b.object();
  if (a.callable() && b.callable()) return a.callable() == b.callable();
  return (a.undefined() && b.undefined()) || (a.none() && b.none());
}

int compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    // long double holds every int64 and every double, so the order of mixed pairs is exact as in Python.
    auto wide = [](const Value& v) -> long double { return v.get<double>() ? *v.get<double>() : v.as_int(); };
    return order(wide(a), wide(b));
  }
  if (a.text() && b.text()) {  // UTF-8 keeps the order of code points
    const int c = a.text()->str().compare(b.text()->str());
    return c < 0 ? -1 : c > 0 ? 1 : 0;
  }
  const List *la = a.list(), *lb = b.list();
  if (la && lb && la->kind == lb->kind && la->kind <= ListKind::kTuple) {
    const size_t n = std::min(la->items.size(), lb->items.size());
    for (size_t i = 0; i < n; ++i) {
      if (!equals(la->items[i], lb->items[i])) return compare(la->items[i], lb->items[i]);
    }
    return order(la->items.size(), lb->items.size());
  }
  fail("'{}' and '{}' cannot be ordered", type_name(a), type_name(b));
}

bool hashable(const Value& v) {
  if (v.dict()) return false;
  if (!v.list()) return true;
  if (v.list()->kind != ListKind::kTuple) return v.list()->kind == ListKind::kGenerator;
  return std::all_of(v.list()->items.begin(), v.list()->items.end(), hashable);
}

}  // namespace vayu::jinja
