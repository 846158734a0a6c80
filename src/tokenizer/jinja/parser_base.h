// Private to the parser: the token cursor and the expression grammar, which parser.cc extends with statements.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/lexer.h"

namespace vayu::jinja {

class ExprParser {
 public:
  explicit ExprParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  struct DepthGuard {
    explicit DepthGuard(ExprParser& p);
    ~DepthGuard() { --parser.depth_; }
    ExprParser& parser;
  };

  // Cursor.
  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(next_ + ahead, tokens_.size() - 1)]; }
  bool at(TokenKind kind) const { return peek().kind == kind; }
  bool at_op(std::string_view op, size_t ahead = 0) const;
  bool at_name(std::string_view name) const;
  bool take_op(std::string_view op);
  bool take_name(std::string_view name);
  void expect_op(std::string_view op);
  std::string expect_name();
  Token take();
  [[noreturn]] void error(std::string_view message) const;
  [[noreturn]] void unexpected(std::string_view wanted) const;
  int line() const { return peek().line; }
  int intern(const std::string& name);

  // Grammar, loosest first.
  ExprPtr parse_expression() { return parse_ternary(); }
  // Comma list; one element without a comma stands for itself. with_ternary is off where `if` follows (for).
  ExprPtr parse_tuple(bool with_ternary, bool in_parentheses = false);
  ExprPtr parse_ternary();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter);
  ExprPtr parse_primary();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_subscript(ExprPtr node);
  ExprPtr parse_filters_and_tests(ExprPtr node);
  ExprPtr parse_filter(ExprPtr node);  // after the '|'
  ExprPtr parse_test(ExprPtr node);    // after `is`
  void parse_call_args(Expr& call);    // from the '('

  ExprPtr make(ExprKind kind, int line) const;
  ExprPtr finish(ExprPtr node) const;  // sets depth from the parts
  ExprPtr binary(ExprKind kind, int line, ExprPtr left, ExprPtr right) const;

  std::vector<std::string> names_;
  bool saw_caller_ = false;  // since last reset, `caller` was read

 private:
  std::vector<Token> tokens_;
  size_t next_ = 0;
  int depth_ = 0;
  std::unordered_map<std::string, int> name_ids_;
};

}  // namespace vayu::jinja
