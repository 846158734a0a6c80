// Helpers shared by the files that define operators, filters, tests, methods and functions.
#pragma once

#include <span>
#include <string_view>
#include <utility>

#include "tokenizer/jinja/interp.h"

namespace vayu::jinja {

template <class F>
struct Named {
  std::string_view name;
  F value;
};
template <class F>
F find_named(std::span<const Named<F>> table, std::string_view name) {
  for (const auto& entry : table) {
    if (entry.name == name) return entry.value;
  }
  return nullptr;
}

// One table a file; find_filter and find_method look through them.
std::span<const Named<Filter>> text_filters();
std::span<const Named<Filter>> sequence_filters();
std::span<const Named<Filter>> select_filters();
std::span<const Named<Method>> text_methods();
std::span<const Named<Method>> text_search_methods();

// Optional arguments: the default stands for "not given"; a wrong type is an error.
bool flag_arg(const Value* v, bool fallback);
int64_t int_arg(const Value* v, int64_t fallback, std::string_view what);
const Text& text_arg(const Value& v, std::string_view what);

Text escape_html(const Text& t);
Value char_at(Interp& interp, const Text& t, int64_t i);  // one code point, negative from the end; undefined outside
Text replace_text(Interp& interp, const Text& t, const Text& from, const Text& to, int64_t limit);  // limit < 0: all
Text join_texts(Interp& interp, const Text& separator, const std::vector<Value>& parts, bool only_texts);
Value dict_items(Interp& interp, const Dict& dict, ListKind kind);

Value eval_prefix(Interp& interp, const Text& t, int64_t code_points);  // the first code points of t

// Objects with state.
Value object_attribute(Interp& interp, Object& object, const std::string& name);
Value call_joiner(Interp& interp, Object& joiner);
Method find_object_method(const Object& object, std::string_view name);
// Names that Python resolves to methods which change a dict: hidden by the sandbox, even where a key has that name.
bool hidden_dict_method(std::string_view name);
// Names that Python knows on this type and we do not: an error, where an unknown name would be undefined.
bool unsupported_method(const Value& object, std::string_view name);

}  // namespace vayu::jinja
