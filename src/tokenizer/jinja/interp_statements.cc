#include <algorithm>

#include "tokenizer/jinja/interp.h"

namespace vayu::jinja {
namespace {

struct MacroValue : Callable {
  MacroValue(const MacroDef& d, ScopePtr s) : def(d), scope(std::move(s)) {}
  Value call(Interp& interp, const Args& args) const override { return interp.call_macro(def, scope, args); }
  const MacroDef& def;
  ScopePtr scope;  // where it was defined: its free names are looked up there
};

}  // namespace

Interp::Interp(const Template& code, const nlohmann::ordered_json& context)
    : code_(code), context_(context), globals_(code.names.size()), scope_(std::make_shared<Scope>()) {}

Interp::~Interp() {
  // Macros in scopes and values in objects may form cycles: cut them all.
  for (const auto& scope : kept_scopes_) {
    std::exchange(scope->vars, {});
  }
  for (const auto& object : objects_) {
    object->attributes.clear();
    object->items.clear();
    if (object->kind == Object::Kind::kLoop) {
      auto& loop = static_cast<Loop&>(*object);
      loop.scope.reset();
    }
  }
}

Interp::DepthGuard::DepthGuard(Interp& i) : interp(i) {
  if (++interp.depth_ > kMaxEvalDepth) {
    --interp.depth_;
    fail(ErrorKind::kTooLarge, "calls or expressions nested more than {} deep", kMaxEvalDepth);
  }
}

Interp::ScopeGuard::ScopeGuard(Interp& i, ScopePtr parent) : interp(i), saved(std::move(i.scope_)) {
  interp.scope_ = std::make_shared<Scope>();
  interp.scope_->parent = std::move(parent);
}

Text Interp::run() {
  Text out;
  out_ = &out;
  exec_body(code_.body);
  return out;
}

Flow Interp::exec_body(const Body& body) {
  for (const auto& stmt : body) {
    const Flow flow = exec(*stmt);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Flow Interp::exec(const Stmt& stmt) {
  DepthGuard guard(*this);
  charge(1);
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kText:
      emit(*stmt.text);
      break;
    case StmtKind::kPrint:
      exec_print(*stmt.expr);
      break;
    case StmtKind::kIf:
      return exec_if(stmt);
    case StmtKind::kFor:
      return exec_for(stmt);
    case StmtKind::kSet:
      assign(stmt.targets[0], eval(*stmt.expr));
      break;
    case StmtKind::kSetBlock:
    case StmtKind::kFilterBlock:
      return exec_block_text(stmt);
    case StmtKind::kMacro:
      exec_macro(stmt);
      break;
    case StmtKind::kCallBlock:
      exec_call_block(stmt);
      break;
    case StmtKind::kWith:
      return exec_with(stmt);
    case StmtKind::kScope:
      return exec_scope(stmt);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Interp::emit(const Text& t) {
  charge_bytes(t.size());
  if (out_->size() + t.size() > kMaxTextBytes)
    fail(ErrorKind::kTooLarge, "output of more than {} bytes", kMaxTextBytes);
  out_->append(t);
}

void Interp::exec_print(const Expr& expr) { emit(*str(eval(expr))); }

Flow Interp::exec_if(const Stmt& stmt) {
  for (const auto& [condition, body] : stmt.branches) {
    if (truthy(eval(*condition))) return exec_body(body);
  }
  return exec_body(stmt.else_body);
}

Flow Interp::exec_for(const Stmt& stmt) {
  auto owned = std::make_unique<Loop>();
  Loop& loop = *owned;
  loop.kind = Object::Kind::kLoop;
  loop.interp = this;
  loop.stmt = &stmt;
  loop.scope = scope_;
  charge_bytes(sizeof(Loop));
  objects_.push_back(std::move(owned));  // `loop` may be stored somewhere and outlive the block
  loop.source = iterate(eval(*stmt.expr));
  const Flow flow = run_loop(stmt, loop);
  loop.finished = true;
  loop.source = {};
  loop.ready = {};
  loop.previous = loop.current = Value();
  loop.last_changed.reset();
  loop.scope.reset();
  return flow;
}

Flow Interp::run_loop(const Stmt& stmt, Loop& loop) {
  while (loop_peek(loop)) {
    charge(1);
    loop.previous = std::move(loop.current);
    loop.current = std::move(loop.ready.front());
    loop.ready.pop_front();
    ++loop.index0;
    ScopeGuard inner(*this, scope_);
    scope_->vars.emplace_back(code_.loop_id, Value(static_cast<Object*>(&loop)));
    assign(stmt.targets[0], loop.current);
    if (exec_body(stmt.body) == Flow::kBreak) break;
  }
  if (loop.index0 >= 0) return Flow::kNormal;
  ScopeGuard inner(*this, scope_);
  return exec_body(stmt.else_body);
}

bool Interp::loop_peek(Loop& loop) {
  while (loop.ready.empty() && loop.next_source < loop.source.size()) {
    Value candidate = loop.source[loop.next_source++];
    if (loop.stmt->filter) {
      ScopeGuard inner(*this, loop.scope);
      assign(loop.stmt->targets[0], candidate);
      if (!truthy(eval(*loop.stmt->filter))) continue;
    }
    loop.ready.push_back(std::move(candidate));
  }
  return !loop.ready.empty();
}

int64_t Interp::loop_length(Loop& loop) {
  if (!loop.stmt->filter) return static_cast<int64_t>(loop.source.size());
  std::deque<Value> seen = std::move(loop.ready);
  loop.ready.clear();
  while (loop_peek(loop)) {
    seen.push_back(std::move(loop.ready.front()));
    loop.ready.clear();
  }
  loop.ready = std::move(seen);
  return loop.index0 + 1 + static_cast<int64_t>(loop.ready.size());
}

Flow Interp::capture(const Body& body, Text* out) {
  Text* outer = std::exchange(out_, out);
  ScopeGuard inner(*this, scope_);
  Flow flow;
  try {
    flow = exec_body(body);
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  return flow;
}

Flow Interp::exec_block_text(const Stmt& stmt) {
  Text body;
  const Flow flow = capture(stmt.body, &body);
  if (flow != Flow::kNormal) return flow;
  Value value = text(std::move(body));
  if (stmt.expr) {
    captured_ = std::move(value);
    value = eval(*stmt.expr);
  }
  if (stmt.kind == StmtKind::kFilterBlock) {
    emit(*str(value));
  } else {
    assign(stmt.targets[0], std::move(value));
  }
  return Flow::kNormal;
}

Flow Interp::exec_with(const Stmt& stmt) {
  std::vector<Value> values;
  for (const auto& value : stmt.values) values.push_back(eval(*value));
  ScopeGuard inner(*this, scope_);
  for (size_t i = 0; i < values.size(); ++i) assign(stmt.targets[i], std::move(values[i]));
  return exec_body(stmt.body);
}

Flow Interp::exec_scope(const Stmt& stmt) {
  ScopeGuard inner(*this, scope_);
  return exec_body(stmt.body);
}

void Interp::exec_macro(const Stmt& stmt) {
  if (kept_scopes_.empty() || kept_scopes_.back() != scope_) kept_scopes_.push_back(scope_);
  charge_bytes(sizeof(MacroValue) + sizeof(Scope));
  assign(stmt.targets[0], CallablePtr(std::make_shared<MacroValue>(stmt.macro, scope_)));
}

void Interp::exec_call_block(const Stmt& stmt) {
  kept_scopes_.push_back(scope_);
  charge_bytes(sizeof(MacroValue) + sizeof(Scope));
  const Value function = eval(*stmt.expr->args[0]);
  Args args = eval_args(*stmt.expr);
  args.named.emplace_back("caller", CallablePtr(std::make_shared<MacroValue>(stmt.macro, scope_)));
  line_ = stmt.line;
  emit(*str(call(function, args)));
}

Value Interp::call_macro(const MacroDef& macro, const ScopePtr& scope, const Args& args) {
  DepthGuard guard(*this);
  if (args.positional.size() > macro.params.size()) {
    fail("macro '{}' takes not more than {} arguments", macro.name, macro.params.size());
  }
  ScopeGuard inner(*this, scope);
  std::vector<bool> used(args.named.size(), false);
  std::vector<bool> given(macro.params.size(), false);
  for (size_t i = 0; i < macro.params.size(); ++i) {
    const Param& param = macro.params[i];
    Value value = make_undefined(fmt::format("parameter '{}' was not provided", param.name));
    if (i < args.positional.size()) {
      value = args.positional[i];
      given[i] = true;
    }
    for (size_t k = 0; k < args.named.size(); ++k) {
      if (args.named[k].first != param.name || used[k]) continue;
      if (given[i]) fail("macro '{}' got two values for '{}'", macro.name, param.name);
      value = args.named[k].second;
      used[k] = given[i] = true;
    }
    scope_->vars.emplace_back(param.name_id, std::move(value));
  }
  if (macro.uses_caller) scope_->vars.emplace_back(code_.caller_id, make_undefined("no caller defined"));
  for (size_t k = 0; k < args.named.size(); ++k) {
    if (used[k]) continue;
    if (args.named[k].first != "caller" || !macro.uses_caller) {
      fail("macro '{}' takes no argument '{}'", macro.name, args.named[k].first);
    }
    assign_name(code_.caller_id, args.named[k].second);
  }
  for (size_t i = 0; i < macro.params.size(); ++i) {
    if (!given[i] && macro.params[i].fallback) assign_name(macro.params[i].name_id, eval(*macro.params[i].fallback));
  }
  Text out;
  capture(macro.body, &out);
  return text(std::move(out));
}

void Interp::assign_name(int id, Value value) {
  for (auto& [name, old] : scope_->vars) {
    if (name == id) {
      old = std::move(value);
      return;
    }
  }
  scope_->vars.emplace_back(id, std::move(value));
}

void Interp::assign(const Target& target, Value value) {
  if (!target.attribute.empty()) {
    Expr name{ExprKind::kName, line_};
    name.name_id = target.name_id;
    const Value owner = eval_name(name);
    if (!owner.object() || owner.object()->kind != Object::Kind::kNamespace) {
      fail("cannot assign attribute '{}' on an object that is not a namespace", target.attribute);
    }
    for (auto& [key, old] : owner.object()->attributes) {
      if (key != target.attribute) continue;
      old = std::move(value);
      return;
    }
    owner.object()->attributes.emplace_back(target.attribute, std::move(value));
    return;
  }
  if (target.parts.empty()) return assign_name(target.name_id, std::move(value));
  std::vector<Value> items = iterate(value);
  if (items.size() != target.parts.size()) {
    fail("cannot unpack {} values into {} names", items.size(), target.parts.size());
  }
  for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], std::move(items[i]));
}

}  // namespace vayu::jinja
