// The parsed template. Built once by the parser, then only read.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/jinja/callable.h"

namespace vayu::jinja {

enum class ExprKind : uint8_t {
  kConst,     // constant
  kName,      // name, name_id
  kCaptured,  // the text of the enclosing block, where a block's filter chain starts
  kAttr,      // args[0] . name
  kItem,      // args[0] [ args[1] ]
  kSlice,     // args[0] [ args[1] : args[2] : args[3] ], absent parts null
  kCall,      // args[0] ( args[1..], named )
  kFilter,    // args[0] | name ( args[1..], named )
  kTest,      // args[0] is name ( args[1..], named )
  kNot,
  kNeg,
  kPos,
  kAnd,
  kOr,
  kTernary,  // args[1] if args[0] else args[2], which may be null
  kCompare,  // args[0] ops[0] args[1] ops[1] args[2] ...
  kConcat,   // args joined by ~
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kList,
  kTuple,
  kDict,  // args: key, value, key, value ...
};
enum class CompareOp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind;
  int line;
  int depth = 1;  // of this tree; bounded, so that walks may recurse
  Value constant;
  std::string name;
  int name_id = -1;
  Filter filter = nullptr;
  Test test = nullptr;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<CompareOp> ops;
};

struct Target {  // what an assignment or a loop writes to: a name, name.attribute, or a tuple of targets
  int name_id = -1;
  std::string attribute;
  std::vector<Target> parts;
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Param {
  int name_id;
  std::string name;
  ExprPtr fallback;  // null when required
};

struct MacroDef {
  std::string name;
  std::vector<Param> params;
  bool uses_caller = false;
  Body body;
};

enum class StmtKind : uint8_t {
  kText,         // text
  kPrint,        // expr
  kIf,           // branches, else_body
  kFor,          // target in expr, filter, body, else_body
  kSet,          // targets[0] = expr
  kSetBlock,     // targets[0] = body, through expr (a filter chain) if present
  kMacro,        // macro bound to targets[0]
  kCallBlock,    // expr (a kCall), with macro as its caller
  kFilterBlock,  // body through expr
  kWith,         // targets[i] = values[i] around body
  kScope,        // body with variables of its own ({% generation %})
  kBreak,
  kContinue,
};

struct Stmt {
  StmtKind kind;
  int line;
  TextPtr text;
  ExprPtr expr;
  ExprPtr filter;
  std::vector<Target> targets;
  std::vector<ExprPtr> values;
  std::vector<std::pair<ExprPtr, Body>> branches;
  Body body;
  Body else_body;
  MacroDef macro;
};

struct Template {
  Body body;
  std::vector<std::string> names;  // every variable name; Expr::name_id indexes it
  int loop_id = -1, caller_id = -1;
};

}  // namespace vayu::jinja
