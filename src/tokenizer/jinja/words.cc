#include "tokenizer/jinja/words.h"

#include <algorithm>

namespace vayu::jinja {
namespace {

// The parser bounds the depth of both trees, so plain recursion is safe.
class Walk {
 public:
  explicit Walk(TemplateWords& words) : words_(words) {}

  void body(const Body& body) {
    for (const auto& stmt : body) this->stmt(*stmt);
  }

 private:
  void stmt(const Stmt& s) {
    if (s.text) words_.texts.push_back(s.text->str());
    expr(s.expr);
    expr(s.filter);
    for (const ExprPtr& value : s.values) expr(value);
    for (const auto& [condition, body] : s.branches) {
      expr(condition);
      this->body(body);
    }
    body(s.body);
    body(s.else_body);
    for (const Param& param : s.macro.params) expr(param.fallback);
    body(s.macro.body);
  }

  void expr(const ExprPtr& e) {
    if (!e) return;
    if (e->kind == ExprKind::kConst && e->constant.text()) words_.texts.push_back(e->constant.text()->str());
    if (e->kind == ExprKind::kName) words_.variables.push_back(e->name);
    if (e->kind == ExprKind::kAttr) words_.keys.push_back(e->name);
    if (e->kind == ExprKind::kItem && e->args[1]->kind == ExprKind::kConst && e->args[1]->constant.text()) {
      words_.keys.push_back(e->args[1]->constant.text()->str());
    }
    if (e->kind == ExprKind::kCompare && e->args[0]->kind == ExprKind::kConst && e->args[0]->constant.text()) {
      words_.keys.push_back(e->args[0]->constant.text()->str());  // 'reasoning_content' in message
    }
    for (const ExprPtr& arg : e->args) expr(arg);
    for (const auto& [name, value] : e->named) expr(value);
  }

  TemplateWords& words_;
};

void sort_unique(std::vector<std::string>& names) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
}

}  // namespace

TemplateWords collect_words(const Template& code) {
  TemplateWords words;
  Walk(words).body(code.body);
  sort_unique(words.texts);
  sort_unique(words.variables);
  sort_unique(words.keys);
  return words;
}

}  // namespace vayu::jinja
