#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "tokenizer/jinja/limits.h"
#include "tokenizer/jinja/parser_base.h"

namespace vayu::jinja {

ExprParser::DepthGuard::DepthGuard(ExprParser& p) : parser(p) {
  if (++parser.depth_ > kMaxParseDepth) {
    --parser.depth_;
    fail(ErrorKind::kTooLarge, "line {}: nested more than {} levels deep", p.line(), kMaxParseDepth);
  }
}

bool ExprParser::at_op(std::string_view op, size_t ahead) const {
  return peek(ahead).kind == TokenKind::kOp && peek(ahead).text == op;
}
bool ExprParser::at_name(std::string_view name) const { return at(TokenKind::kName) && peek().text == name; }

Token ExprParser::take() {
  Token token = peek();
  if (next_ + 1 < tokens_.size()) ++next_;
  return token;
}
bool ExprParser::take_op(std::string_view op) { return at_op(op) && (take(), true); }
bool ExprParser::take_name(std::string_view name) { return at_name(name) && (take(), true); }
void ExprParser::expect_op(std::string_view op) {
  if (!take_op(op)) unexpected(op);
}
std::string ExprParser::expect_name() {
  if (!at(TokenKind::kName)) unexpected("a name");
  return take().text;
}

void ExprParser::error(std::string_view message) const { fail("line {}: {}", line(), message); }

void ExprParser::unexpected(std::string_view wanted) const {
  static constexpr const char* kKinds[] = {"text",   "{{",     "}}",     "{%", "%}",     "name",
                                           "string", "number", "number", "",   "the end"};
  const Token& t = peek();
  const bool named = t.kind == TokenKind::kOp || t.kind == TokenKind::kName;
  fail("line {}: expected {}, got '{}'", t.line, wanted, named ? t.text : kKinds[static_cast<int>(t.kind)]);
}

int ExprParser::intern(const std::string& name) {
  const auto [it, added] = name_ids_.emplace(name, static_cast<int>(names_.size()));
  if (added) names_.push_back(name);
  return it->second;
}

ExprPtr ExprParser::make(ExprKind kind, int line) const {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = line;
  return node;
}

ExprPtr ExprParser::finish(ExprPtr node) const {
  for (const auto& arg : node->args) {
    if (arg) node->depth = std::max(node->depth, arg->depth + 1);
  }
  for (const auto& arg : node->named) node->depth = std::max(node->depth, arg.second->depth + 1);
  if (node->depth > kMaxEvalDepth / 2) fail(ErrorKind::kTooLarge, "line {}: expression too long", node->line);
  return node;
}

ExprPtr ExprParser::binary(ExprKind kind, int line, ExprPtr left, ExprPtr right) const {
  auto node = make(kind, line);
  node->args.push_back(std::move(left));
  node->args.push_back(std::move(right));
  return finish(std::move(node));
}

ExprPtr ExprParser::parse_tuple(bool with_ternary, bool in_parentheses) {
  const int start = line();
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    const bool ends = at(TokenKind::kPrintEnd) || at(TokenKind::kBlockEnd) || at_op(")");
    if (ends && (is_tuple || (in_parentheses && items.empty()))) break;
    items.push_back(with_ternary ? parse_ternary() : parse_or());
    if (!take_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  auto node = make(ExprKind::kTuple, start);
  node->args = std::move(items);
  return finish(std::move(node));
}

ExprPtr ExprParser::parse_ternary() {
  DepthGuard guard(*this);
  const int start = line();
  ExprPtr value = parse_or();
  while (take_name("if")) {
    auto node = make(ExprKind::kTernary, start);
    node->args.push_back(parse_or());
    node->args.push_back(std::move(value));
    node->args.push_back(take_name("else") ? parse_ternary() : nullptr);
    value = finish(std::move(node));
  }
  return value;
}

ExprPtr ExprParser::parse_or() {
  ExprPtr left = parse_and();
  for (int l = line(); take_name("or"); l = line()) left = binary(ExprKind::kOr, l, std::move(left), parse_and());
  return left;
}

ExprPtr ExprParser::parse_and() {
  ExprPtr left = parse_not();
  for (int l = line(); take_name("and"); l = line()) left = binary(ExprKind::kAnd, l, std::move(left), parse_not());
  return left;
}

ExprPtr ExprParser::parse_not() {
  if (!at_name("not")) return parse_compare();
  DepthGuard guard(*this);
  auto node = make(ExprKind::kNot, take().line);
  node->args.push_back(parse_not());
  return finish(std::move(node));
}

ExprPtr ExprParser::parse_compare() {
  static constexpr std::pair<std::string_view, CompareOp> kOps[] = {{"==", CompareOp::kEq}, {"!=", CompareOp::kNe},
                                                                    {"<", CompareOp::kLt},  {"<=", CompareOp::kLe},
                                                                    {">", CompareOp::kGt},  {">=", CompareOp::kGe}};
  auto node = make(ExprKind::kCompare, line());
  node->args.push_back(parse_sum());
  while (true) {
    const auto* op = std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& o) { return at_op(o.first); });
    if (op != std::end(kOps)) {
      take();
      node->ops.push_back(op->second);
    } else if (take_name("in")) {
      node->ops.push_back(CompareOp::kIn);
    } else if (at_name("not") && peek(1).kind == TokenKind::kName && peek(1).text == "in") {
      take();
      take();
      node->ops.push_back(CompareOp::kNotIn);
    } else {
      break;
    }
    node->args.push_back(parse_sum());
  }
  if (node->ops.empty()) return std::move(node->args[0]);
  return finish(std::move(node));
}

ExprPtr ExprParser::parse_sum() {
  ExprPtr left = parse_concat();
  while (at_op("+") || at_op("-")) {
    const Token op = take();
    left = binary(op.text == "+" ? ExprKind::kAdd : ExprKind::kSub, op.line, std::move(left), parse_concat());
  }
  return left;
}

ExprPtr ExprParser::parse_concat() {
  auto node = make(ExprKind::kConcat, line());
  node->args.push_back(parse_product());
  while (take_op("~")) node->args.push_back(parse_product());
  if (node->args.size() == 1) return std::move(node->args[0]);
  return finish(std::move(node));
}

ExprPtr ExprParser::parse_product() {
  ExprPtr left = parse_power();
  while (at_op("*") || at_op("/") || at_op("//") || at_op("%")) {
    const Token op = take();
    const ExprKind kind = op.text == "*"    ? ExprKind::kMul
                          : op.text == "/"  ? ExprKind::kDiv
                          : op.text == "//" ? ExprKind::kFloorDiv
                                            : ExprKind::kMod;
    left = binary(kind, op.line, std::move(left), parse_power());
  }
  return left;
}

ExprPtr ExprParser::parse_power() {  // groups to the left, unlike Python's own **
  ExprPtr left = parse_unary(true);
  for (int l = line(); take_op("**"); l = line()) left = binary(ExprKind::kPow, l, std::move(left), parse_unary(true));
  return left;
}

ExprPtr ExprParser::parse_unary(bool with_filter) {
  DepthGuard guard(*this);
  ExprPtr node;
  if (at_op("-") || at_op("+")) {
    const Token op = take();
    node = make(op.text == "-" ? ExprKind::kNeg : ExprKind::kPos, op.line);
    node->args.push_back(parse_unary(false));
    node = finish(std::move(node));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

ExprPtr ExprParser::parse_primary() {
  const int start = line();
  auto node = make(ExprKind::kConst, start);
  if (at(TokenKind::kName)) {
    const std::string name = take().text;
    if (name == "true" || name == "True") {
      node->constant = true;
    } else if (name == "false" || name == "False") {
      node->constant = false;
    } else if (name == "none" || name == "None") {
      node->constant = None{};
    } else {
      node->kind = ExprKind::kName;
      node->name_id = intern(name);
      node->name = name;
      saw_caller_ |= name == "caller";
    }
  } else if (at(TokenKind::kString)) {
    std::string value;
    while (at(TokenKind::kString)) value += take().text;
    node->constant = Text(std::move(value), true);
  } else if (at(TokenKind::kInt)) {
    const std::string digits = take().text;
    int64_t value = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec != std::errc()) {
      fail(ErrorKind::kUnsupported, "line {}: integer above 2^63", start);
    }
    node->constant = value;
  } else if (at(TokenKind::kFloat)) {
    node->constant = std::strtod(take().text.c_str(), nullptr);
  } else if (take_op("(")) {
    node = parse_tuple(true, true);
    expect_op(")");
  } else if (at_op("[")) {
    node = parse_list();
  } else if (at_op("{")) {
    node = parse_dict();
  } else {
    unexpected("an expression");
  }
  return node;
}

ExprPtr ExprParser::parse_list() {
  auto node = make(ExprKind::kList, take().line);
  while (!at_op("]")) {
    node->args.push_back(parse_expression());
    if (!take_op(",")) break;
  }
  expect_op("]");
  return finish(std::move(node));
}

ExprPtr ExprParser::parse_dict() {
  auto node = make(ExprKind::kDict, take().line);
  while (!at_op("}")) {
    node->args.push_back(parse_expression());
    expect_op(":");
    node->args.push_back(parse_expression());
    if (!take_op(",")) break;
  }
  expect_op("}");
  return finish(std::move(node));
}

ExprPtr ExprParser::parse_postfix(ExprPtr node) {
  while (true) {
    if (at_op(".")) {
      const int start = take().line;
      if (at(TokenKind::kInt)) {
        auto index = parse_primary();
        node = binary(ExprKind::kItem, start, std::move(node), std::move(index));
      } else {
        auto attr = make(ExprKind::kAttr, start);
        attr->name = expect_name();
        attr->args.push_back(std::move(node));
        node = finish(std::move(attr));
      }
    } else if (at_op("[")) {
      node = parse_subscript(std::move(node));
    } else if (at_op("(")) {
      auto call = make(ExprKind::kCall, line());
      call->args.push_back(std::move(node));
      parse_call_args(*call);
      node = finish(std::move(call));
    } else {
      return node;
    }
  }
}

ExprPtr ExprParser::parse_subscript(ExprPtr node) {
  const int start = take().line;
  auto result = make(ExprKind::kSlice, start);
  result->args.push_back(std::move(node));
  bool is_slice = false;
  for (int part = 0; part < 3; ++part) {
    const bool empty = at_op(":") || at_op("]");
    result->args.push_back(empty ? nullptr : parse_expression());
    if (part == 2 || !take_op(":")) break;
    is_slice = true;
  }
  if (at_op(",")) fail(ErrorKind::kUnsupported, "line {}: subscript with a comma", line());
  if (!is_slice && !result->args[1]) unexpected("an expression");
  expect_op("]");
  if (is_slice) {
    result->args.resize(4);
  } else {
    result->kind = ExprKind::kItem;
  }
  return finish(std::move(result));
}

ExprPtr ExprParser::parse_filters_and_tests(ExprPtr node) {
  while (true) {
    if (take_op("|")) {
      node = parse_filter(std::move(node));
    } else if (take_name("is")) {
      node = parse_test(std::move(node));
    } else if (at_op("(")) {
      auto call = make(ExprKind::kCall, line());
      call->args.push_back(std::move(node));
      parse_call_args(*call);
      node = finish(std::move(call));
    } else {
      return node;
    }
  }
}

ExprPtr ExprParser::parse_filter(ExprPtr node) {
  auto filter = make(ExprKind::kFilter, line());
  filter->name = expect_name();
  while (take_op(".")) filter->name += "." + expect_name();
  filter->filter = find_filter(filter->name);
  if (!filter->filter) fail(ErrorKind::kUnsupported, "line {}: no filter named '{}'", filter->line, filter->name);
  filter->args.push_back(std::move(node));
  if (at_op("(")) parse_call_args(*filter);
  return finish(std::move(filter));
}

ExprPtr ExprParser::parse_test(ExprPtr node) {
  const bool negated = take_name("not");
  auto test = make(ExprKind::kTest, line());
  test->name = expect_name();
  while (take_op(".")) test->name += "." + expect_name();
  test->test = find_test(test->name);
  if (!test->test) fail(ErrorKind::kUnsupported, "line {}: no test named '{}'", test->line, test->name);
  test->args.push_back(std::move(node));
  if (at_op("(")) {
    parse_call_args(*test);
  } else if ((at(TokenKind::kName) && !at_name("else") && !at_name("or") && !at_name("and")) ||
             at(TokenKind::kString) || at(TokenKind::kInt) || at(TokenKind::kFloat) || at_op("[") || at_op("{")) {
    if (at_name("is")) error("tests cannot be chained with is");
    test->args.push_back(parse_postfix(parse_primary()));
  }
  test = finish(std::move(test));
  if (!negated) return test;
  auto node_not = make(ExprKind::kNot, test->line);
  node_not->args.push_back(std::move(test));
  return finish(std::move(node_not));
}

void ExprParser::parse_call_args(Expr& call) {
  expect_op("(");
  while (!at_op(")")) {
    if (at_op("*") || at_op("**")) fail(ErrorKind::kUnsupported, "line {}: '{}' in a call", line(), peek().text);
    if (at(TokenKind::kName) && at_op("=", 1)) {
      const std::string name = take().text;
      take();
      call.named.emplace_back(name, parse_expression());
    } else {
      if (!call.named.empty()) error("positional argument after a named one");
      call.args.push_back(parse_expression());
    }
    if (!take_op(",")) break;
  }
  expect_op(")");
}

}  // namespace vayu::jinja
