#include "tokenizer/jinja/parser.h"

#include <algorithm>
#include <initializer_list>

#include "tokenizer/jinja/limits.h"
#include "tokenizer/jinja/parser_base.h"

namespace vayu::jinja {
namespace {

using StmtPtr = std::unique_ptr<Stmt>;

class Parser : public ExprParser {
 public:
  using ExprParser::ExprParser;

  Template run() {
    Template out;
    out.body = parse_body({});
    out.loop_id = intern("loop");
    out.caller_id = intern("caller");
    out.names = std::move(names_);
    return out;
  }

 private:
  // Statements up to a block tag that opens with one of `ends`; the cursor is then at that name. No ends: to the end.
  Body parse_body(std::initializer_list<std::string_view> ends) {
    DepthGuard guard(*this);
    Body body;
    while (!at(TokenKind::kEnd)) {
      if (at(TokenKind::kText)) {
        auto text = make_stmt(StmtKind::kText);
        text->text = std::make_shared<const Text>(take().text, true);
        body.push_back(std::move(text));
      } else if (at(TokenKind::kPrintBegin)) {
        auto print = make_stmt(StmtKind::kPrint);
        take();
        print->expr = parse_tuple(true);
        expect(TokenKind::kPrintEnd, "}}");
        body.push_back(std::move(print));
      } else {
        take();
        const bool ends_here = at(TokenKind::kName) && std::find(ends.begin(), ends.end(), peek().text) != ends.end();
        if (ends_here) return body;
        body.push_back(parse_statement());
      }
    }
    if (ends.size() > 0) error(fmt::format("'{}' is missing", *(ends.end() - 1)));
    return body;
  }

  StmtPtr make_stmt(StmtKind kind) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line();
    return stmt;
  }

  void expect(TokenKind kind, std::string_view what) {
    if (!at(kind)) unexpected(what);
    take();
  }
  void expect_block_end() { expect(TokenKind::kBlockEnd, "%}"); }

  Body parse_block(std::string_view end) {  // "%}" body "{% end %}"
    expect_block_end();
    Body body = parse_body({end});
    take();
    expect_block_end();
    return body;
  }

  StmtPtr parse_statement() {
    using Method = StmtPtr (Parser::*)();
    static constexpr std::pair<std::string_view, Method> kStatements[] = {
        {"if", &Parser::parse_if},           {"for", &Parser::parse_for},
        {"set", &Parser::parse_set},         {"macro", &Parser::parse_macro},
        {"call", &Parser::parse_call_block}, {"filter", &Parser::parse_filter_block},
        {"with", &Parser::parse_with},       {"generation", &Parser::parse_generation},
        {"break", &Parser::parse_jump},      {"continue", &Parser::parse_jump}};
    if (!at(TokenKind::kName)) unexpected("a statement");
    for (const auto& [name, method] : kStatements) {
      if (at_name(name)) return (this->*method)();
    }
    fail(ErrorKind::kUnsupported, "line {}: unsupported statement '{}'", line(), peek().text);
  }

  StmtPtr parse_if() {
    auto stmt = make_stmt(StmtKind::kIf);
    take();
    while (true) {
      ExprPtr condition = parse_tuple(false);
      expect_block_end();
      stmt->branches.emplace_back(std::move(condition), parse_body({"elif", "else", "endif"}));
      const std::string next = take().text;
      if (next == "elif") continue;
      if (next == "else") {
        stmt->else_body = parse_block("endif");
      } else {
        expect_block_end();
      }
      return stmt;
    }
  }

  StmtPtr parse_for() {
    auto stmt = make_stmt(StmtKind::kFor);
    take();
    stmt->targets.push_back(parse_target());
    if (!take_name("in")) unexpected("in");
    stmt->expr = parse_tuple(false);
    if (take_name("if")) stmt->filter = parse_expression();
    if (at_name("recursive")) fail(ErrorKind::kUnsupported, "line {}: recursive loop", line());
    expect_block_end();
    ++loop_depth_;
    stmt->body = parse_body({"else", "endfor"});
    --loop_depth_;
    if (take().text == "else") {
      stmt->else_body = parse_block("endfor");
    } else {
      expect_block_end();
    }
    return stmt;
  }

  Target parse_one_target() {
    Target target;
    if (take_op("(")) {
      target = parse_target();
      expect_op(")");
      return target;
    }
    const std::string name = expect_name();
    static constexpr std::string_view kReserved[] = {"true", "false", "none", "True", "False", "None"};
    if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved)) {
      error(fmt::format("cannot assign to '{}'", name));
    }
    target.name_id = intern(name);
    return target;
  }

  Target parse_target() {
    DepthGuard guard(*this);
    Target target = parse_one_target();
    if (!at_op(",")) return target;
    Target tuple;
    tuple.parts.push_back(std::move(target));
    while (take_op(",")) {
      if (!at(TokenKind::kName) && !at_op("(")) break;
      if (at_name("in")) break;
      tuple.parts.push_back(parse_one_target());
    }
    return tuple;
  }

  StmtPtr parse_set() {
    auto stmt = make_stmt(StmtKind::kSet);
    take();
    if (at(TokenKind::kName) && at_op(".", 1)) {
      Target target;
      target.name_id = intern(take().text);
      take();
      target.attribute = expect_name();
      stmt->targets.push_back(std::move(target));
    } else {
      stmt->targets.push_back(parse_target());
    }
    if (take_op("=")) {
      stmt->expr = parse_tuple(true);
      expect_block_end();
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    if (at_op("|")) stmt->expr = parse_filter_chain();
    stmt->body = parse_block("endset");
    return stmt;
  }

  ExprPtr parse_filter_chain() {  // "| name | name(...)": filters of the captured text
    ExprPtr chain = make(ExprKind::kCaptured, line());
    while (take_op("|")) chain = parse_filter(std::move(chain));
    return chain;
  }

  void parse_params(MacroDef& macro) {
    expect_op("(");
    while (!at_op(")")) {
      Param param;
      param.name = expect_name();
      param.name_id = intern(param.name);
      if (take_op("=")) {
        param.fallback = parse_expression();
      } else if (!macro.params.empty() && macro.params.back().fallback) {
        error("parameter without a default after one with a default");
      }
      macro.params.push_back(std::move(param));
      if (!take_op(",")) break;
    }
    expect_op(")");
  }

  Body parse_function_body(std::string_view end) {  // loops around a macro cannot be left from within it
    const int outer = std::exchange(loop_depth_, 0);
    Body body = parse_block(end);
    loop_depth_ = outer;
    return body;
  }

  StmtPtr parse_macro() {
    auto stmt = make_stmt(StmtKind::kMacro);
    take();
    stmt->targets.push_back(parse_one_target());
    stmt->macro.name = names_[stmt->targets[0].name_id];
    const bool outer_saw_caller = std::exchange(saw_caller_, false);
    parse_params(stmt->macro);
    stmt->macro.body = parse_function_body("endmacro");
    stmt->macro.uses_caller = std::exchange(saw_caller_, outer_saw_caller);
    return stmt;
  }

  StmtPtr parse_call_block() {
    auto stmt = make_stmt(StmtKind::kCallBlock);
    take();
    stmt->macro.name = "caller";
    if (at_op("(")) parse_params(stmt->macro);
    stmt->expr = parse_expression();
    if (stmt->expr->kind != ExprKind::kCall) error("expected a call after 'call'");
    stmt->macro.body = parse_function_body("endcall");
    return stmt;
  }

  StmtPtr parse_filter_block() {
    auto stmt = make_stmt(StmtKind::kFilterBlock);
    take();
    ExprPtr chain = parse_filter(make(ExprKind::kCaptured, line()));
    while (take_op("|")) chain = parse_filter(std::move(chain));
    stmt->expr = std::move(chain);
    stmt->body = parse_block("endfilter");
    return stmt;
  }

  StmtPtr parse_with() {
    auto stmt = make_stmt(StmtKind::kWith);
    take();
    while (!at(TokenKind::kBlockEnd)) {
      if (!stmt->targets.empty()) expect_op(",");
      stmt->targets.push_back(parse_one_target());
      expect_op("=");
      stmt->values.push_back(parse_expression());
    }
    stmt->body = parse_block("endwith");
    return stmt;
  }

  StmtPtr parse_generation() {
    auto stmt = make_stmt(StmtKind::kScope);
    take();
    stmt->body = parse_function_body("endgeneration");
    return stmt;
  }

  StmtPtr parse_jump() {
    auto stmt = make_stmt(at_name("break") ? StmtKind::kBreak : StmtKind::kContinue);
    if (loop_depth_ == 0) error(fmt::format("'{}' outside a loop", peek().text));
    take();
    expect_block_end();
    return stmt;
  }

  int loop_depth_ = 0;
};

}  // namespace

Template parse_template(std::string_view source) {
  if (source.size() > kMaxSourceBytes) fail(ErrorKind::kTooLarge, "template of more than {} bytes", kMaxSourceBytes);
  if (!valid_utf8(source)) fail("template is not UTF-8");
  return Parser(tokenize(source)).run();
}

}  // namespace vayu::jinja
