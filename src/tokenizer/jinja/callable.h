// What a template can call, and how arguments reach it.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "tokenizer/jinja/value.h"

namespace vayu::jinja {

class Interp;

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // Values by parameter name, in the order of `names`; nullptr where not given. Throws on too many, unknown or repeated
  // arguments, and when one of the first `required` is missing.
  std::vector<const Value*> bind(std::string_view function, std::initializer_list<std::string_view> names,
                                 size_t required = 0) const;
};

struct Callable {
  virtual ~Callable() = default;
  virtual Value call(Interp& interp, const Args& args) const = 0;
  virtual int depth() const { return 1; }  // nesting of the values it holds
};

using Function = Value (*)(Interp& interp, const Args& args);
using Method = Value (*)(Interp& interp, const Value& self, const Args& args);

struct BuiltinFunction : Callable {
  explicit BuiltinFunction(Function f) : function(f) {}
  Value call(Interp& interp, const Args& args) const override { return function(interp, args); }
  Function function;
};

struct BoundMethod : Callable {
  BoundMethod(Value s, Method m) : self(std::move(s)), method(m) {}
  Value call(Interp& interp, const Args& args) const override { return method(interp, self, args); }
  int depth() const override { return value_depth(self) + 1; }
  Value self;
  Method method;
};

// Each gives nullptr for a name it does not know.
Function find_function(std::string_view name);                   // global functions
Method find_method(const Value& object, std::string_view name);  // methods of str, dict, list and stateful objects
using Filter = Method;                                           // self is the filtered value
Filter find_filter(std::string_view name);
using Test = bool (*)(Interp& interp, const Value& value, const Args& args);
Test find_test(std::string_view name);

}  // namespace vayu::jinja
