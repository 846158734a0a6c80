// Runs one template over one context. One thread; made for one render.
#pragma once

#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/limits.h"

namespace vayu::jinja {

// Variables of one block. Scopes live on the C++ stack of the render, unless a macro defined inside may outlive them.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<int, Value>> vars;  // by name id
};
using ScopePtr = std::shared_ptr<Scope>;

struct Loop : Object {        // the `loop` variable
  std::vector<Value> source;  // all items, before the loop's filter
  size_t next_source = 0;
  std::deque<Value> ready;  // items that passed the filter but were only looked at so far; front first
  int64_t index0 = -1;
  Value previous, current;
  std::optional<Value> last_changed;
  bool finished = false;
  class Interp* interp = nullptr;
  const Stmt* stmt = nullptr;
  ScopePtr scope;  // of the loop's surroundings
};

enum class Flow : uint8_t { kNormal, kBreak, kContinue };

class Interp {
 public:
  Interp(const Template& code, const nlohmann::ordered_json& context);
  ~Interp();
  Text run();
  int line() const { return line_; }

  // Work accounting; both throw kTooLarge.
  void charge(int64_t steps) {
    steps_ += steps;
    if (steps_ > kMaxSteps) fail(ErrorKind::kTooLarge, "template does too much work");
  }
  void charge_bytes(size_t bytes);
  void charge_walk(const Value& v) { charge(value_weight(v)); }

  // Makers that charge for what they make.
  Value text(Text t);
  Value text(std::string bytes, bool trusted = false) { return text(Text(std::move(bytes), trusted)); }
  Value list(std::vector<Value> items, ListKind kind = ListKind::kList);
  TextPtr str(const Value& v);
  Object* new_object(Object::Kind kind);

  // Jinja's operations on values.
  Value attribute(const Value& object, const std::string& name);                        // object.name
  Value item(const Value& object, const Value& key);                                    // object[key]
  Value path(const Value& object, const Value& path, const Value* fallback = nullptr);  // "a.b.0", as filters take it
  Value call(const Value& function, const Args& args);
  std::vector<Value> iterate(const Value& v);  // items of anything Python can walk; uses generators up
  bool contains(const Value& container, const Value& needle);
  bool same(const Value& a, const Value& b) {
    charge(std::min(value_weight(a), value_weight(b)));
    return equals(a, b);
  }
  int ordered(const Value& a, const Value& b) {
    charge(std::min(value_weight(a), value_weight(b)));
    return compare(a, b);
  }
  Value add(const Value& a, const Value& b);
  Value multiply(const Value& a, const Value& b);
  Value arithmetic(ExprKind kind, const Value& a, const Value& b);
  Value format_percent(const Text& format, const Args& args);  // "%s %d" % args
  Value call_macro(const MacroDef& macro, const ScopePtr& scope, const Args& args);

  // Loops, for the `loop` object.
  bool loop_peek(Loop& loop);  // makes ready[0], if there is one more item
  int64_t loop_length(Loop& loop);

 private:
  struct DepthGuard {
    explicit DepthGuard(Interp& i);
    ~DepthGuard() { --interp.depth_; }
    Interp& interp;
  };
  struct ScopeGuard {  // a new scope over `parent`, until the end of the block
    ScopeGuard(Interp& i, ScopePtr parent);
    ~ScopeGuard() { interp.scope_ = std::move(saved); }
    Interp& interp;
    ScopePtr saved;
  };

  // Statements.
  Flow exec_body(const Body& body);
  Flow exec(const Stmt& stmt);
  Flow exec_if(const Stmt& stmt);
  Flow exec_for(const Stmt& stmt);
  Flow run_loop(const Stmt& stmt, Loop& loop);
  Flow exec_block_text(const Stmt& stmt);  // kSetBlock, kFilterBlock
  Flow exec_with(const Stmt& stmt);
  Flow exec_scope(const Stmt& stmt);
  void exec_macro(const Stmt& stmt);
  void exec_call_block(const Stmt& stmt);
  void exec_print(const Expr& expr);
  Flow capture(const Body& body, Text* out);
  void emit(const Text& t);
  void assign(const Target& target, Value value);
  void assign_name(int id, Value value);

  // Expressions.
  Value eval(const Expr& e);
  Value eval_name(const Expr& e);
  Value eval_slice(const Expr& e);
  Value eval_call(const Expr& e);
  Value eval_compare(const Expr& e);
  Value eval_concat(const Expr& e);
  Value eval_sign(const Expr& e);
  Value eval_binary(const Expr& e);
  Value eval_group(const Expr& e);  // list, tuple, dict
  Value eval_ternary(const Expr& e);
  bool compare_op(CompareOp op, const Value& a, const Value& b);
  Args eval_args(const Expr& e);  // args[1..] and named

  const Template& code_;
  const nlohmann::ordered_json& context_;
  std::vector<std::optional<Value>> globals_;  // (names) context and built-in values, once looked up
  std::vector<std::unique_ptr<Object>> objects_;
  std::vector<ScopePtr> kept_scopes_;  // defined macros refer to them; emptied at the end to break cycles
  ScopePtr scope_;
  Text* out_ = nullptr;
  Value captured_;
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
  int line_ = 1;
  int depth_ = 0;
};

// Slices of [0, size) as Python resolves them: start, step and the number of items.
struct SliceSpan {
  int64_t start, step, count;
};
SliceSpan resolve_slice(const Value& start, const Value& stop, const Value& step, int64_t size);

// Context values trusted like template text: names of special tokens, and the well-known roles of messages.
Value context_value(const std::string& name, const nlohmann::ordered_json& json);

}  // namespace vayu::jinja
